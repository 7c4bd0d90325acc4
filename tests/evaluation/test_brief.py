"""The two numbers of a validation."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.evaluation import brief, evaluate

LABELS = LabelSpace([Code("icd10cm", f"A{i:02}") for i in range(12)])


def test_they_are_those_of_the_evaluation():
    rng = np.random.default_rng(0)
    scores, true = rng.random((40, 12)).astype(np.float32), rng.random((40, 12)) < 0.2
    gold = [[LABELS.codes[j] for j in np.flatnonzero(row)] for row in true]
    found = brief(LABELS, gold, scores)
    assert found["map"] == pytest.approx(evaluate(LABELS, gold, scores, 0.5)["map"])
    best = max(f1_score(true, scores >= value, average="micro") for value in np.unique(scores[true]))
    assert found["micro_f1"] == pytest.approx(best)


def test_equal_scores_are_not_all_first():
    assert brief(LABELS, [LABELS.codes[:2]], np.ones((1, 12)))["map"] == pytest.approx(2 / 12)


def test_without_a_scored_true_code_both_are_0():
    unknown = [[Code("icd9cm", "428.0")]]
    assert brief(LABELS, unknown, np.ones((1, 12))) == {"map": 0.0, "micro_f1": 0.0}
    assert brief(LABELS, [LABELS.codes[:1]], np.zeros((1, 12))) == {"map": 0.0, "micro_f1": 0.0}
