"""Releases: their dates, and the tables of past ICD-10-CM releases."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Container, Mapping
from datetime import date, datetime
from functools import cache
from typing import Any

from nosology.codes.installed import installed_releases
from nosology.codes.sources import DATA
from nosology.codes.table import CodeTable, Notes
from nosology.core import SYSTEMS, CodeError

# Built-in releases. A release is named after its fiscal year, which starts on 1 October of the year before.
RELEASES = {
    "icd9cm": ("2015",),
    "icd9proc": ("2015",),
    "icd10cm": ("2019", "2020", "2021", "2022", "2023", "2024", "2025", "2026"),
    "icd10pcs": ("2024", "2026"),
}


class ReleaseWarning(UserWarning):
    """A newer release is in force than the newest known one."""


def releases(system: str) -> tuple[str, ...]:
    """The known releases of a system, built-in and installed, oldest first."""
    if system not in RELEASES:
        raise CodeError(f"system must be one of {', '.join(SYSTEMS)}; got {system}")
    return _releases(system)


@cache
def _releases(system: str) -> tuple[str, ...]:
    return tuple(sorted({*RELEASES[system], *installed_releases(system)}))


def effective_date(release: str) -> date:
    """The first day of a release."""
    return date(int(release) - 1, 10, 1)


def iso_day(day: date | str) -> str:
    """The day as YYYY-MM-DD; CodeError if a text is no date."""
    if isinstance(day, str):
        try:
            day = datetime.fromisoformat(day)
        except ValueError as error:
            raise CodeError("date must be YYYY-MM-DD") from error
    return day.isoformat()[:10]


def release_on(day: date | str, system: str = "icd10cm") -> str:
    """The release in force on a day (a date or YYYY-MM-DD); CodeError for a day before the first known release.

    A day after the newest known release has ended uses that one, with one warning per process.
    """
    text = iso_day(day)
    known = releases(system)
    past = [release for release in known if effective_date(release).isoformat() <= text]
    if not past:
        earliest = f"{known[0]}, from {effective_date(known[0])}"
        raise CodeError(f"no {system} release is known for {text}; the earliest is {earliest}")
    if past[-1] == known[-1] and system == "icd10cm":  # of procedures not every release is built in
        current = str(int(text[:4]) + (text[5:7] >= "10"))
        if current > known[-1]:
            _warn_of_missing(system, current, known[-1])
    return past[-1]


@cache
def _warn_of_missing(system: str, current: str, newest: str) -> None:
    """Says once that a newer release is in force than the newest known one."""
    message = (
        f"{system} release {current} is in force but not installed; {newest} is used (nosology codes install FILE)"
    )
    warnings.warn(message, ReleaseWarning, stacklevel=3)


@cache
def _changes() -> dict[str, Any]:
    with gzip.open(DATA / "icd10cm_releases.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)


def changed_lines() -> dict[str, tuple[int, int]]:
    """Two bit masks for each ICD-10-CM line that differs in a past release: exists in release i, billable in it."""
    return _changes()["changed"]


def past_description(code: str, release: str | None = None) -> str:
    """The description of an ICD-10-CM line in a past release, by default the last; "" if it is the same as today."""
    texts = _changes()["wordings"].get(code, {})
    if release is None:
        return max(texts, key=texts.__getitem__, default="")
    years = _changes()["releases"]
    bit = 1 << years.index(release) if release in years else 0
    return next((text for text, mask in texts.items() if mask & bit), "")


def past_table(newest: CodeTable, release: str) -> CodeTable:
    """ICD-10-CM of a past release: the newest table without the changes since then; its notes are the newest ones."""
    changes = _changes()
    bit = 1 << changes["releases"].index(release)
    changed, wordings = changes["changed"], changes["wordings"]
    lines = {line: newest.description(line) for line in newest.lines() if line not in changed}
    billable = {code for code in lines if newest.billable(code)}
    for code, (exists, is_leaf) in changed.items():
        if exists & bit:
            lines[code] = newest.description(code) if code in newest else ""
            if is_leaf & bit:
                billable.add(code)
    lines |= {code: text for code, texts in wordings.items() for text, mask in texts.items() if mask & bit}
    return table_from_prefixes(newest, release, lines, billable, newest.all_notes())


def table_from_prefixes(
    newest: CodeTable, release: str, lines: Mapping[str, str], billable: Container[str], notes: Notes
) -> CodeTable:
    """The ICD-10-CM table of lines (code, block or chapter -> description); notes of absent lines are dropped.

    A line keeps its parent of the newest release if that exists. Otherwise the parent of a code is its longest prefix,
    and the parent of a category is its block. The description of a chapter ends with its range: "Neoplasms (C00-D49)".
    """
    chapters = {line: lines[line][-8:-1] for line in sorted(filter(str.isdigit, lines), key=int)}
    blocks = [line for line in lines if "-" in line]
    parents: dict[str, str | None] = {}
    for line in lines:
        above = newest.parent(line) if line in newest else None
        if line in chapters:
            parents[line] = None
        elif above in lines:
            parents[line] = above  # also where ranges mislead: C4A belongs to C43-C44
        elif "-" in line:
            parents[line] = _chapter(line, chapters)
        else:
            around = (block for block in blocks if block[:3] <= line[:3] <= block[-3:])
            parents[line] = _longest_prefix(line, lines) or max(around, default=None) or _chapter(line, chapters)
    return CodeTable.from_tree("icd10cm", release, lines, parents, billable, notes, chapters)


def _chapter(line: str, chapters: Mapping[str, str]) -> str:
    """The last chapter that starts before a line; a new category may lie behind the known end of its chapter."""
    return max((chapter for chapter, span in chapters.items() if span[:3] <= line[:3]), key=chapters.__getitem__)


def _longest_prefix(code: str, lines: Container[str]) -> str | None:
    """The longest prefix of a code that is a line; it skips placeholders: T07.XXXA is below T07."""
    prefixes = (code[:length].rstrip(".") for length in range(len(code) - 1, 2, -1))
    return next((prefix for prefix in prefixes if prefix in lines), None)
