"""Releases: from when each is in force, and what the earlier ones of ICD-10-CM have that the newest has not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Container, Mapping, Sequence
from datetime import date, datetime
from functools import cache
from typing import Any

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


def effective_date(release: str) -> date:
    """The first day of a release."""
    return date(int(release) - 1, 10, 1)


def release_on(day: date | str, system: str = "icd10cm") -> str:
    """The release in force on a day (a date or YYYY-MM-DD); CodeError for a day before the first one known."""
    try:
        day = datetime.fromisoformat(day) if isinstance(day, str) else day
    except ValueError as error:
        raise CodeError(f"date must be YYYY-MM-DD; got {day[:20]!r}") from error
    known = releases(system)
    past = [release for release in known if effective_date(release).isoformat() <= day.isoformat()[:10]]
    if not past:
        earliest = f"{known[0]}, from {effective_date(known[0])}"
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


def past_description(code: str, release: str | None = None) -> str:
    """The description of an ICD-10-CM line in a past release (by default the last that had one), where it is not the
    newest release's; else ""."""
    texts = _changes()["wordings"].get(code, {})
    if release is None:
        return max(texts, key=texts.__getitem__, default="")
    years = _changes()["releases"]
    bit = 1 << years.index(release) if release in years else 0
    return next((text for text, mask in texts.items() if mask & bit), "")


def past_table(newest: CodeTable, release: str) -> CodeTable:
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
    return table_from_prefixes(newest, release, lines, billable, newest.all_notes())


def table_from_prefixes(
    newest: CodeTable,
    release: str,
    lines: Mapping[str, str],
    billable: Container[str],
    notes: Mapping[str, Mapping[str, Sequence[str]]],
) -> CodeTable:
    """The table of ICD-10-CM lines (code, block or chapter -> description); notes of absent lines are left out.

    A line keeps the parent it has in the newest release where that exists. A chapter is a number whose description ends
    with its range, as in "Neoplasms (C00-D49)".
    """
    chapters = {line: lines[line][-8:-1] for line in sorted(filter(str.isdigit, lines), key=int)}
    blocks = [line for line in lines if "-" in line]
    parents: dict[str, str | None] = {}
    for line in lines:
        above = newest.parent(line) if line in newest else None
        if line in chapters:
            parents[line] = None
        elif above in lines:
            parents[line] = above  # also where ranges mislead: C4A stands in C43-C44
        elif "-" in line:
            parents[line] = _chapter(line, chapters)
        else:
            around = (block for block in blocks if block[:3] <= line[:3] <= block[-3:])
            parents[line] = _longest_prefix(line, lines) or max(around, default=None) or _chapter(line, chapters)
    order = _book_order(parents, chapters)
    return CodeTable(
        "icd10cm",
        release,
        order,
        [lines[line] for line in order],
        [parents[line] for line in order],
        [line in billable for line in order],
        {line: notes[line] for line in order if line in notes},
    )


def _chapter(line: str, chapters: Mapping[str, str]) -> str:
    """The chapter that begins last before a line: a new category may lie beyond the known end of its chapter."""
    return max((chapter for chapter, span in chapters.items() if span[:3] <= line[:3]), key=chapters.__getitem__)


def _longest_prefix(code: str, lines: Container[str]) -> str | None:
    """The line above a code; it skips the placeholders of T07.XXXA, which stands below T07."""
    prefixes = (code[:length].rstrip(".") for length in range(len(code) - 1, 2, -1))
    return next((prefix for prefix in prefixes if prefix in lines), None)


def _book_order(parents: Mapping[str, str | None], chapters: Sequence[str]) -> list[str]:
    below: dict[str | None, list[str]] = {}
    for line in sorted(parents, reverse=True):
        below.setdefault(parents[line], []).append(line)
    order: list[str] = []
    stack = list(reversed(chapters))
    while stack:
        order.append(line := stack.pop())
        stack.extend(below.get(line, ()))
    return order
