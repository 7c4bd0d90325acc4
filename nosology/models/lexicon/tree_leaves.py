"""The leaves that rows of features reach in decision trees: by bit masks in small trees, node by node in large ones.

Trees are given as flat arrays of nodes; left and right of a leaf are the leaf itself. Both ways give the same leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

MAX_MASKED = 16  # leaves of a tree whose leaves are the bits of a mask
_BLOCK = 1 << 18  # (row, tree) pairs that are evaluated together


class TreeNodes(Protocol):
    """The nodes of K trees; a row goes left at a node where its feature is at most the threshold."""

    @property
    def feature(self) -> np.ndarray: ...  # (nodes,)
    @property
    def threshold(self) -> np.ndarray: ...  # (nodes,)
    @property
    def left(self) -> np.ndarray: ...  # (nodes,)
    @property
    def right(self) -> np.ndarray: ...  # (nodes,)
    @property
    def value(self) -> np.ndarray: ...  # (nodes,)
    @property
    def roots(self) -> np.ndarray: ...  # (K,)


def largest_tree(trees: TreeNodes) -> int:
    """The number of leaves of the tree with most leaves."""
    is_leaf = trees.left == np.arange(len(trees.left))
    return int(np.add.reduceat(is_leaf, trees.roots, dtype=np.int64).max()) if len(trees.roots) else 0


def float32_at_most(values: np.ndarray) -> np.ndarray:
    """The largest float32 numbers that are not above the values: a float32 is at most one iff at most the other."""
    rounded = values.astype(np.float32)
    return np.where(rounded > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)


class LeafMasks:
    """Trees with at most 16 leaves, after QuickScorer (Lucchese et al. 2015).

    A row that does not go left at a node cannot reach the leaves left of it: the node clears their bits. The leaf of a
    row is the first bit that is still set. For each feature there is a table of what all nodes clear, by threshold.
    """

    def __init__(self, trees: TreeNodes):
        n_trees = len(trees.roots)
        self._values = np.zeros((n_trees, MAX_MASKED))  # of the leaves from left to right
        splits = [(node, tree, mask) for tree in range(n_trees) for node, mask in self._splits(trees, tree)]
        nodes, of_tree, masks = np.array(splits, dtype=np.int64).reshape(-1, 3).T
        thresholds = float32_at_most(trees.threshold[nodes])
        self._tables: list[tuple[int, np.ndarray, np.ndarray]] = []
        for feature in np.unique(trees.feature[nodes]).tolist():
            own = np.flatnonzero(trees.feature[nodes] == feature)
            cuts, place = np.unique(thresholds[own], return_inverse=True)
            table = np.full((len(cuts) + 1, n_trees), 0xFFFF, dtype=np.uint16)
            np.bitwise_and.at(table, (place + 1, of_tree[own]), masks[own].astype(np.uint16))
            self._tables.append((feature, cuts, np.bitwise_and.accumulate(table, axis=0)))

    def _splits(self, trees: TreeNodes, tree: int) -> Iterator[tuple[int, int]]:
        """The inner nodes of a tree with their masks; sets the values of its leaves."""
        leaves = 0

        def walk(node: int) -> Iterator[tuple[int, int]]:
            nonlocal leaves
            if trees.left[node] == node:
                self._values[tree, leaves] = trees.value[node]
                leaves += 1
                return
            first = leaves
            yield from walk(int(trees.left[node]))
            yield node, 0xFFFF ^ ((1 << leaves) - (1 << first))
            yield from walk(int(trees.right[node]))

        yield from walk(int(trees.roots[tree]))

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The values (N, K) of the leaves of float32 rows (N, F)."""
        alive = np.full((len(rows), len(self._values)), 0xFFFF, dtype=np.uint16)
        for feature, cuts, table in self._tables:
            alive &= table.take(np.searchsorted(cuts, rows[:, feature]), axis=0)
        return self._values[np.arange(len(self._values)), _LOWEST_BIT.take(alive)]


_MASKS = np.arange(1 << MAX_MASKED)
_LOWEST_BIT = np.log2(np.maximum(_MASKS & -_MASKS, 1)).astype(np.uint8)  # of each mask


class NodeWalk:
    """Trees of any size: all rows go down all trees together, and drop out at their leaves."""

    def __init__(self, trees: TreeNodes):
        self._feature = trees.feature.astype(np.intp)
        self._threshold = float32_at_most(trees.threshold)
        self._children = np.stack([trees.left, trees.right], axis=1).astype(np.intp).ravel()
        self._is_inner = trees.left != np.arange(len(trees.left))
        self._value, self._roots = trees.value, trees.roots.astype(np.intp)

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The values (N, K) of the leaves of float32 rows (N, F)."""
        size = max(1, _BLOCK // max(1, len(self._roots)))
        blocks = [self._leaves(rows[start : start + size]) for start in range(0, len(rows), size)]
        leaves = np.concatenate([np.zeros(0, dtype=np.intp), *blocks])
        return self._value[leaves.reshape(len(rows), len(self._roots))]

    def _leaves(self, rows: np.ndarray) -> np.ndarray:
        """The leaf of each pair of row and tree, flat."""
        cells = np.ascontiguousarray(rows).ravel()
        leaves = np.tile(self._roots, len(rows))
        pairs = np.flatnonzero(self._is_inner.take(leaves))  # that have not reached their leaves
        at, first_cell = leaves[pairs], pairs // len(self._roots) * rows.shape[1]
        while len(pairs):
            goes_right = cells.take(first_cell + self._feature.take(at)) > self._threshold.take(at)
            at = self._children.take(2 * at + goes_right)
            inner = self._is_inner.take(at)
            if np.count_nonzero(inner) < 0.8 * len(pairs):  # removing a few costs more than it saves
                leaves[pairs] = at
                pairs, at, first_cell = pairs[inner], at[inner], first_cell[inner]
        return leaves
