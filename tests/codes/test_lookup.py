"""Descriptions of labels, and tables of official order files."""

import pytest

from nosology.codes import describe, diff, table
from nosology.codes.lookup import label_description
from nosology.codes.order_file import read_order
from nosology.core import Code, DataError


def test_label_description_of_a_known_code_is_its_description():
    for system in ("icd10cm", "icd10pcs", "icd9cm", "icd9proc"):
        for code in table(system).codes()[:50]:
            assert label_description(Code(system, code)) == describe(Code(system, code))


def test_label_description_of_an_unknown_code_is_that_of_its_longest_known_prefix():
    assert label_description(Code("icd10cm", "I50.99")) == "Heart failure, unspecified"
    assert label_description(Code("icd10cm", "I50.77")) == describe(Code("icd10cm", "I50"))
    assert label_description(Code("icd9cm", "428.99")) == describe(Code("icd9cm", "428.9"))
    assert label_description(Code("icd10pcs", "0DTJ4Z1")) == "Resection of Appendix"
    assert label_description(Code("icd9cm", "X")) == "X"


def test_expand_headers_describes_a_header_by_its_first_billable_codes():
    assert label_description(Code("icd9cm", "780.6"), expand_headers=True).startswith("Fever, unspecified; ")


@pytest.mark.parametrize("code", [("icd9cm", "786.2"), ("icd10cm", "J18.9"), ("icd9cm", "999.999")])
def test_expand_headers_keeps_other_descriptions(code):
    assert label_description(Code(*code), expand_headers=True) == label_description(Code(*code))


def order_line(number: int, code: str, billable: bool, title: str) -> str:
    return f"{number:05d} {code:7} {int(billable)} {title[:60]:60} {title}"


def order_text(system: str, release: str | None = None) -> str:
    code_table = table(system, release)
    codes = [code for code in code_table.codes() if system != "icd10pcs" or len(code) in (3, 7)]
    rows = [(code.replace(".", ""), code_table.billable(code), code_table.description(code)) for code in codes]
    return "\n".join(order_line(number, *row) for number, row in enumerate(rows, 1)) + "\n"


def test_read_order_returns_the_table_of_the_file(tmp_path):
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


def test_read_order_keeps_all_lines(tmp_path):
    """A later release has categories beyond the blocks and chapters known now, and a code may lack its category."""
    path = tmp_path / "icd10cm_order_2030.txt"
    codes = ["A00", "A000", "E999", "Q99Z", "U99", "Z9Z"]
    path.write_text("\n".join(order_line(number, code, True, "Thing") for number, code in enumerate(codes, 1)))
    read = read_order(path)
    assert sorted(code.replace(".", "") for code in read.codes()) == codes
    assert [read.chapter(code) for code in ("E99.9", "Q99.Z", "U99", "Z9Z")] == ["4", "17", "22", "21"]
    assert (read.category("A00.0"), read.kind("U99")) == ("A00", "category")


@pytest.mark.parametrize("text", ["", "A000 Cholera\n", "00001 !!!     1 x\n"])
def test_read_order_rejects_other_files(tmp_path, text):
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=r"list\.txt"):
        read_order(path)
