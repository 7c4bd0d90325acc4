from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from nosology.core import DataError
from nosology.evaluation import evaluate, tune_threshold, tune_thresholds


@pytest.mark.parametrize("shape", [{"seed": 0}, {"seed": 1, "digits": 1}, {"seed": 2, "n_outside": 4}], ids=str)
def test_global_threshold_is_the_exact_optimum(make_case, shape):
    case = make_case(n_notes=30, n_labels=10, **shape)
    threshold = tune_threshold(case.labels, case.gold, case.scores)
    every = np.unique(case.scores[case.scores > 0])
    f1 = np.array([evaluate(case.labels, case.gold, case.scores, t, replicates=0)["micro_f1"] for t in every])
    best = evaluate(case.labels, case.gold, case.scores, threshold, replicates=0)["micro_f1"]
    assert best == f1.max()
    at = np.flatnonzero(f1 == f1.max()).max()
    assert threshold == pytest.approx((every[at] + (every[at - 1] if at else 0)) / 2)


def test_neighbouring_floats_have_no_middle(make_case):
    case = make_case(seed=5, n_notes=2, n_labels=1)
    high = np.float32(0.5)
    scores = np.array([[high], [np.nextafter(high, np.float32(0))]])
    assert tune_threshold(case.labels, [[case.labels.codes[0]], []], scores) == high


def test_thresholds_per_code_are_exact_and_fall_back(make_case):
    case = make_case(seed=3, n_notes=120, n_labels=12, rate=0.1)
    true = case.labels.encode(case.gold).toarray()
    thresholds = tune_thresholds(case.labels, case.gold, case.scores, min_positives=8)
    frequent = true.sum(0) >= 8
    assert 0 < frequent.sum() < len(case.labels)
    assert set(thresholds[~frequent]) == {tune_threshold(case.labels, case.gold, case.scores)}
    for j in np.flatnonzero(frequent):
        scores = case.scores[:, j]
        best = max(f1_score(true[:, j], scores >= t) for t in np.unique(scores))
        assert f1_score(true[:, j], scores >= thresholds[j].astype(np.float32)) == pytest.approx(best)


def test_nothing_to_tune_on(make_case):
    case = make_case(seed=4)
    with pytest.raises(DataError, match="cannot tune a threshold"):
        tune_threshold(case.labels, [[] for _ in case.gold], case.scores)
    with pytest.raises(DataError, match="cannot tune a threshold"):
        tune_threshold(case.labels, case.gold, np.zeros_like(case.scores))
