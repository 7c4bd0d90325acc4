import numpy as np
import pytest
from scipy import sparse

from nosology.models.hmhan.hmhan_model import Report
from nosology.models.hmhan.word_scores import fit_word_scores, word_matrix
from nosology.models.hmhan.words import Words

TEXTS = [f"{'Right pneumonia' if i % 3 == 0 else 'No pneumonia'}, view {'abcdefgh'[i % 8]}" for i in range(60)]
GOLD = sparse.csr_matrix(np.array([[i % 3 == 0, i == 4, True, False] for i in range(60)], dtype=np.int8))
NONE = np.empty(0)


@pytest.fixture(scope="module")
def words() -> Words:
    return Words.fit(TEXTS, 1, 1000)


@pytest.fixture(scope="module")
def found(words):
    reports = [Report(NONE, NONE, NONE, NONE, *words.vector(text)) for text in TEXTS]
    described = [Report(NONE, NONE, NONE, NONE, *words.vector(text)) for text in ("pneumonia", "", "", "")]
    return fit_word_scores(reports, described, len(words), GOLD, np.arange(60) % 5, [0.3, 3.0]), reports


def test_denied_words_are_other_words(found, words):
    scores, reports = found
    logits = word_matrix(reports, len(words)) @ scores.weights + scores.bias
    assert (logits[::3, 0] > 1).all() and (logits[1::3, 0] < -1).all()


def test_held_out_scores_are_of_machines_that_have_not_seen_the_report(found, words):
    scores, reports = found
    own = word_matrix(reports, len(words)) @ scores.weights + scores.bias
    assert own[4, 1] > scores.held[4, 1] + 0.1, "a code of one report is known only to a machine that has seen it"
    assert scores.held[::3, 0].min() > scores.held[1::3, 0].max()


def test_codes_of_all_reports_and_of_none(found):
    scores, _ = found
    assert scores.held[:, 2].min() > 0 > scores.held[:, 3].max()
    assert np.isfinite(scores.held).all()


def test_features_are_numbered_from_one(words):
    numbers, values = words.vector("No pneumonia")
    assert numbers.min() >= 1 and np.linalg.norm(values) == pytest.approx(1)
    assert words.vector("zzz")[0].size == 0
    assert Words.from_json(words.to_json()).vector("No pneumonia")[0].tolist() == numbers.tolist()


def test_contributions_add_up_to_the_score(found, words):
    scores, _ = found
    text = "Right pneumonia, view a. No pneumonia"
    added = words.contributions(text, scores.weights)
    numbers, values = words.vector(text)
    assert added.sum(0) == pytest.approx(values @ scores.weights[numbers - 1], abs=1e-5)
    assert added[1, 0] > 0 > added[5, 0], "affirmed pneumonia speaks for it, denied against it"
