"""Weights of CMS Table 5, in the forms in which CMS publishes it."""

import io
import zipfile

import pytest

from nosology.claims.drg_weights import DrgWeight, load_drg_weights, read_drg_weights
from nosology.core import ConfigError, DataError

TEXT = (
    '"TABLE 5.\u2014LIST OF MEDICARE SEVERITY DIAGNOSIS-RELATED GROUPS (MS-DRGS), RELATIVE WEIGHTING FACTORS, \n'
    'AND GEOMETRIC AND ARITHMETIC MEAN LENGTH OF STAY\u2014FY 2026 Final Rule"\t\t\t\t\t\t\t\t\t\r\n'
    "MS-DRG \tFY 2026 Final Post-Acute DRG\tFY 2026 Final Special Pay DRG\tMDC\tTYPE\tMS-DRG Title\t"
    "Weights - Before Cap\tWeights - 10% Cap Applied \tGeometric mean LOS\tArithmetic mean LOS\r\n"
    "010\tNo\tNo\tPRE\tSURG\tPANCREAS TRANSPLANT\t3.0699\t7.1757\t5.9\t6.0\r\n"
    "291\tYes\tNo\t05\tMED\tHEART FAILURE AND SHOCK WITH MCC\t1.2838\t1.2838\t3.8\t5.0\r\n"
    "999\tNo\tNo\t \t**\tUNGROUPABLE\t.\t.\t.\t\r\n"
    "\t\t\t\t\t\t\t\t\t\r\n"
)
CSV = (
    "TABLE 5: MS-DRGs FY 2025 Final Rule and Correction Notice,,,,,,,,\n"
    "MS-DRG,FY 2025 Final Rule Post-Acute DRG,FY 2025 Final Rule Special Pay DRG,MDC,TYPE,MS-DRG Title,Weights,"
    "Geometric mean LOS,Arithmetic mean LOS\n"
    '003,Yes,No,PRE,SURG,"ECMO, WITH MAJOR O.R. PROCEDURES",19.5,22.1,\n'
)


def sheet(rows: list[list[str]]) -> bytes:
    """A workbook without the empty cells, as spreadsheets are stored."""
    cells = [
        "".join(
            f'<c r="{chr(65 + at)}{number}" t="inlineStr"><is><t>{value}</t></is></c>'
            for at, value in enumerate(row)
            if value.strip()
        )
        for number, row in enumerate(rows, 1)
    ]
    data = "".join(f"<row>{row}</row>" for row in cells)
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr(
            "xl/worksheets/sheet1.xml", f'<worksheet xmlns="{space}"><sheetData>{data}</sheetData></worksheet>'
        )
    return buffer.getvalue()


def test_every_form_of_table_5(tmp_path):
    text, csv, workbook = tmp_path / "a.txt", tmp_path / "a.csv", tmp_path / "a.xlsx"
    text.write_bytes(TEXT.encode("cp1252"))
    csv.write_text(CSV, encoding="utf-8-sig")
    title, header, *rows = [line.split("\t") for line in TEXT.replace(", \n", ", ").splitlines()]
    workbook.write_bytes(sheet([title[:1], header, *rows]))
    capped = DrgWeight(7.1757, 5.9, 6.0)  # the weight in force, not the one before the cap
    assert read_drg_weights(text) == (2026, {10: capped, 291: DrgWeight(1.2838, 3.8, 5.0)})
    assert read_drg_weights(workbook) == read_drg_weights(text)
    assert read_drg_weights(csv) == (2025, {3: DrgWeight(19.5, 22.1, None)})
    assert load_drg_weights([text, csv]).keys() == {2025, 2026}
    with pytest.raises(ConfigError, match=r"one file per fiscal year; got two of FY 2026"):
        load_drg_weights([text, workbook])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("MS-DRG,", "DRG,", "must be CMS Table 5 with a column MS-DRG"),
        ("FY 2025", "year", "must name one fiscal year"),
        ("Weights", "Points", "must have one column Weights"),
        ("19.5", "-1", "row 3: a weight must lie between 0 and 100"),
        ("19.5", ".", "has no weights"),
    ],
)
def test_another_file_is_refused(tmp_path, old, new, message):
    path = tmp_path / "a.csv"
    path.write_text(CSV.replace(old, new))
    with pytest.raises(DataError, match=message):
        read_drg_weights(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_drg_weights(tmp_path / "none.txt")


def test_a_table_that_cannot_be_read_is_a_sentence(tmp_path, default_field_limit):
    path = tmp_path / "table5"
    refers = '<row><c t="s" r="A1"><v>{}</v></c></row>'
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    books = [f'<worksheet xmlns="{space}">{refers.format(value)}</worksheet>' for value in ("99", "x")]
    contents = [b"x" * 200_000, CSV.encode() + b'"' + b"x" * 200_000, b"PK" + b"x" * 500]
    for book in books:
        with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("xl/worksheets/sheet1.xml", book)
        contents.append(file.getvalue())
    damaged = bytearray(contents[-1])
    start = damaged.index(b"sheet1.xml") + len("sheet1.xml")
    damaged[start : start + 20] = b"\xff" * 20  # of the compressed bytes
    for content in (*contents, bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"must be CMS Table 5|the spreadsheet cannot be read"):
            read_drg_weights(path)
