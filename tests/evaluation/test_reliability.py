from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.evaluation import reliability
from nosology.evaluation.scored import Scored


@pytest.mark.parametrize(("bins", "strategy"), [("equal_mass", "quantile"), ("equal_width", "uniform")])
@pytest.mark.parametrize("digits", [None, 2])
def test_table_equals_scikit_learn(make_case, truth, bins, strategy, digits):
    case = make_case(seed=1, digits=digits)
    result = reliability(Scored.of(*case), n_bins=10, bins=bins, floor=0)
    rate, mean = calibration_curve(
        truth(case).ravel(), case.scores.ravel().astype(np.float64), n_bins=10, strategy=strategy
    )
    assert result.true_rate == pytest.approx(rate, abs=1e-12)
    assert result.mean_score == pytest.approx(mean, abs=1e-7)
    assert result.count.sum() == case.scores.size


def test_ece_equals_its_definition():
    labels = LabelSpace([Code("icd10cm", "I10"), Code("icd10cm", "E11.9")])
    gold = [[labels.codes[0]], [labels.codes[0]], [], []]
    scores = np.array([[0.75, 0.001], [0.75, 0.001], [0.25, 0.001], [0.25, 0.001]])
    result = reliability(Scored.of(labels, gold, scores), n_bins=2, bins="equal_width", floor=0.01)
    assert result.count.tolist() == [2, 2]
    assert result.ece == pytest.approx(0.25)
    table = reliability(Scored.of(labels, gold, scores), n_bins=2, bins="equal_width", floor=0)
    assert table.ece == pytest.approx((2 * 0.25 + 6 * (0.25 * 2 + 0.001 * 4) / 6) / 8)


def test_calibrated_scores_have_a_small_error():
    rng = np.random.default_rng(0)
    labels = LabelSpace(Code("icd10cm", f"A{j:02d}") for j in range(50))
    scores = rng.beta(0.3, 3, (2000, 50))
    true = rng.random(scores.shape) < scores
    gold = [[labels.codes[j] for j in np.flatnonzero(row)] for row in true]
    assert reliability(Scored.of(labels, gold, scores)).ece < 0.01
    assert reliability(Scored.of(labels, gold, scores**2)).ece > 0.03


def test_ece_is_none_without_a_score_above_the_floor(make_case):
    case = make_case(seed=2)
    assert reliability(Scored.of(case.labels, case.gold, np.zeros_like(case.scores))).ece is None
    with pytest.raises(ValueError, match="equal_mass or equal_width; got odd"):
        reliability(Scored.of(*case), bins="odd")
