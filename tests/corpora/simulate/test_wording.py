"""Descriptions in other words."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.codes import table
from nosology.corpora.simulate import wording


def names(pair):
    return [name for part in pair for name in (*part.long, *part.short)]


def test_a_diagnosis_is_turned_round_and_abbreviated():
    exact, vague = wording.diagnosis("Malignant neoplasm of upper lobe, left bronchus or lung")
    assert "malignant neoplasm of upper lobe, left bronchus or lung" in exact.long
    assert any(name.startswith(("cancer of", "ca of", "malignancy of")) for name in names((exact,)))
    assert all("left" not in name for name in names((vague,)))


def test_vague_words_and_encounters_are_dropped():
    exact, _ = wording.diagnosis("Unspecified fracture of left femur, initial encounter for closed fracture")
    assert "fracture of left femur" in exact.long
    assert "left femur fracture" in exact.long


def test_a_procedure_is_said_by_its_operation():
    exact, vague = wording.procedure("Drainage of Left Pleural Cavity, Percutaneous Approach, Diagnostic")
    assert "percutaneous biopsy of left pleural cavity" in exact.long
    assert "pleural cavity biopsy" in vague.long


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_description_has_words(data):
    system = data.draw(st.sampled_from(["icd10cm", "icd10pcs", "icd9proc"]))
    codes = table(system)
    entry = codes[data.draw(st.sampled_from(codes.codes(billable=True)[::97]))]
    make = wording.procedure if system == "icd10pcs" else wording.diagnosis
    exact, vague = make(entry.description)
    assert exact and vague
    assert all(name == name.strip() and "  " not in name and "\n" not in name for name in names((exact, vague)))
