"""Boosted trees and random forests as plain arrays: fitted by scikit-learn, stored and evaluated without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

_ARRAYS = ("feature", "threshold", "left", "right", "value", "roots")


@dataclass(frozen=True)
class Trees:
    """K binary trees over F features; a row goes left at a node where its feature is at most the threshold.

    total = start + the values of the K leaves that a row falls into; the probability is sigmoid(total) of boosted
    trees, the total itself of a forest. At a leaf, left and right lead back to the leaf, so that all rows take `depth`
    steps in all trees at once.
    """

    feature: np.ndarray  # (nodes,)
    threshold: np.ndarray  # (nodes,)
    left: np.ndarray  # (nodes,)
    right: np.ndarray  # (nodes,)
    value: np.ndarray  # (nodes,) 0 but at leaves
    roots: np.ndarray  # (K,)
    start: float
    depth: int
    boosted: bool = True

    @classmethod
    def boost(
        cls, rows: np.ndarray, target: np.ndarray, *, rounds: int, leaves: int, rate: float, min_leaf: int, seed: int
    ) -> Trees:
        """Trees that tell true rows from others; rows (N, F), target (N,) of 0/1. Of one kind alone: a constant."""
        if target.all() or not target.any():
            return cls.constant(float(np.clip(target.mean() if len(target) else 0.0, 0.01, 0.99)))
        from sklearn.ensemble import HistGradientBoostingClassifier

        fitted = HistGradientBoostingClassifier(
            max_iter=rounds,
            max_leaf_nodes=leaves,
            learning_rate=rate,
            min_samples_leaf=min_leaf,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=seed,
        ).fit(rows.astype(np.float64), target)
        nodes = [grown[0].nodes for grown in fitted._predictors]  # a test holds this against predict_proba
        roots = np.cumsum([0, *(len(tree) for tree in nodes[:-1])])
        whole = np.concatenate(nodes)
        first = np.repeat(roots, [len(tree) for tree in nodes])
        leaf, own = whole["is_leaf"].astype(bool), np.arange(len(whole))
        return cls(
            np.where(leaf, 0, whole["feature_idx"]).astype(np.int32),
            np.where(leaf, np.inf, whole["num_threshold"]),
            np.where(leaf, own, whole["left"] + first).astype(np.int32),
            np.where(leaf, own, whole["right"] + first).astype(np.int32),
            np.where(leaf, whole["value"], 0.0),
            roots.astype(np.int32),
            float(fitted._baseline_prediction.ravel()[0]),
            int(whole["depth"].max()),
        )

    @classmethod
    def forest(
        cls, rows: np.ndarray, target: np.ndarray, *, trees: int, leaves: int, min_leaf: int, seed: int
    ) -> Trees:
        """A random forest for the same task: less sharp than boosted trees, and wrong in other places."""
        if target.all() or not target.any():
            return cls.constant(float(np.clip(target.mean() if len(target) else 0.0, 0.01, 0.99)))
        from sklearn.ensemble import RandomForestClassifier

        fitted = RandomForestClassifier(
            trees, max_leaf_nodes=leaves, min_samples_leaf=min_leaf, max_features=0.3, random_state=seed
        ).fit(rows, target)
        grown = [one.tree_ for one in fitted.estimators_]
        sizes = [tree.node_count for tree in grown]
        roots = np.cumsum([0, *sizes[:-1]])
        first, own = np.repeat(roots, sizes), np.arange(sum(sizes))
        left, right, feature, threshold = (
            np.concatenate([getattr(tree, name) for tree in grown])
            for name in ("children_left", "children_right", "feature", "threshold")
        )
        leaf = left < 0
        value = np.concatenate([tree.value[:, 0, 1] / tree.value[:, 0].sum(axis=1) for tree in grown])
        return cls(
            np.where(leaf, 0, feature).astype(np.int32),
            np.where(leaf, np.inf, threshold),
            np.where(leaf, own, left + first).astype(np.int32),
            np.where(leaf, own, right + first).astype(np.int32),
            np.where(leaf, value / trees, 0.0),
            roots.astype(np.int32),
            0.0,
            max(tree.max_depth for tree in grown),
            boosted=False,
        )

    @classmethod
    def constant(cls, share: float) -> Trees:
        """No tree at all: every row has the same probability."""
        none, numbers = np.zeros(0, dtype=np.int32), np.zeros(0)
        return cls(none, numbers, none, none, numbers, none, float(np.log(share / (1 - share))), 0)

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Probabilities (N,) of rows (N, F)."""
        at = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        row = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            lower = rows[row, self.feature[at]] <= self.threshold[at]
            at = np.where(lower, self.left[at], self.right[at])
        total = self.start + self.value[at].sum(axis=1)
        return expit(total) if self.boosted else total

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The trees for a safetensors file, each array's name begun with `name`."""
        numbers = np.array([self.start, self.depth, self.boosted], dtype=np.float64)
        return {f"{name}.{part}": getattr(self, part) for part in _ARRAYS} | {f"{name}.numbers": numbers}

    @classmethod
    def from_arrays(cls, stored: Mapping[str, np.ndarray], name: str) -> Trees:
        """The trees that `arrays` gave."""
        start, depth, boosted = stored[f"{name}.numbers"].tolist()
        arrays = {part: stored[f"{name}.{part}"] for part in _ARRAYS}
        return cls(**arrays, start=start, depth=int(depth), boosted=bool(boosted))


@dataclass(frozen=True)
class TreeEnsemble:
    """The mean of boosted trees and a forest."""

    boosted: Trees
    forest: Trees

    @classmethod
    def constant(cls, share: float) -> TreeEnsemble:
        """The same probability for every row."""
        return cls(Trees.constant(share), Trees.constant(share))

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Probabilities (N,) of rows (N, F)."""
        return (self.boosted.probabilities(rows) + self.forest.probabilities(rows)) / 2

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Both for a safetensors file."""
        return self.boosted.arrays(f"{name}.boosted") | self.forest.arrays(f"{name}.forest")

    @classmethod
    def from_arrays(cls, stored: Mapping[str, np.ndarray], name: str) -> TreeEnsemble:
        """What `arrays` gave."""
        return cls(*(Trees.from_arrays(stored, f"{name}.{part}") for part in ("boosted", "forest")))
