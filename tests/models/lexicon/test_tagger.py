"""Words of evidence told by their neighbours and letters."""

import numpy as np

from nosology.core import Code, Evidence, Note
from nosology.models.lexicon.learned_phrases import learn_from_evidence
from nosology.models.lexicon.tagger import TAGS, Tagger
from nosology.models.lexicon.trained_scorer import TrainedScorer
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


def told(tagger, text):
    reading = TokenizedNote.from_text(text)
    return reading.words, dict(zip(TAGS, tagger.probabilities(reading, text)))


def test_a_word_never_seen_is_known_by_its_ending_and_its_place():
    words, found = told(Tagger.fit(NOTES, SPANS), "He came with acute frumiositis was seen today, and he went home.")
    new = words.index("frumiositis")
    assert found["inside"][new] > 0.5 > found["inside"][words.index("home")]
    assert found["begin"].argmax() == new - 1 and found["end"].argmax() == new


def test_every_word_gets_a_probability_and_the_same_one_again():
    tagger = Tagger.fit(NOTES, SPANS)
    for text in ("", "¿Qué?", NOTES[0].text):
        found = tagger.probabilities(TokenizedNote.from_text(text), text)
        assert (
            found.shape == (len(TAGS), len(TokenizedNote.from_text(text).words)) and ((found >= 0) & (found <= 1)).all()
        )
        np.testing.assert_array_equal(
            found, Tagger.fit(NOTES, SPANS).probabilities(TokenizedNote.from_text(text), text)
        )


def test_without_evidence_there_is_no_tagger():
    assert Tagger.fit(NOTES, [()] * len(NOTES)) is None


def test_evidence_in_pieces_leaves_out_what_lies_between():
    text = "Pain, he said, of the knee."
    item = Evidence(CODE, 0, text.index("."), extra={"spans": [(0, 4), (text.index("knee"), text.index("."))]})
    notes = [Note(f"p{i}", text, codes=(CODE,), evidence=(item,)) for i in range(20)]
    words, found = told(Tagger.fit(notes, [note.evidence for note in notes]), text)
    assert [word for word, p in zip(words, found["inside"]) if p > 0.5] == ["pain", "knee"]


def test_what_is_stored_tells_the_same():
    learned = learn_from_evidence(NOTES, ["icd10cm"], 2)
    kept = TrainedScorer(learned, TreeEnsemble.constant(0.5), Trees.constant(0.5), 0.1)
    again = TrainedScorer.from_stored(kept.arrays(), kept.to_json()).learned
    np.testing.assert_array_equal(again.tagger.weights, learned.tagger.weights)
    assert told(again.tagger, NOTES[0].text)[0] == told(learned.tagger, NOTES[0].text)[0]
