"""Boosted and extremely randomized trees as arrays: fitted with scikit-learn, stored and evaluated without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nosology.models.lexicon.tree_leaves import MAX_MASKED, LeafMasks, NodeWalk, largest_tree

_ARRAYS = ("feature", "threshold", "left", "right", "value", "roots")


@dataclass(frozen=True)
class Trees:
    """K binary trees over F features; a row goes left at a node where its feature is at most the threshold.

    total = start + the values of the K leaves of a row. The probability is sigmoid(total) for boosted trees, and the
    total for a forest. left and right of a leaf are the leaf itself, so all rows take `depth` steps in all trees.
    """

    feature: np.ndarray  # (nodes,)
    threshold: np.ndarray  # (nodes,)
    left: np.ndarray  # (nodes,)
    right: np.ndarray  # (nodes,)
    value: np.ndarray  # (nodes,) 0 except at leaves
    roots: np.ndarray  # (K,)
    start: float
    depth: int
    boosted: bool = True

    @classmethod
    def boost(
        cls,
        rows: np.ndarray,
        target: np.ndarray,
        *,
        rounds: int,
        leaves: int,
        learning_rate: float,
        min_leaf: int,
        seed: int,
    ) -> Trees:
        """Gradient-boosted trees that separate true from false rows (N, F); target: (N,) of 0/1."""
        if target.all() or not target.any():
            return cls.constant(float(np.clip(target.mean() if len(target) else 0.0, 0.01, 0.99)))
        from sklearn.ensemble import HistGradientBoostingClassifier

        fitted = HistGradientBoostingClassifier(
            max_iter=rounds,
            max_leaf_nodes=leaves,
            learning_rate=learning_rate,
            min_samples_leaf=min_leaf,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=seed,
        ).fit(rows.astype(np.float64), target)
        trees = [predictors[0].nodes for predictors in fitted._predictors]  # private; a test compares predict_proba
        nodes = np.concatenate(trees)
        return cls._pack(
            [len(tree) for tree in trees],
            nodes["is_leaf"].astype(bool),
            *(nodes[name] for name in ("feature_idx", "num_threshold", "left", "right", "value")),
            start=float(fitted._baseline_prediction.ravel()[0]),
            depth=int(nodes["depth"].max()),
        )

    @classmethod
    def forest(
        cls,
        rows: np.ndarray,
        target: np.ndarray,
        *,
        trees: int,
        leaves: int,
        min_leaf: int,
        seed: int,
        threads: int = 1,
    ) -> Trees:
        """Extremely randomized trees for the same task (Geurts et al. 2006), the same for any number of threads.

        Their errors are other ones. A random forest takes 2.6 times as long, because it sorts the values at each node.
        """
        if target.all() or not target.any():
            return cls.constant(float(np.clip(target.mean() if len(target) else 0.0, 0.01, 0.99)))
        from sklearn.ensemble import ExtraTreesClassifier

        fitted = ExtraTreesClassifier(
            trees,
            max_leaf_nodes=leaves,
            min_samples_leaf=min_leaf,
            max_features=0.3,
            random_state=seed,
            n_jobs=threads,
        ).fit(rows, target)
        grown = [estimator.tree_ for estimator in fitted.estimators_]
        left, right, feature, threshold = (
            np.concatenate([getattr(tree, name) for tree in grown])
            for name in ("children_left", "children_right", "feature", "threshold")
        )
        value = np.concatenate([tree.value[:, 0, 1] / tree.value[:, 0].sum(axis=1) for tree in grown])
        return cls._pack(
            [tree.node_count for tree in grown],
            left < 0,
            feature,
            threshold,
            left,
            right,
            value / trees,
            start=0.0,
            depth=max(tree.max_depth for tree in grown),
            boosted=False,
        )

    @classmethod
    def _pack(
        cls,
        sizes: list[int],
        is_leaf: np.ndarray,
        feature: np.ndarray,
        threshold: np.ndarray,
        left: np.ndarray,
        right: np.ndarray,
        value: np.ndarray,
        **rest: Any,
    ) -> Trees:
        """The trees with these numbers of nodes; left and right count nodes within each tree."""
        roots = np.cumsum([0, *sizes[:-1]])
        first, node = np.repeat(roots, sizes), np.arange(sum(sizes))
        return cls(
            np.where(is_leaf, 0, feature).astype(np.int32),
            np.where(is_leaf, np.inf, threshold),
            np.where(is_leaf, node, left + first).astype(np.int32),
            np.where(is_leaf, node, right + first).astype(np.int32),
            np.where(is_leaf, value, 0.0),
            roots.astype(np.int32),
            **rest,
        )

    @classmethod
    def constant(cls, share: float) -> Trees:
        """No tree: every row has the same probability."""
        none, numbers = np.zeros(0, dtype=np.int32), np.zeros(0)
        return cls(none, numbers, none, none, numbers, none, float(np.log(share / (1 - share))), 0)

    @classmethod
    def average(cls, ensembles: Sequence[Trees], weights: Sequence[float]) -> Trees:
        """All trees of several ensembles, with the weighted mean of their totals.

        All are boosted, or none is but those without a tree, which have a constant probability.
        """
        shares, boosted = np.array(weights) / sum(weights), all(trees.boosted for trees in ensembles)
        # Of a forest without a tree, `start` is a logit.
        starts = [1 / (1 + np.exp(-one.start)) if one.boosted and not boosted else one.start for one in ensembles]
        first = np.cumsum([0, *(len(trees.feature) for trees in ensembles)])
        moved = {
            name: np.concatenate([getattr(trees, name) + start for trees, start in zip(ensembles, first)])
            for name in ("left", "right", "roots")
        }
        return cls(
            np.concatenate([trees.feature for trees in ensembles]),
            np.concatenate([trees.threshold for trees in ensembles]),
            moved["left"].astype(np.int32),
            moved["right"].astype(np.int32),
            np.concatenate([trees.value * share for trees, share in zip(ensembles, shares)]),
            moved["roots"].astype(np.int32),
            start=float(np.dot(starts, shares)),
            depth=max(trees.depth for trees in ensembles),
            boosted=boosted,
        )

    @cached_property
    def _leaves(self) -> LeafMasks | NodeWalk:
        return LeafMasks(self) if largest_tree(self) <= MAX_MASKED else NodeWalk(self)

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Probabilities (N,) of rows (N, F)."""
        from scipy.special import expit  # takes long to import, and only trained lexicons need it

        total = self.start + self._leaves.values(rows.astype(np.float32, copy=False)).sum(axis=1)
        return expit(total) if self.boosted else total

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays for a safetensors file; their names start with `name`."""
        numbers = np.array([self.start, self.depth, self.boosted], dtype=np.float64)
        return {f"{name}.{part}": getattr(self, part) for part in _ARRAYS} | {f"{name}.numbers": numbers}

    @classmethod
    def from_arrays(cls, stored: Mapping[str, np.ndarray], name: str) -> Trees:
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
        return cls(Trees.constant(share), Trees.constant(share))

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Probabilities (N,) of rows (N, F)."""
        return (self.boosted.probabilities(rows) + self.forest.probabilities(rows)) / 2

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return self.boosted.arrays(f"{name}.boosted") | self.forest.arrays(f"{name}.forest")

    @classmethod
    def from_arrays(cls, stored: Mapping[str, np.ndarray], name: str) -> TreeEnsemble:
        return cls(*(Trees.from_arrays(stored, f"{name}.{part}") for part in ("boosted", "forest")))
