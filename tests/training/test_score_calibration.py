import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit

from nosology.training.calibration import ScoreCalibration


def simulated(seed=0, shape=(4000, 30)):
    rng = np.random.default_rng(seed)
    notes = rng.integers(1, 500, shape[1])
    truth = ScoreCalibration(-3.0, 2.0, 0.4, -0.1)
    scores = rng.normal(size=shape)
    return truth, notes, scores, sparse.csr_matrix(rng.random(shape) < truth(scores, notes), dtype=np.int8)


def test_finds_the_curve_that_made_the_data():
    truth, notes, scores, gold = simulated()
    found = ScoreCalibration.fit(scores, gold, notes)
    assert found(scores, notes) == pytest.approx(truth(scores, notes), abs=0.03)


def test_probabilities_are_calibrated_on_new_data():
    _, notes, scores, gold = simulated()
    found = ScoreCalibration.fit(scores, gold, notes)
    _, notes, scores, gold = simulated(seed=0)
    p = found(scores, notes)
    for low in (0.0, 0.2, 0.5, 0.8):
        cells = (p >= low) & (p < low + 0.2)
        assert p[cells].mean() == pytest.approx(gold.toarray()[cells].mean(), abs=0.03)


def test_formula():
    found = ScoreCalibration(-1.0, 2.0, 0.5, 0.25)(np.array([[0.3, -0.2]]), np.array([1, 100]))
    log = np.log(100)
    assert found[0] == pytest.approx([expit(-1 + 0.6), expit(-1 - 0.4 + 0.5 * log - 0.05 * log)])


@pytest.mark.parametrize("notes", [[1, 1], [3, 400]])
def test_without_a_true_cell_the_sign_of_the_score_decides(notes):
    notes = np.array(notes)
    found = ScoreCalibration.fit(np.full((50, 2), -0.7), sparse.csr_matrix((50, 2)), notes)
    assert found(np.array([[0.0, 0.0]]), notes)[0] == pytest.approx([0.5, 0.5], abs=1e-3)
    assert found(np.array([[1.0, -1.0]]), notes)[0] == pytest.approx([0.9, 0.1], abs=1e-2)


def test_true_cells_alone_do():
    p = ScoreCalibration.fit(np.ones((4, 1)), sparse.csr_matrix(np.ones((4, 1))), np.array([9]))(
        np.ones((1, 1)), np.array([9])
    )
    assert 0.9 < p < 1


def test_a_few_cells_that_are_told_apart_do_not_make_it_sure():
    scores = np.array([[1.0, -1.0], [-1.0, 1.0]])
    found = ScoreCalibration.fit(scores, sparse.csr_matrix(scores > 0), np.array([2, 20]))
    assert found(scores, np.array([2, 20])).max() < 0.99
