"""Sentence patterns and paraphrases of descriptions."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.codes import table
from nosology.corpora.simulate import wording
from nosology.corpora.simulate.wording import expand_pattern


def names(pair):
    return [name for part in pair for name in (*part.long, *part.short)]


def test_diagnosis_wordings_reorder_and_abbreviate():
    exact, vague = wording.diagnosis_wordings("Malignant neoplasm of upper lobe, left bronchus or lung")
    assert "malignant neoplasm of upper lobe, left bronchus or lung" in exact.long
    assert any(name.startswith(("cancer of", "ca of", "malignancy of")) for name in names((exact,)))
    assert all("left" not in name for name in names((vague,)))


def test_vague_words_and_encounters_are_dropped():
    exact, _ = wording.diagnosis_wordings("Unspecified fracture of left femur, initial encounter for closed fracture")
    assert "fracture of left femur" in exact.long
    assert "left femur fracture" in exact.long


def test_procedure_wordings_use_the_operation():
    exact, vague = wording.procedure_wordings("Drainage of Left Pleural Cavity, Percutaneous Approach, Diagnostic")
    assert "percutaneous biopsy of left pleural cavity" in exact.long
    assert "pleural cavity biopsy" in vague.long


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_description_has_words(data):
    system = data.draw(st.sampled_from(["icd10cm", "icd10pcs", "icd9proc"]))
    codes = table(system)
    entry = codes[data.draw(st.sampled_from(codes.codes(billable=True)[::97]))]
    make = wording.procedure_wordings if system == "icd10pcs" else wording.diagnosis_wordings
    exact, vague = make(entry.description)
    assert exact and vague
    assert all(name == name.strip() and "  " not in name and "\n" not in name for name in names((exact, vague)))


def test_small_pattern_expands_to_every_choice():
    assert set(expand_pattern("{a|b} c{ d|}")) == {"a c d", "a c", "b c d", "b c"}


def test_nested_choices_expand_and_the_slot_stays():
    sentences = expand_pattern("no {} {seen|found{ on| by} CT}", 20)
    assert set(sentences) == {"no {} seen", "no {} found on CT", "no {} found by CT"}


@given(st.integers(0, 50), st.integers(1, 50))
def test_numbers_lie_within_their_range(low, width):
    for sentence in expand_pattern(f"K of <{low}-{low + width}>"):
        assert low <= int(re.fullmatch(r"K of (\d+)", sentence)[1]) <= low + width


def test_a_pattern_always_gives_the_same_sentences():
    pattern = "{a|b|c|d} {e|f|g|h} <1-100>"
    assert expand_pattern(pattern) == expand_pattern(pattern)
    assert len(expand_pattern(pattern)) == 12
