"""The codes that are for history: what a disease of a relative, or one that is over, is coded as (Z80 to Z87)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from nosology.codes.sources import DATA, read_lines
from nosology.codes.table import CodeTable


@lru_cache(maxsize=1 << 12)
def family_history(code: str) -> str | None:
    """The code for a family history of what an ICD-10-CM code names, None where there is none."""
    return _lookup(code, 0)


@lru_cache(maxsize=1 << 12)
def personal_history(code: str) -> str | None:
    """The code for what an ICD-10-CM code names when it is over, None where the code itself goes on being used."""
    return _lookup(code, 1)


def is_past_event(code: str) -> bool:
    """Whether a list of past diseases that names what the code names tells of an event that is over."""
    return _lookup(code, 2) == "event"


def _lookup(code: str, column: int) -> str | None:
    rows = [row for row in _rows() if row[0] <= code[: len(row[0])] and code[: len(row[1])] <= row[1]]
    if not rows:
        return None
    found = min(rows, key=_breadth)[2][column]
    return None if found == "-" else found


def _breadth(row: tuple[str, str, tuple[str, str, str]]) -> tuple[int, int]:
    """A longer prefix first, then a shorter range."""
    first, last, _ = row
    if first == last:  # C4A is no number
        return -len(first), 0
    return -len(first), (ord(last[0]) - ord(first[0])) * 100 + int(last[1:3]) - int(first[1:3])


@cache
def _rows() -> list[tuple[str, str, tuple[str, str, str]]]:
    rows = []
    for line in read_lines(DATA / "history_codes.tsv"):
        if line and not line.startswith("#"):
            prefix, family, personal, *event = line.split("\t")
            first, _, last = prefix.partition("-")
            rows.append((first, last or first, (family, personal, *(event or ["-"]))))
    return rows


SIDES = ("right", "left", "bilateral")
_SIDE = re.compile(r"\b(right|left|bilateral)\b")
_VAGUE = re.compile(r"\bunspecified\b")
_ORGAN = re.compile(r",\s*(?:eye|ear|side)\b")


def laterality_variants(table: CodeTable, codes: Iterable[str]) -> dict[str, dict[str, str]]:
    """code -> side -> the code of the same thing on that side, for the codes that have such relatives."""
    groups: dict[tuple[str, str, str], dict[str, str]] = {}
    for code in codes:
        title = table.description(code).lower()
        side = _SIDE.search(title)
        rest = _ORGAN.sub(",", " ".join(_VAGUE.sub("", _SIDE.sub("", title)).split())).strip(" ,")
        groups.setdefault((code[:3], rest, code[7:]), {})[side[1] if side else ""] = code
    return {
        code: {side: own for side, own in group.items() if side}
        for group in groups.values()
        if len(group) > 1
        for code in group.values()
    }
