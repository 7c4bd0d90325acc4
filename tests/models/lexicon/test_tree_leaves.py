"""Rows of features reach the same leaves by bit masks, together and one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.models.lexicon.tree_leaves import MAX_MASKED, LeafMasks, NodeWalk, float32_at_most, largest_tree
from nosology.models.lexicon.trees import Trees


def random_trees(rng, n_trees, leaves, features=4):
    """Trees with up to `leaves` leaves, split at random; thresholds are often values of rows."""
    columns = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    roots = []
    for _ in range(n_trees):
        roots.append(len(columns["left"]))
        open_leaves = [_leaf(columns, rng)]
        for _ in range(rng.integers(0, leaves)):
            node = open_leaves.pop(rng.integers(len(open_leaves)))
            columns["feature"][node], columns["value"][node] = int(rng.integers(features)), 0.0
            columns["threshold"][node] = float(rng.integers(-2, 3)) + rng.choice([0.0, 0.5, 1e-9, -1e-9])
            columns["left"][node], columns["right"][node] = _leaf(columns, rng), _leaf(columns, rng)
            open_leaves += [columns["left"][node], columns["right"][node]]
    types = {"feature": np.int32, "left": np.int32, "right": np.int32}
    arrays = {name: np.array(values, dtype=types.get(name, np.float64)) for name, values in columns.items()}
    return Trees(**arrays, roots=np.array(roots, dtype=np.int32), start=0.0, depth=leaves)


def _leaf(columns, rng):
    node = len(columns["left"])
    for name, value in {"feature": 0, "threshold": np.inf, "left": node, "right": node, "value": rng.normal()}.items():
        columns[name].append(value)
    return node


def plain_values(trees, rows):
    """The definition: from the root to the left if the feature is at most the threshold, until a leaf."""
    values = np.zeros((len(rows), len(trees.roots)))
    for i, row in enumerate(rows):
        for k, node in enumerate(trees.roots.tolist()):
            while trees.left[node] != node:
                is_left = float(row[trees.feature[node]]) <= trees.threshold[node]
                node = (trees.left if is_left else trees.right)[node]
            values[i, k] = trees.value[node]
    return values


@pytest.mark.parametrize("leaves", [1, 2, 7, MAX_MASKED])
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), n=st.integers(0, 8))
def test_leaves_are_those_of_the_definition(leaves, seed, n):
    rng = np.random.default_rng(seed)
    trees = random_trees(rng, 5, leaves)
    rows = (rng.integers(-3, 4, (n, 4)) + rng.choice([0.0, 0.5], (n, 4))).astype(np.float32)
    expected = plain_values(trees, rows)
    np.testing.assert_array_equal(NodeWalk(trees).values(rows), expected)
    np.testing.assert_array_equal(LeafMasks(trees).values(rows), expected)
    assert largest_tree(trees) <= MAX_MASKED


def test_large_trees_and_many_rows(monkeypatch):
    monkeypatch.setattr("nosology.models.lexicon.tree_leaves._BLOCK", 40)
    rng = np.random.default_rng(0)
    trees = random_trees(rng, 6, 200)
    rows = rng.normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(NodeWalk(trees).values(rows), plain_values(trees, rows))
    np.testing.assert_allclose(
        trees.probabilities(rows), 1 / (1 + np.exp(-plain_values(trees, rows).sum(axis=1))), rtol=1e-12
    )


@settings(deadline=None)
@given(st.floats(-(2.0**99), 2.0**99), st.floats(-(2.0**99), 2.0**99, width=32))
def test_rounded_threshold_separates_the_same_numbers(threshold, number):
    rounded = float32_at_most(np.array([threshold]))
    assert (np.float32(number) <= rounded[0]) == (float(number) <= threshold)
    assert float(rounded[0]) <= threshold
