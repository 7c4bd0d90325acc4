"""Training of the lexicon on notes with and without evidence."""

import numpy as np
import pytest

from nosology.config import load_recipe
from nosology.core import Code, Evidence, Note
from nosology.corpora.corpus import write_corpus
from nosology.models.bundle import Bundle
from nosology.models.lexicon import cross_validation, lexicon_model
from nosology.models.lexicon.cross_validation import CrossValidation, note_folds
from nosology.models.lexicon.mention_features import code_table
from nosology.models.lexicon.scorers import TrainedScorer
from nosology.models.lexicon.trees import Trees
from nosology.models.siblings.sibling_verifier import SiblingVerifier
from nosology.models.train import train
from tests.conftest import as_notes

CODES = {
    "gribble sickness": Code("icd10cm", "R69"),  # not a term of the classification
    "purple wobbles": Code("icd10cm", "G25.9"),
    "snark removal": Code("icd10pcs", "0DTJ4ZZ"),
    "pneumonia": Code("icd10cm", "J18.9"),
    "heart failure": Code("icd10cm", "I50.9"),
}
FILLER = ["Seen today.", "Feels well.", "Follow up in clinic.", "Continue at home.", "Plan discussed."]
FAST = ["learn.rounds=20", "learn.forest=10", "learn.folds=3", "learn.min_leaf=5"]


def notes(n, evidence, negated_coded):
    rng = np.random.default_rng(0)
    result = []
    for i in range(n):
        text, codes, spans = "", {}, []
        for phrase, code in CODES.items():
            if rng.random() < 0.4:
                denied = rng.random() < 0.4
                text += "No " if denied else "Has "
                if not denied or negated_coded:
                    codes[code] = None
                    spans.append(Evidence(code, len(text), len(text) + len(phrase)))
                text += phrase + ". "
            text += rng.choice(FILLER) + " "
        split = "test" if i % 5 == 4 else "train"
        result.append(
            Note(
                f"n{i}",
                text,
                patient=f"p{i}",
                split=split,
                codes=tuple(codes),
                evidence=tuple(spans) if evidence else (),
            )
        )
    return result


def trained(folder, evidence, negated_coded=False, settings=(), n=120):
    corpus = write_corpus(notes(n, evidence, negated_coded), folder / "c", source={}, filters=[], counts={})
    return train(load_recipe("lexicon", [*FAST, *settings]), [corpus], folder / "b"), corpus


@pytest.fixture(scope="module")
def with_evidence(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("lexicon"), True)


@pytest.fixture(scope="module")
def without_evidence(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("lexicon"), False)


@pytest.fixture(params=["with_evidence", "without_evidence"])
def bundle(request):
    return request.getfixturevalue(request.param)


def codes_of(bundle, text):
    row = bundle.model.probabilities(as_notes([text]))[0]
    return {bundle.model.labels.codes[j] for j in np.flatnonzero(row >= bundle.decision.threshold)}


def test_codes_learned_phrases_and_terms_of_the_classification(bundle):
    coder, corpus = bundle
    hits = given = true = 0
    for note in corpus.notes("test"):
        predicted = codes_of(coder, note.text)
        hits, given, true = hits + len(predicted & set(note.codes)), given + len(predicted), true + len(note.codes)
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


def test_loaded_bundle_returns_the_same_probabilities(bundle, tmp_path):
    coder, corpus = bundle
    coder.save(tmp_path / "b")
    texts = [note.text for note in corpus.notes("test")]
    again = Bundle.load(tmp_path / "b")
    np.testing.assert_array_equal(
        again.model.probabilities(as_notes(texts)), coder.model.probabilities(as_notes(texts))
    )
    np.testing.assert_array_equal(again.model.train_counts, coder.model.train_counts)
    assert again.model.siblings.counts == coder.model.siblings.counts
    np.testing.assert_allclose(again.model.siblings.verifier.named, coder.model.siblings.verifier.named, atol=1e-5)


def test_the_verifier_of_siblings_learns_from_the_train_notes(with_evidence):
    coder, _ = with_evidence
    found, siblings = coder.provenance["found"]["siblings"], coder.model.siblings
    assert found["questions"] > 50 and found["verifier"] >= found["lexicon"] - 0.02
    assert not np.allclose(siblings.verifier.named, SiblingVerifier.shipped().named)
    text = "Has purple wobbles. Seen today."
    scores = coder.model.analyse(text)[1].codes
    choice = siblings.choose(text, CODES["purple wobbles"], [(4, 18)], scores)
    assert choice.best == CODES["purple wobbles"] and not choice.abstains


def test_learns_whether_negated_mentions_are_coded(tmp_path, with_evidence):
    text = "No gribble sickness. Seen today."
    strict, _ = with_evidence
    loose, _ = trained(tmp_path / "loose", True, negated_coded=True)
    column = strict.model.labels.column(CODES["gribble sickness"])
    assert strict.model.probabilities(as_notes([text]))[0, column] < 0.3
    assert loose.model.probabilities(as_notes([text]))[0, loose.model.labels.column(CODES["gribble sickness"])] > 0.6
    decided = loose.model.with_context(loose.model.recipe.context.model_copy(update={"negated": "drop"}))
    assert decided.probabilities(as_notes([text]))[0, column] < 0.01


def test_context_with_few_mentions_has_its_default_policy(tmp_path, with_evidence):
    few, corpus = trained(tmp_path / "few", True, n=12)
    assert few.provenance["found"]["contexts_as_on_day_one"] == sorted(type(few.model.recipe.context).model_fields)
    denied = "No evidence of pneumonia. No gribble sickness. His mother has heart failure."
    assert not codes_of(few, denied) & set(CODES.values())
    assert CODES["heart failure"] in codes_of(few, "Has heart failure. Seen today.")
    bundle = train(load_recipe("lexicon", [*FAST, "context.negated='keep'"]), [corpus], tmp_path / "kept")
    assert bundle.model.recipe.context.negated == "keep"
    assert "negated" not in with_evidence[0].provenance["found"]["contexts_as_on_day_one"]


def test_same_notes_give_the_same_model(tmp_path, with_evidence):
    first, corpus = with_evidence
    second, _ = trained(tmp_path, True)
    texts = [note.text for note in corpus.notes("test")]
    np.testing.assert_array_equal(
        first.model.probabilities(as_notes(texts)), second.model.probabilities(as_notes(texts))
    )
    assert first.decision == second.decision


def test_trains_on_procedure_codes_only(tmp_path):
    coder, _ = trained(tmp_path, True, settings=["labels.systems=['icd10pcs']"])
    assert coder.model.labels.systems == ("icd10pcs",)
    assert codes_of(coder, "Has snark removal. Seen today.") == {CODES["snark removal"]}


def test_notes_of_one_patient_are_in_one_fold():
    same = [Note(f"a{i}", "", patient="p") for i in range(5)] + [Note(f"s12-{i}", "") for i in range(5)]
    folds = note_folds(same, 4, 0)
    assert len(set(folds[:5])) == len(set(folds[5:])) == 1


def test_codes_injuries_with_placeholder_x(tmp_path):
    fall, other = Code("icd10cm", "W19.XXX"), Code("icd10cm", "S30.0XX")
    notes = [
        Note(f"f{i}", "Fall at home today.", codes=(fall,), split="train", evidence=(Evidence(fall, 0, 4),))
        for i in range(30)
    ]
    corpus = write_corpus(notes, tmp_path / "c", source={}, filters=[], counts={})
    coder = train(load_recipe("lexicon", FAST), [corpus], tmp_path / "b")
    assert coder.model.recipe.codes.seventh is False
    assert other in coder.model.labels and fall in codes_of(coder, "Fall at home today.")
    mentioned = {scored.code for scored in coder.model.analyse("Contusion of lower back and pelvis.")[1].mentions}
    assert {other, Code("icd10cm", "S30.0")} <= mentioned


def test_evidence_counts_only_for_selected_code_systems():
    cough, scan = Code("icd10cm", "R05"), Code("icd10pcs", "BW03ZZZ")
    recipe = load_recipe("lexicon", FAST)
    note = Note("a", "Cough, chest film.", codes=(cough, scan), evidence=(Evidence(scan, 7, 17),))
    assert not CrossValidation(recipe, ["icd10cm"], [note]).has_evidence
    evidence = Note("b", note.text, codes=(cough,), evidence=(Evidence(cough, 0, 5),))
    assert CrossValidation(recipe, ["icd10cm"], [evidence]).has_evidence


@pytest.mark.parametrize("evidence", [True, False])
def test_any_number_of_processes_gives_the_same_results(monkeypatch, evidence):
    monkeypatch.setattr(cross_validation, "_PART", 7)
    recipe = load_recipe("lexicon", [*FAST, "codes.release='2019'", "codes.seventh=true"])
    train_notes = notes(30, evidence, False)
    results = []
    for workers in (1, 2):
        validation = CrossValidation(recipe, ["icd10cm"], train_notes, workers)
        examples = validation.mentions()
        scores, classifier = validation.mention_scores(examples)
        rows = [code_table(item.table, of_note) for item, of_note in zip(examples, scores)]
        gold = zip(examples, train_notes)
        targets = [np.array([code in note.codes for code in item.table.codes], dtype=bool) for item, note in gold]
        codes = validation.code_scores(rows, targets)
        scorer = TrainedScorer(validation.learned[-1], classifier, codes.classifier, 0.0)
        results.append((scorer, [item.table.rows for item in examples], scores, codes.scores))
    (one, *first), (other, *second) = results
    assert one.to_json() == other.to_json() and sum(map(len, first[0])) > 20
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, other.arrays()[name])
    for mine, theirs in zip(first, second):
        for part, same in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(part, same)


def test_codes_many_notes_on_several_cores(monkeypatch, without_evidence):
    coder, corpus = without_evidence
    test_notes = list(corpus.notes("test"))
    expected = coder.model.probabilities(test_notes)
    monkeypatch.setattr(lexicon_model, "_MIN_PARALLEL", 0)
    monkeypatch.setattr(lexicon_model, "_PART", 5)
    monkeypatch.setattr(lexicon_model, "cores", lambda: 2)
    np.testing.assert_array_equal(coder.model.probabilities(test_notes), expected)
    assert expected.max() > 0.5


def test_classifiers_are_trained_on_a_sample_of_many_pairs(monkeypatch):
    monkeypatch.setattr(cross_validation, "_MAX_ROWS", 50)
    rows, target = np.arange(400, dtype=np.float32).reshape(-1, 1), np.arange(400) % 2 == 0
    sizes = []

    def fit(x, y):
        sizes.append(len(x))
        assert ((x[:, 0] % 2 == 0) == y).all() and (x[:, 0] >= 100).all()
        return Trees.constant(0.25)

    _, probabilities = cross_validation._fit_outside(fit, rows, target, np.arange(400) // 100, 0, 0)
    assert sizes == [50] and probabilities.tolist() == pytest.approx([0.25] * 100)
