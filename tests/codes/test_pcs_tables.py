"""The ICD-10-PCS tables: every combination of a row is a code, and newer files take precedence."""

import itertools

import pytest

from nosology.codes import table
from nosology.codes.install import install
from nosology.codes.installed import forget_installed
from nosology.codes.pcs_tables import PcsTables, pcs_tables, pcs_terms

TABLES = """<ICD10PCS.tabular><version>2027</version><pcsTable>
<axis pos="1"><label code="0">Medical and Surgical</label></axis>
<axis pos="2"><label code="D">Gastrointestinal System</label></axis>
<axis pos="3"><label code="T">Resection</label></axis>
<pcsRow><axis pos="4"><label code="J">Appendix</label></axis>
<axis pos="5"><label code="0">Open</label><label code="4">Percutaneous Endoscopic</label></axis>
<axis pos="6"><label code="Z">No Device</label></axis><axis pos="7"><label code="Z">No Qualifier</label></axis>
</pcsRow></pcsTable></ICD10PCS.tabular>"""
DEFINITIONS = """<ICD10PCS.definitions><version>2027</version><section code="0"><axis pos="4"><terms>
<title>Appendix</title><includes>Vermiform process</includes></terms></axis></section></ICD10PCS.definitions>"""
INDEX = """<ICD10PCS.index><version>2027</version><letter><mainTerm><title>Wobblectomy</title>
<see>Resection, Appendix<codes>0DTJ</codes></see></mainTerm></letter></ICD10PCS.index>"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("NOSOLOGY_DATA", str(tmp_path / "data"))
    forget_installed()
    yield tmp_path
    monkeypatch.undo()
    forget_installed()


def test_rows_give_the_codes_of_the_release():
    codes = [
        row.table + "".join(value.character for value in values)
        for row in pcs_tables("2026").rows
        for values in itertools.product(*row.values)
    ]
    assert len(codes) == len(set(codes)) == 79115
    official = table("icd10pcs", "2026")
    # the tables are of October 2025, the codes of April 2026
    assert {code for code in codes if not official.billable(code)} == {"30233AZ", "30243AZ"}


def test_json_round_trip():
    tables = pcs_tables()
    again = PcsTables.from_json(tables.to_json())
    assert (again.release, again.rows, again.operations) == (tables.release, tables.rows, tables.operations)
    assert tables.operations["0DT"] == "Resection" and tables.of("0DT") and not tables.of("0DZ")


def test_keys_and_names():
    terms = pcs_terms()
    assert "Neck of femur" in terms.body_parts["Upper Femur, Left"]
    assert "Autograft" in terms.devices["Autologous Tissue Substitute"]
    assert terms.names["nephropexy"] == ("0TQ", "0TS") and "suspension" not in terms.names


def test_installed_files_take_precedence(data):
    paths = []
    for name, content in (("tables", TABLES), ("definitions", DEFINITIONS), ("index", INDEX)):
        paths.append(data / f"{name}.xml")
        paths[-1].write_text(content)
    assert {file.kind for file in install(paths)} == {"tables", "definitions", "index"}
    assert pcs_tables().release == "2027" and len(pcs_tables().rows) == 1
    assert pcs_tables("2026").release == pcs_tables("2019").release == "2026"
    assert pcs_terms().body_parts["Appendix"] == ("Vermiform process",)
    assert pcs_terms().names == {"wobblectomy": ("0DTJ",)}
    assert table("icd10pcs").codes(billable=True) == ["0DTJ0ZZ", "0DTJ4ZZ"]
