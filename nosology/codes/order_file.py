"""The official order files (icd10cm_order_2026.txt, icd10pcs_order_2026.txt): all codes and headers of a release."""

from __future__ import annotations

from pathlib import Path

from nosology.codes import pcs
from nosology.codes.lookup import table
from nosology.codes.prefix_tree import tree_of_prefixes
from nosology.codes.sources import read_lines
from nosology.codes.spelling import normalise
from nosology.codes.table import CodeTable
from nosology.core import DataError


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
