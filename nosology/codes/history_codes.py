"""The codes that are for history: what a disease of a relative, or one that is over, is coded as (Z80 to Z87)."""

from __future__ import annotations

from functools import cache, lru_cache

from nosology.codes.sources import DATA, read_lines


@lru_cache(maxsize=1 << 12)
def family_history(code: str) -> str | None:
    """The code for a family history of what an ICD-10-CM code names, None where there is none."""
    return _lookup(code, 0)


@lru_cache(maxsize=1 << 12)
def personal_history(code: str) -> str | None:
    """The code for what an ICD-10-CM code names when it is over, None where the code itself goes on being used."""
    return _lookup(code, 1)


def is_event(code: str) -> bool:
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
