"""Related ICD-10-CM codes: history codes of a disease (Z80 to Z87), and the same code for another side."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from nosology.codes.sources import DATA, read_lines
from nosology.codes.table import CodeTable

SIDES = ("right", "left", "bilateral")
_SIDE = re.compile(r"\b(right|left|bilateral)\b")
_UNSPECIFIED = re.compile(r"\bunspecified\b")
_ORGAN = re.compile(r",\s*(?:eye|ear|side)\b")


@lru_cache(maxsize=1 << 12)
def family_history(code: str) -> str | None:
    """The code for a family history of an ICD-10-CM code; None if there is none."""
    return _history_row(code)[0]


@lru_cache(maxsize=1 << 12)
def personal_history(code: str) -> str | None:
    """The code for a personal history of an ICD-10-CM code; None if the code itself remains in use."""
    return _history_row(code)[1]


def is_past_event(code: str) -> bool:
    """Whether the code, in a list of past diseases, is an event that is over."""
    return _history_row(code)[2] == "event"


def _history_row(code: str) -> tuple[str | None, ...]:
    """Family history code, personal history code and "event" of the most specific range that includes a code."""
    rows = [row for row in _history_rows() if row[0] <= code[: len(row[0])] and code[: len(row[1])] <= row[1]]
    return min(rows, key=_breadth)[2] if rows else (None, None, None)


def _breadth(row: tuple[str, str, tuple[str | None, ...]]) -> tuple[int, int]:
    """Sort key: longer prefixes first, then shorter ranges."""
    first, last, _ = row
    if first == last:  # C4A has no number
        return -len(first), 0
    return -len(first), (ord(last[0]) - ord(first[0])) * 100 + int(last[1:3]) - int(first[1:3])


@cache
def _history_rows() -> list[tuple[str, str, tuple[str | None, ...]]]:
    """(first prefix, last prefix, (family, personal, event)) of each row of the table."""
    rows = []
    for line in read_lines(DATA / "history_codes.tsv"):
        if line and not line.startswith("#"):
            prefix, family, personal, *event = line.split("\t")
            first, _, last = prefix.partition("-")
            fields = (family, personal, *(event or ["-"]))
            rows.append((first, last or first, tuple(None if field == "-" else field for field in fields)))
    return rows


def laterality_variants(table: CodeTable, codes: Iterable[str]) -> dict[str, dict[str, str]]:
    """code -> side -> the code of the same condition on that side, for the codes that differ only in their side."""
    groups: dict[tuple[str, str, str], dict[str, str]] = {}
    for code in codes:
        title = table.description(code).lower()
        side = _SIDE.search(title)
        rest = _ORGAN.sub(",", " ".join(_UNSPECIFIED.sub("", _SIDE.sub("", title)).split())).strip(" ,")
        groups.setdefault((code[:3], rest, code[7:]), {})[side[1] if side else ""] = code
    return {
        code: {side: variant for side, variant in group.items() if side}
        for group in groups.values()
        if len(group) > 1
        for code in group.values()
    }
