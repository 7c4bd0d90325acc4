"""Values of an encounter as files state them: days, ages, discharge status, and what several documents state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

DISPOSITIONS = {  # patient discharge status codes of UB-04
    "01": "home or self-care",
    "02": "another acute care hospital",
    "03": "skilled nursing facility",
    "04": "custodial or supportive care facility",
    "05": "cancer center or children's hospital",
    "06": "home with home health care",
    "07": "left against medical advice",
    "20": "died",
    "21": "court or law enforcement",
    "30": "still a patient",
    "40": "died at home (hospice)",
    "41": "died in a medical facility (hospice)",
    "42": "died, place unknown (hospice)",
    "43": "federal health care facility",
    "50": "hospice at home",
    "51": "hospice in a medical facility",
    "61": "swing bed of this hospital",
    "62": "inpatient rehabilitation",
    "63": "long-term care hospital",
    "64": "nursing facility of Medicaid only",
    "65": "psychiatric hospital",
    "66": "critical access hospital",
    "69": "alternative care site in a disaster",
    "70": "another institution",
} | {
    str(number): f"{place}, readmission planned"
    for number, place in (
        (81, "home or self-care"),
        (82, "another acute care hospital"),
        (83, "skilled nursing facility"),
        (84, "custodial or supportive care facility"),
        (85, "cancer center or children's hospital"),
        (86, "home with home health care"),
        (87, "court or law enforcement"),
        (88, "federal health care facility"),
        (89, "swing bed of this hospital"),
        (90, "inpatient rehabilitation"),
        (91, "long-term care hospital"),
        (92, "nursing facility of Medicaid only"),
        (93, "psychiatric hospital"),
        (94, "critical access hospital"),
        (95, "another institution"),
    )
}


def iso_date(value: Any) -> str | None:
    """The day at the start of a text, YYYY-MM-DD; None if there is none."""
    try:
        return date.fromisoformat(str(value)[:10]).isoformat()
    except ValueError:
        return None


def years_between(born: str, day: str) -> int:
    """The age in whole years on a day."""
    return int(day[:4]) - int(born[:4]) - (day[5:] < born[5:])


def merge_fields(stated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several documents state about their encounter: the last one counts, of dates the latest.

    The role (radiology, pathology) is that of a document, so an encounter with several has none.
    """
    merged = {name: value for fields in stated for name, value in fields.items()}
    if len(stated) > 1:
        merged.pop("role", None)
    if days := [str(fields["date"]) for fields in stated if fields.get("date")]:
        merged["date"] = max(days)
    return merged
