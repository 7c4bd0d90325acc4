"""Suggested codes and evidence of a note."""

import numpy as np
import pytest

import nosology
from nosology.core import Code, CodeError, ConfigError
from nosology.core.label_space import LabelSpace
from nosology.evaluation.decision import Decision
from nosology.models.bundle import Bundle
from nosology.serving.coder import Coder, _descending

TEXT = "Known CONGESTIVE  heart failure, feels well. Chronic low back pain."


@pytest.fixture(scope="module")
def coder(small_bundle):
    return nosology.load(small_bundle)


def test_suggestions_are_sorted_and_have_evidence(coder):
    suggestions = coder.code(TEXT)
    assert {item.code for item in suggestions if item.accepted} == {"I50.9", "M54.5"}
    assert [item.probability for item in suggestions] == sorted(
        (item.probability for item in suggestions), reverse=True
    )
    first = next(item for item in suggestions if item.code == "I50.9")
    assert first.system == "icd10cm"
    assert first.description == "Heart failure, unspecified"
    assert any("heart failure" in span.text for span in first.evidence)
    for item in suggestions:
        for span in item.evidence:
            assert TEXT[span.start : span.end] == span.text


def test_a_coder_suggests_codes_of_several_systems(coder):
    assert {item.system for item in coder.code(TEXT, top=None)} == {"icd10cm", "icd10pcs", "icd9cm"}


def test_top_limits_the_number_of_suggestions(coder):
    assert len(coder.code(TEXT, top=2)) == 2


def test_accepted_codes_are_never_cut_off(coder, monkeypatch):
    suggestions = coder.code(TEXT)
    monkeypatch.setattr("nosology.serving.coder.TOP", 1)
    assert coder.code(TEXT) == [item for item in suggestions if item.accepted]
    assert len(coder.code(TEXT, top=1)) == 1


@pytest.mark.parametrize("first", [1, 3, 20, 100])
def test_codes_are_in_descending_order_of_probability_and_equal_ones_in_order(first):
    rng = np.random.default_rng(0)
    probabilities = rng.integers(0, 6, 60) / 10 * (rng.random(60) < 0.5)
    expected = sorted(np.flatnonzero(probabilities).tolist(), key=lambda column: (-probabilities[column], column))
    assert list(_descending(probabilities, first)) == expected


@pytest.mark.parametrize("note", [None, b"abc", ["abc"]])
def test_what_is_no_note_is_refused(coder, note):
    with pytest.raises(ConfigError, match=rf"a note must be a text or a Note; got {type(note).__name__}"):
        coder.code(note)


@pytest.mark.parametrize("top", [0, -1])
def test_fewer_than_one_suggestion_are_refused(coder, top):
    with pytest.raises(ConfigError, match=f"top must be at least 1; got {top}"):
        coder.code(TEXT, top=top)


def test_an_empty_note_has_no_codes(coder):
    assert coder.code("") == []


def test_batches_give_the_suggestions_of_single_notes_in_order(coder):
    texts = [TEXT, "", "type 2 diabetes"] * 40
    together = list(coder.code_all(texts))
    assert len(together) == len(texts)
    for text, suggestions in zip(texts[:3], together):
        assert [item.code for item in suggestions] == [item.code for item in coder.code(text)]


def test_a_release_translates_codes_and_drops_unknown_ones(small_bundle):
    now = {item.code for item in Coder.load(small_bundle, release="2026").code(TEXT) if item.accepted}
    then = {item.code for item in Coder.load(small_bundle, release="2019").code(TEXT) if item.accepted}
    assert now == {"I50.9", "M54.50"}
    assert then == {"I50.9", "M54.5"}


def test_an_unknown_release_is_refused(small_bundle):
    with pytest.raises(CodeError, match=r"release must be one of .*2019.*; got '1999'"):
        Coder.load(small_bundle, release="1999")


def test_a_threshold_replaces_the_tuned_one(small_bundle):
    assert not any(item.accepted for item in Coder.load(small_bundle, threshold=1.0).code("patient seen today"))
    assert all(item.accepted for item in Coder.load(small_bundle, threshold=0.0).code(TEXT))


def test_systems_restrict_suggestions(small_bundle):
    everything = Coder.load(small_bundle).code(TEXT)
    narrow = Coder.load(small_bundle, systems=["icd9cm", "icd10pcs"]).code(TEXT)
    assert narrow == [item for item in everything if item.system in ("icd9cm", "icd10pcs")]
    with pytest.raises(ConfigError, match=r"system must be one of icd9cm, .*; got icd11"):
        Coder.load(small_bundle, systems=["icd11"])
    with pytest.raises(ConfigError, match=r"system must be one that the coder knows: .*; got icd9proc"):
        Coder.load(small_bundle, systems=["icd9proc"])


def test_a_linear_coder_refuses_a_list_of_codes(small_bundle):
    with pytest.raises(ConfigError, match="kind linear: it knows only the codes it was trained on"):
        Coder.load(small_bundle, codes=[(Code("icd10cm", "I50.9"), "Heart failure")])


HEART9, HEART10, PAIN = Code("icd9cm", "428.0"), Code("icd10cm", "I50.9"), Code("icd10pcs", "0DTJ4ZZ")


class ByDescription:
    """A coder that reads descriptions: a code is more probable the more of its words are in the note."""

    kind, within_versions = "fake", True

    def __init__(self, codes):
        self.labels = LabelSpace(code for code, _ in codes)
        self.descriptions = [text for _, text in codes]
        self.texts = [text.lower().split() for text in self.descriptions]
        self.train_counts = np.zeros(len(codes), dtype=np.int64)

    def probabilities(self, notes):
        texts = [note.text for note in notes]
        return np.array([[0.9 * np.mean([w in text.lower() for w in words]) for words in self.texts] for text in texts])

    def evidence(self, note, labels, limit=5):
        return [[] for _ in labels]

    def with_codes(self, codes):
        return ByDescription(codes)

    def unreadable_codes(self):
        return []


@pytest.fixture
def bundle():
    model = ByDescription([(HEART9, "heart failure"), (HEART10, "heart failure"), (PAIN, "chronic pain")])
    return Bundle(model, Decision(0.5), {}, {})


def suggested_codes(coder):
    return {Code(item.system, item.code) for item in coder.code(TEXT)}


def test_of_several_versions_the_newest_is_suggested(bundle):
    assert suggested_codes(Coder(bundle)) == {HEART10, PAIN}
    assert suggested_codes(Coder(bundle, systems=["icd9cm"])) == {HEART9}
    assert suggested_codes(Coder(bundle, systems=["icd9cm", "icd10cm"])) == {HEART9, HEART10}


def test_a_coder_of_one_old_version_suggests_it(bundle):
    alone = Bundle(bundle.model.with_codes([(HEART9, "heart failure")]), bundle.decision, {}, {})
    assert suggested_codes(Coder(alone)) == {HEART9}


def test_codes_of_the_user_replace_those_of_training(bundle, tmp_path):
    new = Code("icd10cm", "I50.77")
    codes = [(new, "Heart failure of next year"), (HEART9, "congestive")]
    coder = Coder(bundle, codes=codes)
    assert suggested_codes(coder) == {new, HEART9}  # the user has chosen: no version is left out
    assert {item.description for item in coder.code(TEXT)} == {"Heart failure of next year", "congestive"}
    assert suggested_codes(Coder(bundle, codes=codes, systems=["icd10cm"])) == {new}
    dated = Coder(bundle, "2026", codes=[(HEART10, "my heart")])
    assert [item.description for item in dated.code(TEXT)] == ["Heart failure, unspecified"]
    assert suggested_codes(Coder(bundle)) == {HEART10, PAIN}


def test_codes_may_come_from_a_file(bundle, tmp_path, monkeypatch):
    path = tmp_path / "my_codes.csv"
    path.write_text("code,description\nI50.77,heart\n")
    monkeypatch.setattr(Bundle, "load", lambda folder: bundle)
    assert suggested_codes(Coder.load("anywhere", codes=path)) == {Code("icd10cm", "I50.77")}
