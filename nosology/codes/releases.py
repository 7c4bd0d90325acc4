"""Releases: from when each is in force, and what the earlier ones of ICD-10-CM have that the newest has not."""

from __future__ import annotations

import gzip
import json
from datetime import date, datetime
from functools import cache
from typing import Any

from nosology.codes.prefix_tree import tree_of_prefixes
from nosology.codes.sources import DATA
from nosology.codes.table import CodeTable
from nosology.core import SYSTEMS, CodeError

# A release is named by its fiscal year, which begins on 1 October of the year before.
RELEASES = {
    "icd9cm": ("2015",),
    "icd9proc": ("2015",),
    "icd10cm": ("2019", "2020", "2021", "2022", "2023", "2024", "2025", "2026"),
    "icd10pcs": ("2024",),
}


def releases(system: str) -> tuple[str, ...]:
    """The releases known of a system, oldest first."""
    if system not in RELEASES:
        raise CodeError(f"system must be one of {', '.join(SYSTEMS)}; got {system}")
    return RELEASES[system]


def in_force_from(release: str) -> date:
    """The first day of a release."""
    return date(int(release) - 1, 10, 1)


def release_on(day: date | str, system: str = "icd10cm") -> str:
    """The release in force on a day (a date or YYYY-MM-DD); CodeError for a day before the first one known."""
    try:
        day = datetime.fromisoformat(day) if isinstance(day, str) else day
    except ValueError as error:
        raise CodeError(f"date must be YYYY-MM-DD; got {day[:20]!r}") from error
    known = releases(system)
    past = [release for release in known if in_force_from(release).isoformat() <= day.isoformat()[:10]]
    if not past:
        earliest = f"{known[0]}, from {in_force_from(known[0])}"
        raise CodeError(f"no {system} release is known for {day:%Y-%m-%d}; the earliest is {earliest}")
    return past[-1]


@cache
def _changes() -> dict[str, Any]:
    with gzip.open(DATA / "icd10cm_releases.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


def changed_lines() -> dict[str, tuple[int, int]]:
    """For each line of ICD-10-CM that has not always been as now: bit i of the first number says whether it exists in
    release i, bit i of the second whether it is billable there."""
    return _changes()["changed"]


def past_wording(code: str, release: str | None = None) -> str:
    """The description of an ICD-10-CM line in a past release (by default the last that had one), where it is not the
    newest release's; else ""."""
    texts = _changes()["wordings"].get(code, {})
    if release is None:
        return max(texts, key=texts.__getitem__, default="")
    years = _changes()["releases"]
    bit = 1 << years.index(release) if release in years else 0
    return next((text for text, mask in texts.items() if mask & bit), "")


def past_release(newest: CodeTable, release: str) -> CodeTable:
    """ICD-10-CM as it was: the newest table with what has changed since undone.

    Its notes are those of the newest tabular list, for the lines that both have.
    """
    changes = _changes()
    bit = 1 << changes["releases"].index(release)
    changed, wordings = changes["changed"], changes["wordings"]
    lines = {entry: newest.description(entry) for entry in newest.lines() if entry not in changed}
    billable = {code for code in lines if newest.billable(code)}
    for code, (exists, leaf) in changed.items():
        if exists & bit:
            lines[code] = newest.description(code) if code in newest else ""
            if leaf & bit:
                billable.add(code)
    for code, texts in wordings.items():
        for text, mask in texts.items():
            if mask & bit:
                lines[code] = text
    return tree_of_prefixes(newest, release, lines, billable, newest.all_notes())
