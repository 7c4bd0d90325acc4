"""Tables from official order files, their addenda, and the ICD-10-PCS tables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nosology.codes.icd9_and_pcs import pcs_table
from nosology.codes.pcs_tables import read_tables
from nosology.codes.releases import table_from_prefixes
from nosology.codes.sources import cached_json, read_lines
from nosology.codes.spelling import normalise
from nosology.codes.table import CodeTable
from nosology.codes.tabular import read_tabular
from nosology.core import DataError

_ADDENDA = re.compile(r"(Add|Delete|Revise from|Revise to): +(?:([01]) )?([A-Z0-9]{3,7}) +(.*)")
_NOTHING = ("No Device", "No Qualifier")


def cached_table(system: str, release: str, sources: list[Path], read: Callable[[], CodeTable]) -> CodeTable:
    """The table that `read` returns, from the cache if the sources did not change."""
    built: list[CodeTable] = []  # a table that was just built need not be parsed from JSON

    def build() -> dict[str, Any]:
        built.append(read())
        return built[0].to_json()

    value = cached_json(f"{system}-{release}", sources, build)
    return built[0] if built else CodeTable.from_json(system, release, value)


def installed_table(system: str, release: str, files: Mapping[str, Path], before: CodeTable) -> CodeTable:
    """The table of an installed release; what its files lack comes from the release `before`.

    A tabular list has tree and notes, and the order file says which of its codes exist. An order file alone has no
    chapters, blocks and notes.
    """
    kinds = [kind for kind in ("order", "tabular", "tables", "order_addenda") if kind in files]
    if "order" in kinds or "tabular" in kinds:
        kinds = [kind for kind in kinds if kind in ("order", "tabular")]

    def read() -> CodeTable:
        if "tabular" in files:
            existing = read_order_titles(files["order"])[0] if "order" in files else None
            return read_tabular(files["tabular"], release, existing)
        if "order" in files:
            return order_table(*read_order_titles(files["order"]), release, before)
        if "tables" in files:
            return pcs_table(dict(read_pcs_tables(files["tables"])), release)
        return order_table(*_changed_titles(files["order_addenda"], before), release, before)

    return cached_table(system, release, [files[kind] for kind in kinds], read)


def read_order(path: Path, release: str | None = None) -> CodeTable:
    """The table of an official order file (icd10cm_order_2026.txt, icd10pcs_order_2026.txt), without notes."""
    from nosology.codes.lookup import built_in_table

    titles, billable = read_order_titles(path)
    release = release or Path(path).stem.rpartition("_")[2]
    before = built_in_table("icd10cm")
    return order_table(titles, billable, release, before, notes=False)


def read_order_titles(path: Path) -> tuple[dict[str, str], set[str]]:
    """The titles of an order file by code (without dots), and the billable codes.

    Columns: number (1-5), code (7-13), 1 if billable (15), short title (17-76), long title (78-).
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
    return titles, billable


def order_table(
    titles: Mapping[str, str], billable: set[str], release: str, before: CodeTable, *, notes: bool = True
) -> CodeTable:
    """The table of titles by code (without dots); chapters, blocks and notes are those of another release."""
    if "001" in titles or any(code[:1].isdigit() for code in itertools.islice(titles, 5)):  # ICD-10-PCS
        return pcs_table({code: title for code, title in titles.items() if code in billable}, release)
    above = {line: before.description(line) for line in before.lines() if before.kind(line) in ("chapter", "block")}
    dotted = {code: normalise(code, "icd10cm").code for code in titles}
    lines = above | {dotted[code]: title for code, title in titles.items()}
    kept = {line: texts for line, texts in before.all_notes().items() if line in lines} if notes else {}
    return table_from_prefixes(before, release, lines, {dotted[code] for code in billable}, kept)


def _changed_titles(path: Path, before: CodeTable) -> tuple[dict[str, str], set[str]]:
    """The titles and billable codes of a release with the changes of the addenda of an order file."""
    titles = {line.replace(".", ""): before.description(line) for line in before.codes()}
    billable = {line.replace(".", "") for line in before.codes(billable=True)}
    if before.system == "icd10pcs":
        titles = {code: titles[code] for code in billable}
    unknown = 0
    for line in read_lines(path):
        if match := _ADDENDA.match(line):
            action, flag, code, text = match.groups()
            if action in ("Delete", "Revise from"):
                unknown += titles.pop(code, None) is None
                billable.discard(code)
            else:
                titles[code] = text[61:].strip() or text[:60].strip()
                if flag in ("1", None):
                    billable.add(code)
    if unknown > 20:
        raise DataError(
            f"{path} changes {unknown} codes that release {before.release} does not have; install the order file"
        )
    return titles, billable


def read_pcs_tables(path: Path) -> Iterator[tuple[str, str]]:
    """All codes of the ICD-10-PCS tables (XML) with a title that is put together from the labels of their values."""
    tables = read_tables(path)
    for row in tables.rows:
        operation = tables.operations[row.table]
        for values in itertools.product(*row.values):
            body_part, approach, *others = (value.label for value in values)
            rest = [label for label in others if label not in _NOTHING]
            code = row.table + "".join(value.character for value in values)
            yield code, ", ".join([f"{operation} of {body_part}", *rest, f"{approach} Approach"])
