"""Scores of one-against-rest models as probabilities."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from scipy import sparse
from scipy.special import expit


@dataclass(frozen=True)
class Calibration:
    """P(code | score s, n training notes of the code) = sigmoid(a + b s + c log n + d s log n).

    One curve serves all codes, since most codes have too few notes for one of their own; n lets it bend, because the
    score of a code seen once means something else than that of a code seen a thousand times.

    Where dev says little, an assumption stands in: at score 1 a code is true nine times in ten, at -1 once in ten, for
    rare codes as for frequent ones. It weighs as much as four cells.
    """

    intercept: float
    score: float
    log_notes: float
    both: float

    @classmethod
    def fit(
        cls, scores: np.ndarray, gold: sparse.csr_matrix, notes: np.ndarray, max_cells: int = 4_000_000
    ) -> Calibration:
        """The curve of highest likelihood on scores (B, L) of notes that the model was not trained on.

        gold: 0/1 (B, L). notes: (L,) training notes of each code. Of more than `max_cells` cells, evenly spaced notes
        are taken. Without a true cell the assumption stands alone.
        """
        from sklearn.linear_model import LogisticRegression

        step = -(-scores.size // max_cells)
        scores, gold = scores[::step], gold[::step]
        target = np.asarray(gold.todense(), dtype=bool).ravel()
        s, log_notes = scores.ravel(), np.broadcast_to(np.log(notes), scores.shape).ravel()
        if not target.any():
            s, log_notes, target = s[:0], log_notes[:0], target[:0]
        rare, frequent = np.log(notes.min()), np.log(notes.max())
        s = np.concatenate([s, np.tile([1.0, 1.0, -1.0, -1.0], 2)])
        log_notes = np.concatenate([log_notes, np.repeat([rare, frequent], 4)])
        weight = np.concatenate([np.ones(len(target)), np.tile([0.9, 0.1, 0.1, 0.9], 2)])
        target = np.concatenate([target, np.tile([True, False], 4)])
        features = np.column_stack([s, log_notes, s * log_notes])
        # A trace of regularisation keeps the curve defined where all codes have equally many notes.
        fitted = LogisticRegression(C=1e3, solver="newton-cholesky", tol=1e-8).fit(features, target, weight)
        return cls(float(fitted.intercept_[0]), *map(float, fitted.coef_[0]))

    def __call__(self, scores: np.ndarray, notes: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of scores (B, L)."""
        log_notes = np.log(notes)
        slope = self.score + self.both * log_notes
        return expit(scores * slope + (self.intercept + self.log_notes * log_notes)).astype(np.float32)

    def to_json(self) -> dict[str, float]:
        """The four numbers by name."""
        return asdict(self)
