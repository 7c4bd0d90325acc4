"""A note goes in, codes with evidence come out."""

import pytest

import nosology
from nosology.core import CodeError
from nosology.serving.coder import Coder

TEXT = "Known CONGESTIVE  heart failure, feels well. Chronic low back pain."


@pytest.fixture(scope="module")
def coder(small_bundle):
    return nosology.load(small_bundle)


def test_the_contract(coder):
    found = coder.code(TEXT)
    assert {item.code for item in found if item.accepted} == {"I50.9", "M54.5"}
    assert [item.probability for item in found] == sorted((item.probability for item in found), reverse=True)
    first = next(item for item in found if item.code == "I50.9")
    assert first.system == "icd10cm"
    assert first.description == "Heart failure, unspecified"
    assert any("heart failure" in span.text for span in first.evidence)
    for item in found:
        for span in item.evidence:
            assert TEXT[span.start : span.end] == span.text


def test_one_coder_carries_several_systems(coder):
    assert {item.system for item in coder.code(TEXT, top=None)} == {"icd10cm", "icd10pcs", "icd9cm"}


def test_top(coder):
    assert len(coder.code(TEXT, top=2)) == 2


def test_accepted_codes_are_never_cut_off(coder, monkeypatch):
    whole = coder.code(TEXT)
    monkeypatch.setattr("nosology.serving.coder.TOP", 1)
    assert coder.code(TEXT) == [item for item in whole if item.accepted]
    assert len(coder.code(TEXT, top=1)) == 1


def test_an_empty_note_has_no_codes(coder):
    assert coder.code("") == []


def test_many_notes_keep_their_order_and_equal_one_by_one(coder):
    texts = [TEXT, "", "type 2 diabetes"] * 40
    together = list(coder.code_all(texts))
    assert len(together) == len(texts)
    for text, found in zip(texts[:3], together):
        assert [item.code for item in found] == [item.code for item in coder.code(text)]


def test_a_release_translates_and_drops(small_bundle):
    now = {item.code for item in Coder.load(small_bundle, release="2026").code(TEXT) if item.accepted}
    then = {item.code for item in Coder.load(small_bundle, release="2019").code(TEXT) if item.accepted}
    assert now == {"I50.9", "M54.50"}
    assert then == {"I50.9", "M54.5"}


def test_an_unknown_release_is_answered(small_bundle):
    with pytest.raises(CodeError, match=r"release must be one of .*2019.*; got '1999'"):
        Coder.load(small_bundle, release="1999")


def test_a_threshold_replaces_the_tuned_one(small_bundle):
    assert not any(item.accepted for item in Coder.load(small_bundle, threshold=1.0).code("patient seen today"))
    assert all(item.accepted for item in Coder.load(small_bundle, threshold=0.0).code(TEXT))
