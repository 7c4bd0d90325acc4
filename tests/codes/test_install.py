"""FY2027 does not ship: its files are made from excerpts of FY2026, in the forms that NCHS and CMS publish."""

import gzip
import io
import warnings
import zipfile

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.codes import (
    describe,
    drug_codes,
    index_tree,
    is_poa_exempt,
    is_valid,
    neoplasm_codes,
    normalise,
    release_on,
    releases,
    successors,
    table,
)
from nosology.codes.install import install, recognise, remove
from nosology.codes.installed import data_folder, forget_installed, installed_files
from nosology.codes.terms import title_terms
from nosology.core import CodeError, DataError
from tests.codes.test_index_addenda import pdf
from tests.codes.test_poa import workbook

CODES = [
    ("E11", 0, "Type 2 diabetes mellitus"),
    ("E119", 1, "Type 2 diabetes mellitus without complications"),
    ("E11B", 1, "Type 2 diabetes mellitus with wobbling"),
    ("I10", 1, "Essential (primary) hypertension"),
    ("M54", 0, "Dorsalgia"),
    ("M545", 0, "Low back pain"),
    ("M5450", 0, "Low back pain, unspecified"),
    ("M54501", 1, "Low back pain, acute"),
    ("M54502", 1, "Low back pain, chronic"),
]
PCS = [("001", 0, "Bypass"), ("0016070", 1, "Bypass Cerebral Ventricle to Nasopharynx, Open Approach")]
TABULAR = """<ICD10CM.tabular><version>2027</version><chapter><name>4</name><desc>Endocrine diseases (E00-E89)</desc>
<section id="E08-E13"><desc>Diabetes mellitus (E08-E13)</desc>
<diag><name>E11</name><desc>Type 2 diabetes mellitus</desc>
<excludes1><note>gestational diabetes (O24.4-)</note></excludes1>
<diag><name>E11.9</name><desc>Type 2 diabetes mellitus without complications</desc></diag>
<diag><name>E11.B</name><desc>Type 2 diabetes mellitus with wobbling</desc></diag>
</diag></section></chapter><chapter><name>19</name><desc>Injury (S00-T88)</desc>
<section id="S00-S09"><desc>Injuries to the head (S00-S09)</desc><diag><name>S00</name><desc>Superficial injury</desc>
<sevenChrDef><extension char="A">initial encounter</extension><extension char="D">subsequent encounter</extension>
</sevenChrDef></diag></section></chapter></ICD10CM.tabular>"""
INDEX = """<ICD10CM.index><version>2027</version>{head}<letter><title>W</title>
<mainTerm><title>{title}</title>{cells}<code>E11.B</code></mainTerm></letter></ICD10CM.index>"""
PCS_TABLES = """<ICD10PCS.tabular><version>2027</version><pcsTable>
<axis pos="1"><label code="0">Medical and Surgical</label></axis>
<axis pos="2"><label code="0">Central Nervous</label></axis>
<axis pos="3"><label code="1">Bypass</label></axis>
<pcsRow><axis pos="4"><label code="6">Cerebral Ventricle</label></axis>
<axis pos="5"><label code="0">Open</label><label code="3">Percutaneous</label></axis>
<axis pos="6"><label code="Z">No Device</label></axis><axis pos="7"><label code="0">Nasopharynx</label></axis>
</pcsRow></pcsTable></ICD10PCS.tabular>"""
POA = "Order27\tPOAexemptCode\tDescription\r\n1\tI10\tEssential (primary) hypertension\r\n"


def order(codes=CODES) -> str:
    lines = (f"{i:05} {code:7} {flag} {text[:60]:60} {text}" for i, (code, flag, text) in enumerate(codes, 1))
    return "\r\n".join(lines) + "\r\n"


def full_order() -> str:
    """All codes of 2026 with the changes of CODES."""
    codes = table("icd10cm", "2026")
    lines = {name.replace(".", ""): (int(codes.billable(name)), codes.description(name)) for name in codes.codes()}
    lines |= {name: (flag, text) for name, flag, text in CODES}
    return order((name, *line) for name, line in sorted(lines.items()))


def tree(kind: str) -> str:
    cells = "".join(f'<cell col="{column}">E11.B</cell>' for column in range(2, 8))
    heads = {"drugs": "Substance", "neoplasms": "Neoplasm"}
    if kind in heads:
        head = f'<indexHeading><head col="1">{heads[kind]}</head></indexHeading>'
        title = "Neoplasm" if kind == "neoplasms" else "Wobblin"
        text = INDEX.format(head=head, title=title, cells=cells)
        site = f'<term level="1"><title>wobbler</title>{cells}</term>'
        return text.replace("<code>", f"{site}<code>") if kind == "neoplasms" else text
    title = "<title>EXTERNAL CAUSE of INJURIES INDEX</title>" if kind == "external_causes" else ""
    return INDEX.format(head=title, title="Wobbling", cells="")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("NOSOLOGY_DATA", str(tmp_path / "data"))
    forget_installed()
    yield
    monkeypatch.undo()
    forget_installed()


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def code(text):
    return normalise(text, "icd10cm")


def test_an_order_file_makes_a_release(tmp_path, monkeypatch):
    # Of the index for searches, which takes half a minute, the descriptions: they are what an order file brings.
    monkeypatch.setattr("nosology.codes.search._all_terms", title_terms)
    monkeypatch.setattr("nosology.codes.search._past_terms", lambda newest: ())
    assert releases("icd10cm")[-1] == "2026"
    (file,) = install([write(tmp_path, "icd10cm_order_2027.txt", full_order())])
    assert file[:3] == ("icd10cm", "2027", "order")
    assert releases("icd10cm")[-2:] == ("2026", "2027") and release_on("2026-11-16") == "2027"
    assert table("icd10cm").release == "2027" and table("icd10cm").block("E11.B") == "E08-E13"
    assert table("icd10cm")["E11"].excludes1  # the notes are those of the release before
    assert is_valid(code("E11.B"), "2027") and not is_valid(code("E11.B"), "2026")
    assert is_valid(code("M54.5"), "2021") and is_valid(code("M54.50"), "2026")
    assert [item.code for item in successors(code("M54.50"), "2027")] == ["M54.501", "M54.502"]
    assert describe(code("E11.B")) == "Type 2 diabetes mellitus with wobbling"
    assert table("icd10cm").search("wobbling")[0].code == "E11.B"
    remove("2027")
    assert releases("icd10cm")[-1] == "2026" and not is_valid(code("E11.B"), "2026")


def test_the_order_file_decides_which_seventh_characters_exist(tmp_path):
    install([write(tmp_path, "tabular.xml", TABULAR)])
    assert table("icd10cm", "2027").codes(billable=True) == ["E11.9", "E11.B", "S00.XXXA", "S00.XXXD"]
    injury = ("S00XXXA", 1, "Superficial injury, initial encounter")
    install([write(tmp_path, "order_2027.txt", order([*CODES[:3], injury]))])
    assert {file.kind for file in installed_files()} == {"tabular", "order"}
    assert table("icd10cm", "2027").codes(billable=True) == ["E11.9", "E11.B", "S00.XXXA"]


def test_addenda_change_the_release_before(tmp_path):
    changes = [("Delete", 1, "I10", "Essential (primary) hypertension"), ("Add", 0, "I10", "Essential hypertension")]
    changes += [("Add", 1, "I101", "Wobbling hypertension"), ("Add", 1, "I109", "Essential hypertension, unspecified")]
    lines = "".join(f"{action + ':':12} {flag} {name:7} {text:60} {text}\n" for action, flag, name, text in changes)
    (file,) = install([write(tmp_path, "icd10cm-order-addenda-2027.txt", lines)])
    assert file.kind == "order_addenda"
    new = table("icd10cm", "2027")
    assert new.children("I10") == ["I10.1", "I10.9"] and not new.billable("I10") and new.billable("A00.0")
    assert len(new) == len(table("icd10cm", "2026")) + 2


def test_trees_and_poa(tmp_path):
    files = [write(tmp_path, f"{kind}.xml", tree(kind)) for kind in ("index", "drugs", "neoplasms", "external_causes")]
    files.append(write(tmp_path, "poa.txt", POA))
    assert {file.kind for file in install(files)} == {"index", "drugs", "neoplasms", "external_causes", "poa"}
    assert index_tree().release == "2027" and index_tree().find("wobbling").code == "E11.B"
    assert drug_codes("wobblin").adverse_effect == neoplasm_codes("wobbler").benign == "E11.B"
    assert is_poa_exempt("I10", "2026-10-01") and not is_poa_exempt("I10", "2026-09-30")
    assert releases("icd10cm")[-1] == "2026"  # none of these files defines codes


def test_addenda_of_the_index(tmp_path):
    lines = [("2027", "Addenda"), ("No Change", "W"), ("Add", "Wobbling, chronic E11.9")]
    (file,) = install([write(tmp_path, "changes.pdf", pdf(lines))])
    assert file[:3] == ("icd10cm", "2027", "index_addenda")
    assert index_tree().release == "2027" and index_tree().find("Wobbling, chronic").code == "E11.9"
    assert index_tree().find("Diabetes").code == "E11.9"


def test_pcs(tmp_path):
    install([write(tmp_path, "tables.xml", PCS_TABLES)])
    assert table("icd10pcs").release == "2027" and table("icd10pcs").codes(billable=True) == ["00160Z0", "00163Z0"]
    assert (
        describe(normalise("00163Z0", "icd10pcs")) == "Bypass of Cerebral Ventricle, Nasopharynx, Percutaneous Approach"
    )
    install([write(tmp_path, "icd10pcs_order_2027.txt", order(PCS))])
    assert table("icd10pcs").codes(billable=True) == ["0016070"] and release_on("2027-01-01", "icd10pcs") == "2027"


def archive(members) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def sheet_of(title: str) -> bytes:
    """A spreadsheet with one cell."""
    cell = f'<row><c r="A1" t="inlineStr"><is><t>{title}</t></is></c></row>'
    namespace = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    sheet = f'<worksheet xmlns="{namespace}"><sheetData>{cell}</sheetData></worksheet>'
    return archive({"[Content_Types].xml": "<Types/>", "xl/worksheets/sheet1.xml": sheet})


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "x.zip",
            archive({"icd10cm-order-2027.txt": order(), "codes-2027.txt": "A000    Cholera", "r.pdf": b"%PDF"}),
            "order",
        ),
        ("x.gz", gzip.compress(TABULAR.encode(), mtime=0), "tabular"),
        ("x.xlsx", workbook(), "poa"),
        ("x.zip", archive({"All.xlsx": workbook(), "ReadMe.txt": "files"}), "poa"),
        ("FY27.txt", order(PCS).encode(), "order"),
        ("x.xml", b"\xef\xbb\xbf" + TABULAR.encode(), "tabular"),
    ],
    ids=["zip", "gzip", "spreadsheet", "zip of spreadsheet", "pcs order", "byte-order mark"],
)
def test_files_are_recognised_by_content(name, content, expected):
    (file,) = recognise(content, name)
    assert (file.kind, file.release) == (expected, "2027")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be an order file"),
        (b"hello", "must be an order file"),
        (b"<a/>", "another kind"),
        (b"<a", "well-formed"),
        (b"PK\x03\x04", "damaged"),
        (b"\x1f\x8bxx", "damaged"),
        (gzip.compress(b"code", mtime=0)[:10] + b"\xff" * 20, "damaged"),
        (b"%PDF-1.7", "PDF"),
        (b"A000    Cholera due to Vibrio\n", "order file of the same release"),
        (order().encode(), "--release"),
        (archive({"a.txt": "nothing"}), "no file that can be installed"),
        (sheet_of("Current code assignment"), "spreadsheet of another kind; it must be an order file"),
    ],
    ids=[
        "empty",
        "text",
        "xml",
        "bad xml",
        "bad zip",
        "bad gzip",
        "other gzip",
        "bad pdf",
        "code list",
        "year",
        "empty zip",
        "other spreadsheet",
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        install([write(tmp_path, "file", content)])
    assert installed_files() == () and not (data_folder() / "codes").exists()


def test_all_files_or_none(tmp_path):
    good, bad = write(tmp_path, "order_2027.txt", order()), write(tmp_path, "other", b"hello")
    with pytest.raises(DataError):
        install([good, bad])
    assert installed_files() == ()
    install([good])
    empty = write(tmp_path, "tabular.xml", "<ICD10CM.tabular><version>2027</version></ICD10CM.tabular>")
    with pytest.raises(DataError, match="no chapter"):
        install([write(tmp_path, "poa.txt", POA), empty])
    assert [file.kind for file in installed_files()] == ["order"] and is_valid(code("E11.B"), "2027")


def test_wrong_releases(tmp_path):
    path = write(tmp_path, "tabular.xml", TABULAR)
    with pytest.raises(DataError, match="of release 2027, not 2028"):
        install([path], "2028")
    with pytest.raises(CodeError, match="year"):
        install([path], "27")
    with pytest.raises(CodeError, match="not installed; installed: none"):
        remove("2027")


def test_command(tmp_path):
    run = CliRunner().invoke
    path = write(tmp_path, "order.txt", order())
    result = run(app, ["codes", "install", str(path), "--release", "2027"])
    assert result.exit_code == 0 and "icd10cm 2027  order file" in result.output
    assert "order file" in run(app, ["codes", "install", "--list"]).output
    assert "wobbling" in run(app, ["codes", "show", "E11.B", "--date", "2026-10-01"]).output
    assert run(app, ["codes", "add-index", str(write(tmp_path, "index.xml", tree("index")))]).exit_code == 0
    assert "removed" in run(app, ["codes", "install", "--remove", "2027"]).output
    assert "nothing is installed" in run(app, ["codes", "install", "--list"]).output
    assert run(app, ["codes", "install"]).exit_code != 0


def test_a_day_after_the_newest_release_warns_once():
    with pytest.warns(UserWarning, match="icd10cm release 2027 is in force but not installed; 2026 is used"):
        assert release_on("2026-10-01") == "2026"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert release_on("2026-11-16") == release_on("2026-09-30") == "2026"
