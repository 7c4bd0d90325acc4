import numpy as np
import pytest
from scipy import sparse

from nosology.models.hmhan.hmhan_model import EncodedReport
from nosology.models.hmhan.report_features import WordFeatures, fit_word_svms, word_matrix

TEXTS = [f"{'Right pneumonia' if i % 3 == 0 else 'No pneumonia'}, view {'abcdefgh'[i % 8]}" for i in range(60)]
GOLD = sparse.csr_matrix(np.array([[i % 3 == 0, i == 4, True, False] for i in range(60)], dtype=np.int8))
NONE = np.empty(0)


@pytest.fixture(scope="module")
def words() -> WordFeatures:
    return WordFeatures.fit(TEXTS, 1, 1000)


@pytest.fixture(scope="module")
def fitted(words):
    reports = [EncodedReport(NONE, NONE, NONE, NONE, *words.vector(text)) for text in TEXTS]
    descriptions = [EncodedReport(NONE, NONE, NONE, NONE, *words.vector(text)) for text in ("pneumonia", "", "", "")]
    return fit_word_svms(reports, descriptions, len(words), GOLD, np.arange(60) % 5, [0.3, 3.0]), reports


def test_negated_words_are_separate_features(fitted, words):
    scores, reports = fitted
    logits = word_matrix(reports, len(words)) @ scores.weights + scores.bias
    assert (logits[::3, 0] > 1).all() and (logits[1::3, 0] < -1).all()


def test_held_out_scores_come_from_svms_not_fitted_on_the_report(fitted, words):
    scores, reports = fitted
    in_sample = word_matrix(reports, len(words)) @ scores.weights + scores.bias
    assert in_sample[4, 1] > scores.held_out_logits[4, 1] + 0.1, "the only report with this code"
    assert scores.held_out_logits[::3, 0].min() > scores.held_out_logits[1::3, 0].max()


def test_codes_of_all_reports_and_of_no_report_have_finite_scores(fitted):
    scores, _ = fitted
    assert scores.held_out_logits[:, 2].min() > 0 > scores.held_out_logits[:, 3].max()
    assert np.isfinite(scores.held_out_logits).all()


def test_feature_ids_start_at_one(words):
    ids, values = words.vector("No pneumonia")
    assert ids.min() >= 1 and np.linalg.norm(values) == pytest.approx(1)
    assert words.vector("zzz")[0].size == 0
    assert WordFeatures.from_json(words.to_json()).vector("No pneumonia")[0].tolist() == ids.tolist()


def test_contributions_add_up_to_the_score(fitted, words):
    scores, _ = fitted
    text = "Right pneumonia, view a. No pneumonia"
    contributions = words.contributions(text, scores.weights)
    ids, values = words.vector(text)
    assert contributions.sum(0) == pytest.approx(values @ scores.weights[ids - 1], abs=1e-5)
    assert contributions[1, 0] > 0 > contributions[5, 0], "affirmed pneumonia adds, negated subtracts"
