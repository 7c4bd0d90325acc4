"""Trees as arrays predict what scikit-learn predicts."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier

from nosology.models.lexicon.trees import TreeEnsemble, Trees

SETTINGS = {"rounds": 30, "leaves": 8, "learning_rate": 0.2, "min_leaf": 5, "seed": 0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 5)).astype(np.float32)
    rows[:, 4] = rng.integers(0, 4, 600)
    return rows, (rows[:, 0] * rows[:, 1] + rows[:, 4] > 1).astype(bool)


def test_boosted_trees_predict_as_scikit_learn(data):
    rows, target = data
    fitted = HistGradientBoostingClassifier(
        max_iter=30, max_leaf_nodes=8, learning_rate=0.2, min_samples_leaf=5, l2_regularization=1.0,
        early_stopping=False, random_state=0,
    ).fit(rows.astype(np.float64), target)  # fmt: skip
    probabilities = Trees.boost(rows, target, **SETTINGS).probabilities(rows)
    np.testing.assert_allclose(probabilities, fitted.predict_proba(rows.astype(np.float64))[:, 1], atol=1e-9)
    assert ((probabilities > 0.5) == target).mean() > 0.95


def test_arrays_round_trip(data):
    rows, target = data
    trees = Trees.boost(rows, target, **SETTINGS)
    again = Trees.from_arrays(trees.arrays("t"), "t")
    np.testing.assert_array_equal(again.probabilities(rows), trees.probabilities(rows))


def test_rows_of_one_class_give_a_constant(data):
    rows, _ = data
    for target, low, high in ((np.ones(len(rows), bool), 0.9, 1.0), (np.zeros(len(rows), bool), 0.0, 0.1)):
        probabilities = Trees.boost(rows, target, **SETTINGS).probabilities(rows)
        assert probabilities.shape == (600,) and (probabilities > low).all() and (probabilities < high).all()


def test_no_rows_give_no_probabilities(data):
    rows, target = data
    assert Trees.boost(rows, target, **SETTINGS).probabilities(rows[:0]).shape == (0,)


def test_forest_predicts_as_scikit_learn(data):
    rows, target = data
    fitted = ExtraTreesClassifier(20, max_leaf_nodes=50, min_samples_leaf=3, max_features=0.3, random_state=0)
    expected = fitted.fit(rows, target).predict_proba(rows)[:, 1]
    forest = Trees.forest(rows, target, trees=20, leaves=50, min_leaf=3, seed=0)
    np.testing.assert_allclose(forest.probabilities(rows), expected, atol=1e-9)
    again = TreeEnsemble.from_arrays(TreeEnsemble(Trees.boost(rows, target, **SETTINGS), forest).arrays("w"), "w")
    both = (expected + Trees.boost(rows, target, **SETTINGS).probabilities(rows)) / 2
    np.testing.assert_allclose(again.probabilities(rows), both, atol=1e-9)
