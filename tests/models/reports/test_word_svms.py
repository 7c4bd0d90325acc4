import numpy as np
import pytest
from scipy import sparse

from nosology.models.reports.word_features import WordFeatures, WordReport, fit_word_svms

TEXTS = [f"{'Right pneumonia' if i % 3 == 0 else 'No pneumonia'}, view {'abcdefgh'[i % 8]}" for i in range(60)]
GOLD = sparse.csr_matrix(np.array([[i % 3 == 0, i == 4, True, False] for i in range(60)], dtype=np.int8))
NONE = np.empty(0)


@pytest.fixture(scope="module")
def words() -> WordFeatures:
    return WordFeatures.fit(TEXTS, 1, 1000)


@pytest.fixture(scope="module")
def fitted(words):
    reports = [WordReport(NONE, NONE, NONE, NONE, *words.vector(text)) for text in TEXTS]
    descriptions = [WordReport(NONE, NONE, NONE, NONE, *words.vector(text)) for text in ("pneumonia", "", "", "")]
    svms, held_out = fit_word_svms(reports, descriptions, len(words), GOLD, np.arange(60) % 5, [0.3, 3.0])
    return svms, held_out, reports


def test_negated_words_are_separate_features(fitted):
    svms, _, reports = fitted
    logits = svms.logits(reports)
    assert (logits[::3, 0] > 1).all() and (logits[1::3, 0] < -1).all()


def test_held_out_scores_come_from_svms_not_fitted_on_the_report(fitted):
    svms, held_out, reports = fitted
    assert svms.logits(reports)[4, 1] > held_out[4, 1] + 0.1, "the only report with this code"
    assert held_out[::3, 0].min() > held_out[1::3, 0].max()


def test_codes_of_all_reports_and_of_no_report_have_finite_scores(fitted):
    _, held_out, _ = fitted
    assert held_out[:, 2].min() > 0 > held_out[:, 3].max()
    assert np.isfinite(held_out).all()


def test_feature_ids_start_at_one(words):
    ids, values = words.vector("No pneumonia")
    assert ids.min() >= 1 and np.linalg.norm(values) == pytest.approx(1)
    assert words.vector("zzz")[0].size == 0
    assert WordFeatures.from_json(words.to_json()).vector("No pneumonia")[0].tolist() == ids.tolist()


def test_unknown_words_lower_the_values_of_the_known_ones(words):
    ids, values = words.vector("No pneumonia")
    same_ids, lower = words.vector("No pneumonia. Zzz yyy")
    assert same_ids.tolist() == ids.tolist() and np.linalg.norm(lower) < 0.8
    assert lower / values == pytest.approx(lower[0] / values[0]), "all by the same factor"
    assert np.linalg.norm(words.vector(TEXTS[0])[1]) == pytest.approx(1), "a train report has no unknown word"
    saved = words.to_json()
    assert WordFeatures.from_json(saved).vector("No pneumonia. Zzz yyy")[1].tolist() == lower.tolist()
    del saved["unknown_scale"]
    before = WordFeatures.from_json(saved).vector("No pneumonia. Zzz yyy")[1]
    assert before.tolist() == values.tolist(), "older bundles keep their values"


def test_words_of_descriptions_are_features_without_section(words):
    with_descriptions = WordFeatures.fit(TEXTS, 1, 1000, descriptions=["Acute pharyngitis", "Pneumonia"])
    added = {"acute", "pharyngitis", "phary~", "acute pharyngitis"}
    assert set(with_descriptions.names) - set(words.names) == added
    ids, values = with_descriptions.vector("Right pneumonia", by_section=False)
    assert {with_descriptions.names[i - 1] for i in ids} == {"right", "pneumonia", "pneum~", "right pneumonia"}
    assert np.linalg.norm(values) == pytest.approx(1)


def test_contributions_add_up_to_the_score(fitted, words):
    svms, _, _ = fitted
    text = "Right pneumonia, view a. No pneumonia"
    contributions = words.contributions(text, svms.weights)
    ids, values = words.vector(text)
    assert contributions.sum(0) == pytest.approx(values @ svms.weights[ids - 1], abs=1e-5)
    assert contributions[1, 0] > 0 > contributions[5, 0], "affirmed pneumonia adds, negated subtracts"
