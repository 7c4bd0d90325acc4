"""Logits of a neural coder as probabilities that mean what they say."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

NOTHING = -100.0  # the logit of what a coder does not even consider; no such cell is learned from
_PRIOR = 1.0  # how strongly a is held to 1 and b to 0, in units of one cell; dev has thousands
_SMALLEST = 1e-3  # a stays above it: a higher logit is never a lower probability


@dataclass(frozen=True)
class Platt:
    """P = sigmoid(a logit + b), one pair for all codes, so that it serves codes never seen as well (Platt 1999)."""

    a: float = 1.0
    b: float = 0.0

    @classmethod
    def fit(cls, logits: np.ndarray, gold: sparse.csr_matrix, max_cells: int = 4_000_000) -> Platt:
        """The pair of highest likelihood on logits (B, L) of notes that the model was not trained on.

        gold: 0/1 (B, L). Cells with the logit `NOTHING` are passed over. Of more than `max_cells` cells, evenly spaced
        notes are taken. Without a true cell there is nothing to learn from, and the logits are believed as they are.
        """
        step = max(1, -(-logits.size // max_cells))
        logits, target = logits[::step], np.asarray(gold[::step].todense(), dtype=bool)
        considered = logits > NOTHING
        if not target[considered].any():
            return cls()
        x, true = logits[considered].astype(np.float64), target[considered].astype(np.float64)
        return cls.of_counts(x, true, 1 - true)

    @classmethod
    def of_counts(cls, logits: np.ndarray, true: np.ndarray, false: np.ndarray) -> Platt:
        """The pair of highest likelihood for logits (N,) with so many true and false cells each (N,)."""
        if not true.any():
            return cls()

        def loss(pair: np.ndarray) -> tuple[float, np.ndarray]:
            margin = pair[0] * logits + pair[1]
            slope = false * expit(margin) - true * expit(-margin)
            away = pair - (1.0, 0.0)
            value = true @ np.logaddexp(0, -margin) + false @ np.logaddexp(0, margin) + _PRIOR / 2 * away @ away
            return value, np.array([slope @ logits, slope.sum()]) + _PRIOR * away

        found = minimize(
            loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(_SMALLEST, None), (None,) * 2]
        )
        return cls(float(found.x[0]), float(found.x[1]))

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities (B, L), float32, of logits (B, L)."""
        return expit(np.float32(self.a) * logits + np.float32(self.b)).astype(np.float32)

    def to_json(self) -> dict[str, float]:
        """The two numbers by name."""
        return asdict(self)
