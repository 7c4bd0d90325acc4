"""Official lists of codes exempt from "present on admission" (POA): text, spreadsheet, archive."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from pathlib import Path
from xml.etree import ElementTree

from nosology.codes.spelling import normalise
from nosology.core import DataError

_HEADER = re.compile(r"Ord(?:er)?(?:FY)?(\d\d)$")
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)  # RuntimeError: encrypted
_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def read_poa_list(path: Path) -> tuple[str, list[str]]:
    """Release and codes of an official list: text, spreadsheet, or the archive with both."""
    content = path.read_bytes()
    if not content.startswith(b"PK"):
        return parse_poa_rows(poa_text_rows(content), str(path))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if "[Content_Types].xml" in archive.namelist():
            return parse_poa_rows(spreadsheet_rows(content), str(path))
        found = []
        for member in archive.namelist():
            if member.lower().endswith(".txt"):
                rows = poa_text_rows(archive.read(member))
                if is_poa_header(rows):
                    found.append(parse_poa_rows(rows, member))
        if not found:
            raise DataError(f"{path} has no list of POA exempt codes")
        return max(found, key=lambda item: len(item[1]))  # the archive also has the codes that were added


def poa_text_rows(content: bytes) -> list[list[str]]:
    """The rows of a tab-delimited list."""
    return [line.split("\t") for line in content.decode("latin-1").splitlines()]


def is_poa_header(rows: list[list[str]]) -> bool:
    """Whether the first row names the columns of a list (not of its changes)."""
    return bool(
        rows and len(rows[0]) == 3 and _HEADER.match(rows[0][0].strip()) and rows[0][1].strip() == "POAexemptCode"
    )


def parse_poa_rows(rows: list[list[str]], source: str) -> tuple[str, list[str]]:
    """Release and codes of the rows of a list; its header has the year: Order26, POAexemptCode, Description."""
    match = _HEADER.match(rows[0][0].strip()) if is_poa_header(rows) else None
    if match is None:
        raise DataError(
            f"{source} must be a list of POA exempt codes with the columns Order26, POAexemptCode, Description"
        )
    codes = [normalise(row[1].strip(), "icd10cm").code for row in rows[1:] if len(row) > 1 and row[1].strip()]
    return f"20{match[1]}", codes


def spreadsheet_rows(content: bytes) -> list[list[str]]:
    """The rows of the first sheet of an .xlsx file as text."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.namelist()
            shared: list[str] = []
            if "xl/sharedStrings.xml" in members:
                root = ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))
                shared = ["".join(item.itertext()) for item in root.iter(f"{_SHEET}si")]
            sheet = min(name for name in members if re.fullmatch(r"xl/worksheets/sheet\d+\.xml", name))
            root = ElementTree.fromstring(archive.read(sheet))
        return [_cells(row, shared) for row in root.iter(f"{_SHEET}row")]
    except (*ZIP_ERRORS, ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError("the spreadsheet cannot be read") from error


def _cells(row: ElementTree.Element, shared: list[str]) -> list[str]:
    """The texts of the cells of a row. shared: texts that cells refer to."""
    cells: list[str] = []
    for cell in row.iter(f"{_SHEET}c"):
        value = cell.findtext(f"{_SHEET}v") or "".join(text.text or "" for text in cell.iter(f"{_SHEET}t"))
        place = _column_number(cell.get("r", ""), len(cells))
        cells += [""] * (place - len(cells))  # a sheet leaves empty cells out
        cells.append(shared[int(value)] if cell.get("t") == "s" and value else value)
    return cells


def _column_number(name: str, default: int) -> int:
    """The number of the column of a cell such as AB12, from 0."""
    if not re.fullmatch(r"[A-Z]{1,3}\d+", name):
        return default
    number = 0
    for letter in name.rstrip("0123456789"):
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1
