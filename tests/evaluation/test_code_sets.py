from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.core import Code, ConfigError, DataError
from nosology.evaluation.measure import CodeSet

CODES = [Code("icd10cm", f"A0{i}") for i in range(3)] + [Code("icd9cm", "001")]
NOTES = [[CODES[0], CODES[1]]] * 9 + [[CODES[1]], [CODES[3]], []]  # 9, 10, 0 and 1 notes


def test_ten_notes_are_frequent_and_nine_are_rare():
    assert CodeSet.of("frequent", NOTES).codes == {CODES[1]}
    assert CodeSet.of("rare", NOTES).codes == {CODES[0], CODES[3]}
    assert CodeSet.of("full", NOTES).codes == {CODES[0], CODES[1], CODES[3]}


def test_a_code_given_twice_in_a_note_counts_once():
    assert CodeSet.of("rare", [[CODES[0]] * 2] * 5).codes == {CODES[0]}


@given(st.lists(st.lists(st.sampled_from(CODES), max_size=4), max_size=40).filter(any))
def test_frequent_and_rare_share_the_full_set(notes):
    sets = {}
    for name in ("full", "frequent", "rare"):
        try:
            sets[name] = CodeSet.of(name, notes).codes
        except DataError:
            sets[name] = frozenset()
    assert sets["frequent"] | sets["rare"] == sets["full"] == {code for codes in notes for code in codes}
    assert not sets["frequent"] & sets["rare"]


def test_notes_without_a_rare_code_are_left_out_of_rare_alone():
    rare = CodeSet.of("rare", NOTES)
    rows, gold = rare.narrow(NOTES)
    assert rows == [*range(9), 10]
    assert gold == [[CODES[0]]] * 9 + [[CODES[3]]]
    rows, gold = CodeSet.of("frequent", NOTES).narrow(NOTES)
    assert rows == list(range(12))
    assert gold[-2:] == [[], []]


def test_systems_narrow():
    rare = CodeSet.of("rare", NOTES).of_systems({"icd9cm"})
    assert rare.codes == {CODES[3]}
    assert rare.narrow(NOTES)[0] == [10]


def test_given_codes_and_wrong_names():
    assert CodeSet.of([("icd10cm", "A00")], NOTES).codes == {CODES[0]}
    with pytest.raises(ConfigError, match="codes must be one of full, frequent, rare, known; got 'seldom'"):
        CodeSet.of("seldom", NOTES)
    with pytest.raises(DataError, match="no frequent codes"):
        CodeSet.of("frequent", [[CODES[0]]])


def test_its_name_says_what_is_meant():
    assert str(CodeSet.of("rare", NOTES)) == "rare (under 10): 2 codes"
