"""A lexicon adapted to notes: with evidence, without, and what a folder keeps of it."""

import numpy as np
import pytest

from nosology.config import load_recipe
from nosology.core import Code, Evidence, Note
from nosology.corpora.corpus import write_corpus
from nosology.models.bundle import Bundle
from nosology.models.lexicon.lexicon_trainer import CrossValidation, note_folds
from nosology.models.train import train
from tests.conftest import as_notes

OWN = {
    "gribble sickness": Code("icd10cm", "R69"),  # words that no classification has
    "purple wobbles": Code("icd10cm", "G25.9"),
    "snark removal": Code("icd10pcs", "0DTJ4ZZ"),
    "pneumonia": Code("icd10cm", "J18.9"),
    "heart failure": Code("icd10cm", "I50.9"),
}
FILLER = ["Seen today.", "Feels well.", "Follow up in clinic.", "Continue at home.", "Plan discussed."]
FAST = ["learn.rounds=20", "learn.forest=10", "learn.folds=3", "learn.min_leaf=5"]


def notes(n, evidence, negated_coded):
    rng = np.random.default_rng(0)
    made = []
    for i in range(n):
        text, codes, spans = "", {}, []
        for phrase, code in OWN.items():
            if rng.random() < 0.4:
                denied = rng.random() < 0.4
                text += "No " if denied else "Has "
                if not denied or negated_coded:
                    codes[code] = None
                    spans.append(Evidence(code, len(text), len(text) + len(phrase)))
                text += phrase + ". "
            text += rng.choice(FILLER) + " "
        split = "test" if i % 5 == 4 else "train"
        made.append(
            Note(
                f"n{i}",
                text,
                patient=f"p{i}",
                split=split,
                codes=tuple(codes),
                evidence=tuple(spans) if evidence else (),
            )
        )
    return made


def trained(folder, evidence, negated_coded=False, settings=(), n=150):
    corpus = write_corpus(notes(n, evidence, negated_coded), folder / "c", source={}, filters=[], counts={})
    return train(load_recipe("lexicon", [*FAST, *settings]), [corpus], folder / "b"), corpus


@pytest.fixture(scope="module", params=[True, False], ids=["evidence", "codes alone"])
def bundle(request, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("lexicon"), request.param)


def codes_of(bundle, text):
    row = bundle.model.probabilities(as_notes([text]))[0]
    return {bundle.model.labels.codes[j] for j in np.flatnonzero(row >= bundle.decision.threshold)}


def test_words_of_the_corpus_are_learned_and_those_of_the_classification_still_known(bundle):
    coder, corpus = bundle
    hits = given = true = 0
    for note in corpus.notes("test"):
        found = codes_of(coder, note.text)
        hits, given, true = hits + len(found & set(note.codes)), given + len(found), true + len(note.codes)
    assert 2 * hits / (given + true) > 0.8
    assert Code("icd10cm", "K35.80") in coder.model.labels
    assert (
        coder.model.probabilities(as_notes(["Acute appendicitis."]))[
            0, coder.model.labels.column(Code("icd10cm", "K35.80"))
        ]
        > 0.01
    )


def test_accepted_codes_have_evidence_in_the_note(bundle):
    coder, corpus = bundle
    for note in corpus.notes("test"):
        columns = [coder.model.labels.column(code) for code in codes_of(coder, note.text)]
        for spans in coder.model.evidence(note, columns):
            assert spans and all(note.text[span.start : span.end] == span.text for span in spans)


def test_a_folder_keeps_the_coder(bundle, tmp_path):
    coder, corpus = bundle
    coder.save(tmp_path / "b")
    texts = [note.text for note in corpus.notes("test")]
    again = Bundle.load(tmp_path / "b")
    np.testing.assert_array_equal(
        again.model.probabilities(as_notes(texts)), coder.model.probabilities(as_notes(texts))
    )
    np.testing.assert_array_equal(again.model.train_counts, coder.model.train_counts)


def test_what_a_context_is_worth_is_learned(tmp_path):
    text = "No gribble sickness. Seen today."
    strict, _ = trained(tmp_path / "strict", True)
    loose, _ = trained(tmp_path / "loose", True, negated_coded=True)
    column = strict.model.labels.column(OWN["gribble sickness"])
    assert strict.model.probabilities(as_notes([text]))[0, column] < 0.3
    assert loose.model.probabilities(as_notes([text]))[0, loose.model.labels.column(OWN["gribble sickness"])] > 0.6
    decided = loose.model.with_context(loose.model.recipe.context.model_copy(update={"negated": "drop"}))
    assert decided.probabilities(as_notes([text]))[0, column] < 0.01


def test_a_context_with_few_mentions_is_what_it_is_on_day_one(tmp_path):
    few, corpus = trained(tmp_path / "few", True, n=12)
    assert few.provenance["found"]["contexts_as_on_day_one"] == sorted(type(few.model.recipe.context).model_fields)
    denied = "No evidence of pneumonia. No gribble sickness. His mother has heart failure."
    assert not codes_of(few, denied) & set(OWN.values())
    assert OWN["heart failure"] in codes_of(few, "Has heart failure. Seen today.")
    kept = train(load_recipe("lexicon", [*FAST, "context.negated='keep'"]), [corpus], tmp_path / "kept")
    assert kept.model.recipe.context.negated == "keep"  # what was said stands
    assert "negated" not in trained(tmp_path / "many", True)[0].provenance["found"]["contexts_as_on_day_one"]


def test_the_same_notes_make_the_same_coder(tmp_path):
    first, corpus = trained(tmp_path / "one", True)
    second, _ = trained(tmp_path / "two", True)
    texts = [note.text for note in corpus.notes("test")]
    np.testing.assert_array_equal(
        first.model.probabilities(as_notes(texts)), second.model.probabilities(as_notes(texts))
    )
    assert first.decision == second.decision


def test_procedures_alone_need_no_terms(tmp_path):
    coder, _ = trained(tmp_path, True, settings=["labels.systems=['icd10pcs']"])
    assert coder.model.labels.systems == ("icd10pcs",)
    assert codes_of(coder, "Has snark removal. Seen today.") == {OWN["snark removal"]}


def test_notes_of_one_patient_are_in_one_fold():
    same = [Note(f"a{i}", "", patient="p") for i in range(5)] + [Note(f"s12-{i}", "") for i in range(5)]
    found = note_folds(same, 4, 0)
    assert len(set(found[:5])) == len(set(found[5:])) == 1


def test_injuries_may_be_written_with_the_x_that_holds_places(tmp_path):
    fall, other = Code("icd10cm", "W19.XXX"), Code("icd10cm", "S30.0XX")
    made = [
        Note(f"f{i}", "Fall at home today.", codes=(fall,), split="train", evidence=(Evidence(fall, 0, 4),))
        for i in range(30)
    ]
    corpus = write_corpus(made, tmp_path / "c", source={}, filters=[], counts={})
    coder = train(load_recipe("lexicon", FAST), [corpus], tmp_path / "b")
    assert coder.model.recipe.codes.seventh is False
    assert other in coder.model.labels and fall in codes_of(coder, "Fall at home today.")
    named = {vote.code for vote in coder.model.analyse("Contusion of lower back and pelvis.")[1].votes}
    assert {other, Code("icd10cm", "S30.0")} <= named


def test_evidence_counts_only_for_the_codes_that_are_learned():
    cough, scan = Code("icd10cm", "R05"), Code("icd10pcs", "BW03ZZZ")
    recipe = load_recipe("lexicon", FAST)
    note = Note("a", "Cough, chest film.", codes=(cough, scan), evidence=(Evidence(scan, 7, 17),))
    assert not CrossValidation(recipe, ["icd10cm"], None, [note]).has_evidence
    evidence = Note("b", note.text, codes=(cough,), evidence=(Evidence(cough, 0, 5),))
    assert CrossValidation(recipe, ["icd10cm"], None, [evidence]).has_evidence
