"""The linear coder: training, evidence, saving."""

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.models.linear.linear_model import Linear
from nosology.models.linear.linear_trainer import Choice, LinearRecipe, choose, fit_linear
from nosology.models.linear.tfidf import Tfidf, TfidfSettings
from tests.conftest import as_notes

HEART, LUNG, ALWAYS = Code("icd10cm", "I50.9"), Code("icd10cm", "J18.9"), Code("icd10cm", "Z00.0")
FILLER = [f"word{i}" for i in range(40)]


def notes(n, seed):
    """Notes of filler with a distinctive phrase for each code."""
    rng = np.random.default_rng(seed)
    texts, codes = [], []
    for _ in range(n):
        heart, lung = (rng.random(2) < 0.4).tolist()
        words = [*rng.choice(FILLER, 12), *(["heart", "failure"] * heart), *(["pneumonia"] * lung)]
        texts.append(" ".join(words))
        codes.append([code for code, has in ((HEART, heart), (LUNG, lung), (ALWAYS, True)) if has])
    return texts, codes


LABELS = LabelSpace([HEART, LUNG, ALWAYS])


def fitted(texts, gold, choice, recipe=None):
    recipe = recipe or LinearRecipe()
    return fit_linear(recipe, LABELS, *Tfidf.fit(texts, recipe.features), gold, choice)


@pytest.fixture(scope="module")
def model():
    texts, codes = notes(80, 0)
    dev_texts, dev_codes = notes(40, 1)
    plain = fitted(texts, LABELS.encode(codes), Choice(1.0, 4000))
    return plain.calibrated(plain.scores(plain.tfidf.transform(dev_texts)), LABELS.encode(dev_codes))


def test_separates_codes(model):
    texts, codes = notes(40, 2)
    right = (model.probabilities(as_notes(texts)) > 0.5) == (LABELS.encode(codes).toarray() > 0)
    assert right.mean() > 0.97


def test_word_contributions_sum_to_the_score(model):
    text = notes(1, 3)[0][0] + " heart failure and PNEUMONIA, unheard-of words"
    words = model.word_contributions(as_notes([text])[0], [0, 1, 2])
    score = model.scores(model.tfidf.transform([text]))[0]
    assert words.weights.sum(1) + model.bias == pytest.approx(score, abs=1e-5)
    assert len(words.starts) == len(words.ends) == words.weights.shape[1]


def test_evidence_is_in_the_note(model):
    text = "Word1: Heart  Failure is word2 word3"
    (spans,) = model.evidence(as_notes([text])[0], [0])
    assert spans[0].text == "Heart  Failure"
    assert all(text[span.start : span.end] == span.text for span in spans)


def test_note_without_known_words_has_no_codes(model):
    assert not model.probabilities(as_notes(["", "zzz 12345"])).any()


def test_save_and_load(model, tmp_path):
    model.save(tmp_path)
    again = Linear.load(tmp_path)
    texts, _ = notes(5, 4)
    assert np.array_equal(again.probabilities(as_notes(texts)), model.probabilities(as_notes(texts)))
    assert again.labels == model.labels


def test_weights_are_those_of_liblinear():
    texts, codes = notes(60, 5)
    gold = LABELS.encode(codes)
    model = fitted(texts, gold, Choice(3.0, 4000))
    x = model.tfidf.transform(texts).astype(np.float64)
    oracle = LinearSVC(C=3.0, tol=0.1, random_state=0).fit(x, np.where(gold.toarray()[:, 0], 1, -1))
    assert model.scores(x)[:, 0] == pytest.approx(oracle.decision_function(x), abs=1e-5)


def test_sampled_negatives_and_pruned_weights_separate_codes():
    texts, codes = notes(400, 6)
    recipe = LinearRecipe(fit={"negatives": 50, "negatives_per_positive": 1})
    model = fitted(texts, LABELS.encode(codes), Choice(1.0, 5), recipe)
    assert model.weights.tocsc().indptr[1] <= 5
    scores = model.scores(model.tfidf.transform(texts))[:, 1]
    has = np.array([LUNG in note for note in codes])
    assert scores[has].min() > scores[~has].max()


def test_settings_are_chosen_on_dev():
    texts, codes = notes(60, 7)
    dev_texts, dev_codes = notes(60, 9)
    gold, dev_gold = LABELS.encode(codes), LABELS.encode(dev_codes)
    tfidf, vectors = Tfidf.fit(texts, TfidfSettings())
    dev_vectors = tfidf.transform(dev_texts)
    several = LinearRecipe(fit={"c": [1e-9, 1.0], "max_features": [50]})
    assert choose(several, vectors, gold, dev_vectors, dev_gold).c == 1.0
    only = LinearRecipe(fit={"c": [2.5], "max_features": [7]})
    assert choose(only, vectors, gold, dev_vectors, dev_gold) == Choice(2.5, 7)


def test_uncalibrated_model_refuses_probabilities():
    texts, codes = notes(20, 8)
    with pytest.raises(ValueError, match="calibrated"):
        fitted(texts, LABELS.encode(codes), Choice(1.0, 4000)).probabilities(as_notes(texts))


def test_parallel_processes_give_the_same_weights(monkeypatch):
    texts, codes = notes(60, 10)
    gold = LABELS.encode(codes)
    alone = fitted(texts, gold, Choice(1.0, 4000))
    monkeypatch.setattr("nosology.models.linear.linear_trainer._MIN_PARALLEL", 0)
    monkeypatch.setattr("nosology.models.linear.linear_trainer._PART", 1)
    together = fitted(texts, gold, Choice(1.0, 4000))
    assert np.array_equal(together.weights.toarray(), alone.weights.toarray())
    assert np.array_equal(together.bias, alone.bias)
