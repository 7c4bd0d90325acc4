import io
import zipfile
from datetime import date

import pytest

from nosology.codes import is_poa_exempt
from nosology.codes.poa import poa_releases
from nosology.codes.poa_files import read_poa_list
from nosology.core import CodeError, DataError

LIST = "Order27\tPOAexemptCode\tDescription\r\n98176\tZ99.11\tDependence on respirator\r\n98178\tZ99.2\tDialysis\r\n"
SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    '<row><c t="s"><v>0</v></c><c t="s"><v>1</v></c><c t="s"><v>2</v></c></row>'
    '<row><c t="inlineStr"><is><t>98176</t></is></c><c t="s"><v>3</v></c><c t="s"><v>2</v></c></row>'
    "</sheetData></worksheet>"
)
STRINGS = (
    '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><si><t>Order27</t></si>'
    "<si><t>POAexemptCode</t></si><si><t>Description</t></si><si><r><t>Z99</t></r><r><t>.11</t></r></si></sst>"
)


def workbook() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/sharedStrings.xml", STRINGS)
        archive.writestr("xl/worksheets/sheet1.xml", SHEET)
    return buffer.getvalue()


def test_shipped_lists():
    assert poa_releases() == ["2023", "2024", "2025", "2026"]
    assert is_poa_exempt("Z99.11") and is_poa_exempt("z9911") and not is_poa_exempt("I10")
    assert is_poa_exempt("Q89.81", "2025-10-01") and not is_poa_exempt("Q89.81", date(2025, 9, 30))
    assert is_poa_exempt("Q89.81", "20251001") and not is_poa_exempt("Q89.81", "20250930")
    assert is_poa_exempt("Z99.11", "2016-01-01") and is_poa_exempt("Z99.11", "2030-01-01")
    with pytest.raises(CodeError, match="YYYY-MM-DD"):
        is_poa_exempt("I10", "yesterday")


def test_read_every_form(tmp_path):
    text, sheet, archive = tmp_path / "a.txt", tmp_path / "a.xlsx", tmp_path / "a.zip"
    text.write_text(LIST)
    sheet.write_bytes(workbook())
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("ReadMe.txt", "Description of files")
        file.writestr("Add.txt", LIST[: LIST.index("98178")])
        file.writestr("All.txt", LIST)
    assert read_poa_list(text) == read_poa_list(archive) == ("2027", ["Z99.11", "Z99.2"])
    assert read_poa_list(sheet) == ("2027", ["Z99.11"])
    text.write_text("something else")
    with pytest.raises(DataError, match="POA exempt"):
        read_poa_list(text)
