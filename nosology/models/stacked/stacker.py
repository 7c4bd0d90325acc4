"""The stacker: a classifier of cells, shared by all codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from nosology.models.lexicon.trees import Trees
from nosology.models.stacked.stacked_settings import StackingSettings

_STRENGTH = 0.01  # inverse regularisation of the logistic regression, on standardised features
_CONSTANT = 1e-6


@dataclass(frozen=True)
class Stacker:
    """The mean logit of a logistic regression and of boosted trees.

    The regression extrapolates and needs few notes; the trees find where a part is right and where it is not.
    """

    weights: np.ndarray  # (F,) of the features as they are, not standardised
    bias: float
    trees: Trees

    @classmethod
    def fit(cls, features: np.ndarray, target: np.ndarray, settings: StackingSettings, seed: int) -> Stacker:
        """The stacker of cells (N, F) of held-out notes; target: (N,) of 0/1."""
        trees = Trees.boost(
            features,
            target,
            rounds=settings.rounds,
            leaves=settings.leaves,
            learning_rate=settings.learning_rate,
            min_leaf=settings.min_leaf,
            seed=seed,
        )
        if target.all() or not target.any():
            return cls(np.zeros(features.shape[1]), trees.start, trees)
        from sklearn.linear_model import LogisticRegression

        features = features.astype(np.float64)
        mean, scale = features.mean(0), features.std(0)
        scale[scale < _CONSTANT] = np.inf  # such a feature says nothing here: its weight is 0
        fitted = LogisticRegression(C=_STRENGTH, max_iter=1000).fit((features - mean) / scale, target)
        weights = fitted.coef_[0] / scale
        return cls(weights, float(fitted.intercept_[0] - weights @ mean), trees)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Probabilities (N,), float32, of cells (N, F)."""
        linear = features @ self.weights + self.bias
        boosted = self.trees.probabilities(features)
        return expit((linear + logit(np.clip(boosted, _CONSTANT, 1 - _CONSTANT))) / 2).astype(np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays for a safetensors file."""
        return {"weights": self.weights, "bias": np.array([self.bias])} | self.trees.arrays("trees")

    @classmethod
    def from_arrays(cls, stored: Mapping[str, np.ndarray]) -> Stacker:
        return cls(stored["weights"], float(stored["bias"][0]), Trees.from_arrays(stored, "trees"))
