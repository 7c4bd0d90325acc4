"""The tagger of evidence words."""

import numpy as np

from nosology.core import Code, Evidence, Note
from nosology.models.lexicon.learned_phrases import learn_from_evidence, note_evidence
from nosology.models.lexicon.scorers import TrainedScorer
from nosology.models.lexicon.tagger import TAGS, Tagger
from nosology.models.lexicon.trees import TreeEnsemble, Trees
from nosology.text.phrases import TokenizedNote

CODE = Code("icd10cm", "R69")
ILLS = ["gribblitis", "wobblitis", "snarkitis", "bandersnatchitis", "jubjubitis", "toveitis"]


def coded(phrase, i, after=" was seen today, and he went home."):
    text = f"He came with {phrase}{after}"
    start = text.index(phrase)
    return Note(f"n{i}", text, codes=(CODE,), evidence=(Evidence(CODE, start, start + len(phrase)),))


NOTES = [coded(f"acute {ill}", i) for i, ill in enumerate(ILLS * 4)]
SPANS = [note.evidence for note in NOTES]


def tag(tagger, text):
    note = TokenizedNote.from_text(text)
    return note.words, dict(zip(TAGS, tagger.probabilities(note, text)))


def test_tags_a_new_word_by_its_ending_and_neighbours():
    words, tags = tag(Tagger.fit(NOTES, SPANS), "He came with acute frumiositis was seen today, and he went home.")
    new = words.index("frumiositis")
    assert tags["inside"][new] > 0.5 > tags["inside"][words.index("home")]
    assert tags["begin"].argmax() == new - 1 and tags["end"].argmax() == new


def test_probabilities_are_reproducible():
    tagger = Tagger.fit(NOTES, SPANS)
    for text in ("", "¿Qué?", NOTES[0].text):
        tags = tagger.probabilities(TokenizedNote.from_text(text), text)
        assert tags.shape == (len(TAGS), len(TokenizedNote.from_text(text).words)) and ((tags >= 0) & (tags <= 1)).all()
        np.testing.assert_array_equal(tags, Tagger.fit(NOTES, SPANS).probabilities(TokenizedNote.from_text(text), text))


def test_fit_returns_none_without_evidence():
    assert Tagger.fit(NOTES, [()] * len(NOTES)) is None


def test_words_between_parts_of_discontinuous_evidence_are_outside():
    text = "Pain, he said, of the knee."
    item = Evidence(CODE, 0, text.index("."), extra={"spans": [(0, 4), (text.index("knee"), text.index("."))]})
    notes = [Note(f"p{i}", text, codes=(CODE,), evidence=(item,)) for i in range(20)]
    words, tags = tag(Tagger.fit(notes, [note.evidence for note in notes]), text)
    assert [word for word, p in zip(words, tags["inside"]) if p > 0.5] == ["pain", "knee"]


def test_stored_tagger_is_the_same():
    learned = learn_from_evidence([note_evidence(note, ["icd10cm"], True) for note in NOTES], ["icd10cm"], 2)
    scorer = TrainedScorer(learned, TreeEnsemble.constant(0.5), Trees.constant(0.5), 0.1)
    again = TrainedScorer.from_stored(scorer.arrays(), scorer.to_json()).learned
    np.testing.assert_array_equal(again.tagger.weights, learned.tagger.weights)
    assert tag(again.tagger, NOTES[0].text)[0] == tag(learned.tagger, NOTES[0].text)[0]
