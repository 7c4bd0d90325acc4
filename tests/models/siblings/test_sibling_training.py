"""Training of the sibling verifier."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from nosology.models.siblings.sibling_features import FEATURES, SCORED
from nosology.models.siblings.sibling_training import (
    ACCURACY,
    PENALTY,
    AnsweredQuestions,
    fit_verifier,
    held_out,
    sure_from,
)
from nosology.models.siblings.sibling_verifier import SiblingVerifier


def questions(n, siblings=(2,), scored=1.0, noise=0.5):
    """Questions whose right sibling has, up to noise, the highest third feature."""
    rng = np.random.default_rng(0)
    features, right = [], []
    for number in range(n):
        rows = rng.normal(size=(siblings[number % len(siblings)], len(FEATURES)))
        rows[:, SCORED] = scored
        answer = np.argmax(rows[:, 2] + noise * rng.normal(size=len(rows)))
        features.append(rows)
        right.append(np.arange(len(rows)) == answer)
    return AnsweredQuestions.collect(features, right, [number % 5 for number in range(n)])


def test_with_two_siblings_the_weights_are_those_of_a_logistic_regression():
    asked = questions(200)
    first = asked.features[::2] - asked.features[1::2]
    reference = LogisticRegression(C=1 / PENALTY, fit_intercept=False, tol=1e-8, max_iter=1000).fit(
        first, asked.right[::2]
    )
    assert np.allclose(fit_verifier(asked).named, reference.coef_[0], atol=1e-3)


def test_the_two_models_learn_from_their_own_questions():
    verifier = fit_verifier(questions(100, siblings=(2, 5, 3), scored=0.0))
    assert not verifier.named.any() and verifier.unnamed.argmax() == 2
    start = SiblingVerifier(np.ones(len(FEATURES)), np.zeros(len(FEATURES)), 0.5)
    again = fit_verifier(questions(100, scored=0.0), start)
    assert np.array_equal(again.named, start.named) and again.unnamed[2] > 1


def test_held_out_answers_are_right_more_often_than_by_chance():
    best, right = held_out(questions(300, siblings=(4,)))
    assert right.mean() > 0.6 and ((best > 0.25) & (best <= 1)).all()
    best, right = held_out(questions(300, siblings=(4,), noise=100.0))
    assert right.mean() < 0.4


def test_a_question_without_a_right_sibling_is_left_out():
    rows = np.zeros((3, len(FEATURES)))
    asked = AnsweredQuestions.collect([rows, rows], [np.zeros(3), np.array([0, 1, 0])], [0, 1])
    assert asked.sizes.tolist() == [3] and asked.folds.tolist() == [1]


def test_the_verifier_abstains_where_its_answers_would_not_be_accurate():
    rng = np.random.default_rng(1)
    best = rng.random(1000)
    right = rng.random(1000) < best
    limit = sure_from(best, right)
    assert right[best >= limit].mean() >= ACCURACY and limit == pytest.approx(0.8, abs=0.1)
    assert sure_from(best, np.zeros(1000, dtype=bool)) > 1
