"""Data of an encounter that people and programs can change: sex, birth date, stay, disposition, setting, payer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from nosology.claims.encounter import SETTINGS
from nosology.claims.encounter_values import DISPOSITIONS, iso_date, years_between
from nosology.core import ReviewError

EDITABLE_FIELDS = ("sex", "born", "age", "admitted", "discharged", "disposition", "setting", "payer")
DIED = ("20", "40", "41", "42")
MAX_PAYER = 100  # characters
_SEX = {"f": "F", "female": "F", "m": "M", "male": "M"}
_AHEAD = timedelta(hours=14)  # of UTC, of the time zone where a day begins first
_DAYS = {"born": "the birth date", "admitted": "the admission", "discharged": "the discharge"}


def parse_sex(value: Any) -> str | None:
    """F or M; None for anything else."""
    return _SEX.get(str(value or "").strip().lower())


def parse_disposition(value: Any) -> str | None:
    """A discharge status of UB-04 as two digits; None for anything else."""
    text = str(value if value is not None else "").strip().removesuffix(".0")
    text = text.zfill(2) if text.isascii() and text.isdigit() else ""
    return text if text in DISPOSITIONS else None


def complete_encounter(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with what follows from them: the date of the code set, the age at admission, inpatient or outpatient.

    The date is that of the discharge, or else the stated one, or the admission.
    """
    result = {name: value for name, value in fields.items() if value is not None}
    days = {name: iso_date(result.get(name)) for name in ("born", "admitted", "discharged", "date")}
    if day := days["discharged"] or days["date"] or days["admitted"]:
        result["date"] = day
    came = days["admitted"] or days["date"] or days["discharged"]
    if days["born"] and came and (age := years_between(days["born"], came)) >= 0:
        result["age"] = age
    setting = str(result.get("setting", "")).strip().lower()
    if setting in SETTINGS:
        result["kind"] = "inpatient" if setting == "inpatient" else "outpatient"
    if parse_disposition(result.get("disposition")) in DIED:
        result["died"] = True
    return result


def editable_fields(encounter: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a completed encounter that people can change, as they are now; unknown ones are left out."""
    given = {str(name).lower(): value for name, value in encounter.items()}
    setting = str(given.get("setting") or given.get("kind") or "").strip().lower()
    found = {
        "sex": parse_sex(given.get("sex")),
        "age": given.get("age"),
        "setting": setting if setting in SETTINGS else None,
        "disposition": parse_disposition(given.get("disposition")) or ("20" if given.get("died") else None),
        "payer": str(given["payer"])[:MAX_PAYER] if given.get("payer") else None,
    } | {name: iso_date(given.get(name)) for name in _DAYS}
    return {name: found[name] for name in EDITABLE_FIELDS if found[name] is not None}


def encounter_words(encounter: Mapping[str, Any]) -> str:
    """The data of a completed encounter in one line."""
    about = editable_fields(encounter)
    came, left = about.get("admitted"), about.get("discharged")
    words = [
        {"F": "female", "M": "male"}.get(about.get("sex", "")),
        f"{about['age']} years" if "age" in about else None,
        about.get("setting"),
        f"{came or '?'} to {left or '?'}" if came or left else encounter.get("date"),
        DISPOSITIONS.get(about.get("disposition", "")),
        about.get("payer"),
    ]
    return " · ".join(word for word in words if word) or "No data of the encounter"


def changed_fields(encounter: Mapping[str, Any], wanted: Any) -> dict[str, Any]:
    """The wanted fields that differ from those of a completed encounter; None clears one. ReviewError."""
    if not isinstance(wanted, Mapping) or not wanted.keys() <= set(EDITABLE_FIELDS):
        raise ReviewError(f"the data of an encounter are {', '.join(EDITABLE_FIELDS)}; got something else")
    before = editable_fields(encounter)
    given = {name: _checked(name, value) for name, value in wanted.items()}
    changes = {name: value for name, value in given.items() if value != before.get(name)}
    after = before | changes
    if changes.get("age") is not None and "born" not in changes and after.get("born"):
        raise ReviewError("the age follows from the birth date; change the birth date instead")
    _check_days(after)
    if "disposition" in changes and encounter.get("died"):
        changes["died"] = None  # what an import stated
    if not changes:
        raise ReviewError("these are the data that the encounter has already")
    return changes


def _checked(name: str, value: Any) -> Any:
    """A valid value, None if it is empty; ReviewError."""
    if value is None or value == "":
        return None
    if name in _DAYS:
        if not isinstance(value, str) or len(value) != 10 or iso_date(value) is None:
            raise ReviewError(f"{_DAYS[name]} must be a day, YYYY-MM-DD")
        return value
    if name == "sex" and value not in ("F", "M"):
        raise ReviewError("sex must be F or M")
    if name == "setting" and value not in SETTINGS:
        raise ReviewError(f"setting must be one of {', '.join(SETTINGS)}")
    if name == "disposition" and value not in DISPOSITIONS:
        raise ReviewError("disposition must be a discharge status code of UB-04, such as 01")
    if name == "payer" and (not isinstance(value, str) or len(value) > MAX_PAYER or "\x00" in value):
        raise ReviewError(f"payer must be a text of at most {MAX_PAYER} characters")
    return _age(value) if name == "age" else value


def _age(value: Any) -> int | float:
    try:
        age = float(value)
    except (TypeError, ValueError):
        age = -1.0
    if isinstance(value, bool) or not 0 <= age <= 130:
        raise ReviewError("age must be a number of years, 0 to 130")
    return int(age) if age == int(age) else age


def _check_days(fields: Mapping[str, Any]) -> None:
    born, came, left = (fields.get(name) for name in _DAYS)
    today = (datetime.now(UTC) + _AHEAD).date().isoformat()
    if born and born > today:
        raise ReviewError("the birth date is in the future")
    if came and left and left < came:
        raise ReviewError("the discharge is before the admission")
    if born and (first := came or left) and first < born:
        raise ReviewError(f"the {'admission' if came else 'discharge'} is before the birth date")
    if born and years_between(born, came or left or today) > 130:
        raise ReviewError("the birth date is more than 130 years ago")
