"""Calibration of scores: it finds the true curve and stays cautious with few notes."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit

from nosology.training.calibration import (
    EXCLUDED_LOGIT,
    CodeScaling,
    PlattScaling,
    ScoreCalibration,
    choose_scaling,
    scaling_from_json,
)


def simulated(seed=0, shape=(4000, 30)):
    rng = np.random.default_rng(seed)
    notes = rng.integers(1, 500, shape[1])
    truth = ScoreCalibration(-3.0, 2.0, 0.4, -0.1)
    scores = rng.normal(size=shape)
    return truth, notes, scores, sparse.csr_matrix(rng.random(shape) < truth(scores, notes), dtype=np.int8)


def test_fit_recovers_the_curve_of_simulated_data():
    truth, notes, scores, gold = simulated()
    calibration = ScoreCalibration.fit(scores, gold, notes)
    assert calibration(scores, notes) == pytest.approx(truth(scores, notes), abs=0.03)


def test_probabilities_equal_frequencies():
    _, notes, scores, gold = simulated()
    calibration = ScoreCalibration.fit(scores, gold, notes)
    _, notes, scores, gold = simulated(seed=0)
    p = calibration(scores, notes)
    for low in (0.0, 0.2, 0.5, 0.8):
        cells = (p >= low) & (p < low + 0.2)
        assert p[cells].mean() == pytest.approx(gold.toarray()[cells].mean(), abs=0.03)


def test_probability_equals_its_formula():
    calibration = ScoreCalibration(-1.0, 2.0, 0.5, 0.25)(np.array([[0.3, -0.2]]), np.array([1, 100]))
    log = np.log(100)
    assert calibration[0] == pytest.approx([expit(-1 + 0.6), expit(-1 - 0.4 + 0.5 * log - 0.05 * log)])


@pytest.mark.parametrize("rows", [0, 50])
@pytest.mark.parametrize("notes", [[1, 1], [3, 400]])
def test_without_a_true_cell_only_the_prior_counts(notes, rows):
    notes = np.array(notes)
    calibration = ScoreCalibration.fit(np.full((rows, 2), -0.7), sparse.csr_matrix((rows, 2)), notes)
    assert calibration(np.array([[0.0, 0.0]]), notes)[0] == pytest.approx([0.5, 0.5], abs=1e-3)
    assert calibration(np.array([[1.0, -1.0]]), notes)[0] == pytest.approx([0.9, 0.1], abs=1e-2)


def test_fit_with_true_cells_only():
    p = ScoreCalibration.fit(np.ones((4, 1)), sparse.csr_matrix(np.ones((4, 1))), np.array([9]))(
        np.ones((1, 1)), np.array([9])
    )
    assert 0.9 < p < 1


def test_few_separable_cells_do_not_give_extreme_probabilities():
    scores = np.array([[1.0, -1.0], [-1.0, 1.0]])
    calibration = ScoreCalibration.fit(scores, sparse.csr_matrix(scores > 0), np.array([2, 20]))
    assert calibration(scores, np.array([2, 20])).max() < 0.99


def scaled(slopes, offsets, notes: int, seed=0):
    """Logits, gold labels and true probabilities: sigmoid(slope x logit + offset) of each code."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 2, (notes, len(slopes))).astype(np.float32)
    probabilities = expit(np.array(slopes) * logits + np.array(offsets))
    return logits, sparse.csr_matrix((rng.random(logits.shape) < probabilities).astype(np.int8)), probabilities


def test_code_scaling_recovers_a_pair_per_code_and_keeps_the_shared_pair_without_notes():
    slopes, offsets = [0.5, 1.0, 1.5], [-1.0, 0.0, 1.0]
    logits, gold, probabilities = scaled(slopes, offsets, 20_000)
    scaling = CodeScaling.fit(logits, gold)
    assert scaling(logits) == pytest.approx(probabilities, abs=0.03)
    assert np.abs(PlattScaling.fit(logits, gold)(logits) - probabilities).max() > 0.2
    unknown = logits.copy()
    unknown[:, 2] = EXCLUDED_LOGIT
    scaling, shared = CodeScaling.fit(unknown, gold), PlattScaling.fit(unknown, gold)
    assert (scaling.a[2], scaling.b[2]) == pytest.approx((shared.a, shared.b))
    assert scaling_from_json(json.loads(json.dumps(asdict(scaling)))) == scaling
    assert scaling_from_json(asdict(shared)) == shared


def test_pairs_per_code_are_chosen_only_if_they_predict_new_notes_better():
    fold = np.arange(600) % 5
    different = scaled([0.6, 1.0, 1.4], [-1.5, 0.0, 1.5], 600)
    assert isinstance(choose_scaling(*different[:2], fold), CodeScaling)
    same = scaled([1.0] * 40, [-1.0] * 40, 600)
    assert isinstance(choose_scaling(*same[:2], fold), PlattScaling)
    assert isinstance(choose_scaling(*different[:2], np.zeros(600)), PlattScaling), "one fold cannot be tested"
