"""Files that users download: the order file and the alphabetic index."""

import pytest

from nosology.codes import diff, table
from nosology.codes.alphabetic_index import read_index
from nosology.codes.lookup import read_order
from nosology.core import Code, DataError

INDEX = """<?xml version="1.0"?>
<ICD10CM.index><letter><title>F</title>
  <mainTerm><title>Failure, failed</title>
    <term level="1"><title>heart <nemod>(acute) (sudden)</nemod></title><code>I50.9</code>
      <term level="2"><title>with edema</title><code>I50.-</code><manif>H36</manif></term></term>
    <term level="1"><title>renal</title><see>Failure, kidney</see></term>
  </mainTerm>
  <mainTerm><title>Febris</title><seeAlso>Fever</seeAlso><code>R50.9</code></mainTerm>
</letter></ICD10CM.index>"""


def order_line(number: int, code: str, billable: bool, title: str) -> str:
    return f"{number:05d} {code:7} {int(billable)} {title[:60]:60} {title}"


def order_text(system: str, release: str | None = None) -> str:
    found = table(system, release)
    codes = [code for code in found.codes() if system != "icd10pcs" or len(code) in (3, 7)]
    rows = [(code.replace(".", ""), found.billable(code), found.description(code)) for code in codes]
    return "\n".join(order_line(number, *row) for number, row in enumerate(rows, 1)) + "\n"


def test_an_order_file_gives_the_table_it_was_made_from(tmp_path):
    path = tmp_path / "icd10cm_order_2021.txt"
    path.write_text(order_text("icd10cm", "2021"), encoding="utf-8")
    read, past = read_order(path), table("icd10cm", "2021")
    assert read.release == "2021"
    assert read.codes(billable=True) == past.codes(billable=True)
    assert [read.parent(code) for code in read.codes() if "." in code] == [
        past.parent(code) for code in past.codes() if "." in code
    ]
    changed = diff(past, read)
    assert changed.added == changed.removed == changed.reworded == []
    assert "M54.50" in diff(read, table("icd10cm", "2022")).added


def test_an_order_file_of_procedures(tmp_path):
    path = tmp_path / "icd10pcs_order_2024.txt"
    path.write_text(order_text("icd10pcs"), encoding="utf-8")
    assert read_order(path).codes() == table("icd10pcs").codes()


def test_no_line_of_an_order_file_is_lost(tmp_path):
    """A later release has categories beyond the blocks and chapters known now, and a code may lack its category."""
    path = tmp_path / "icd10cm_order_2030.txt"
    codes = ["A00", "A000", "E999", "Q99Z", "U99", "Z9Z"]
    path.write_text("\n".join(order_line(number, code, True, "Thing") for number, code in enumerate(codes, 1)))
    read = read_order(path)
    assert sorted(code.replace(".", "") for code in read.codes()) == codes
    assert [read.chapter(code) for code in ("E99.9", "Q99.Z", "U99", "Z9Z")] == ["4", "17", "22", "21"]
    assert (read.category("A00.0"), read.kind("U99")) == ("A00", "category")


@pytest.mark.parametrize("text", ["", "A000 Cholera\n", "00001 !!!     1 x\n"])
def test_another_file_is_not_taken_for_an_order_file(tmp_path, text):
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=r"list\.txt"):
        read_order(path)


def test_the_index(tmp_path):
    path = tmp_path / "index.xml"
    path.write_text(INDEX)
    terms = {term.path: term for term in read_index(path)}
    heart = ("Failure, failed", "heart (acute) (sudden)")
    assert terms[heart].codes == (Code("icd10cm", "I50.9"),)
    assert terms[(*heart, "with edema")].codes == (Code("icd10cm", "I50"), Code("icd10cm", "H36"))
    assert terms["Failure, failed", "renal"].see == "Failure, kidney"
    assert terms[("Febris",)].see_also == "Fever"
    path.write_text("<ICD10CM.tabular/>")
    with pytest.raises(DataError, match="not an index"):
        list(read_index(path))
