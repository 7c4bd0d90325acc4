"""Calibration: from logits or scores of a model to probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit

EXCLUDED_LOGIT = -100.0  # the logit of a code that a model excludes for a note; calibration ignores such cells
_PRIOR = 1.0  # strength of the prior a = 1, b = 0, in cells; the dev notes have thousands
_MIN_SLOPE = 1e-3  # lower bound of a: a higher logit never gets a lower probability
_CODE_PRIOR = (10.0, 2.0)  # strength of the prior of the pair of one code; it is centred at the pair of all codes


@dataclass(frozen=True)
class PlattScaling:
    """P = sigmoid(a logit + b) (Platt, 1999), with one pair for all codes, so it also serves codes never seen."""

    a: float = 1.0
    b: float = 0.0

    @classmethod
    def fit(cls, logits: np.ndarray, gold: sparse.csr_matrix, max_cells: int = 4_000_000) -> PlattScaling:
        """The pair of highest likelihood for logits (B, L) of notes that the model was not trained on.

        gold: 0/1 (B, L). Cells with `EXCLUDED_LOGIT` are ignored. If there are more than `max_cells` cells, evenly
        spaced notes are used. Without a true cell the result is the identity: a = 1, b = 0.
        """
        step = max(1, -(-logits.size // max_cells))
        logits, target = logits[::step], sparse.csr_matrix(gold[::step]).toarray().astype(bool)
        included = logits > EXCLUDED_LOGIT
        if not target[included].any():
            return cls()
        x, true = logits[included].astype(np.float64), target[included].astype(np.float64)
        return cls.fit_counts(x, true, 1 - true)

    @classmethod
    def fit_counts(cls, logits: np.ndarray, true: np.ndarray, false: np.ndarray) -> PlattScaling:
        """The pair of highest likelihood for logits (N,) with counts of true and of false cells (N,)."""
        return cls(*_fit_pair(logits, true, false, (1.0, 0.0), (_PRIOR, _PRIOR))) if true.any() else cls()

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities (B, L), float32, of logits (B, L)."""
        return expit(np.float32(self.a) * logits + np.float32(self.b)).astype(np.float32)


@dataclass(frozen=True)
class CodeScaling:
    """P = sigmoid(a_l logit + b_l): Platt scaling with a pair for each code l."""

    a: list[float]  # (L,)
    b: list[float]

    @classmethod
    def fit(cls, logits: np.ndarray, gold: sparse.csr_matrix) -> CodeScaling:
        """The pairs for logits (B, L) of notes that the model was not trained on; gold: 0/1 (B, L).

        The pair of a code is drawn towards the pair of all codes by a prior, so that a code with few notes keeps that
        pair. Cells with `EXCLUDED_LOGIT` are ignored.
        """
        shared = PlattScaling.fit(logits, gold)
        target, included = gold.toarray().astype(np.float64), logits > EXCLUDED_LOGIT
        pairs = []
        for label in range(logits.shape[1]):
            cells = included[:, label]
            x, true = logits[cells, label].astype(np.float64), target[cells, label]
            pairs.append(_fit_pair(x, true, 1 - true, (shared.a, shared.b), _CODE_PRIOR))
        return cls([a for a, _ in pairs], [b for _, b in pairs])

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities (B, L), float32, of logits (B, L)."""
        return expit(np.array(self.a, np.float32) * logits + np.array(self.b, np.float32)).astype(np.float32)


Scaling = PlattScaling | CodeScaling


def scaling_from_json(value: dict[str, Any]) -> Scaling:
    """The scaling whose fields are in a JSON object."""
    return CodeScaling(**value) if isinstance(value["a"], list) else PlattScaling(**value)


def choose_scaling(logits: np.ndarray, gold: sparse.csr_matrix, fold: np.ndarray) -> Scaling:
    """One pair for all codes, or one per code if that predicts better: fitted on the folds but one, tested on that one.

    logits, gold: as for `fit`. fold: (B,) of each note. Pairs per code must lower the cross-entropy of a note by more
    than one standard error of the difference.
    """
    gain = np.zeros(len(logits))
    for number in np.unique(fold):
        test = fold == number
        if not test.all():
            known = logits[~test], sparse.csr_matrix(gold[~test])
            new = logits[test], sparse.csr_matrix(gold[test])
            shared, by_code = (cross_entropies(kind.fit(*known), *new) for kind in (PlattScaling, CodeScaling))
            gain[test] = shared - by_code
    helps = gain.mean() > gain.std() / max(1, len(gain)) ** 0.5
    return CodeScaling.fit(logits, gold) if helps else PlattScaling.fit(logits, gold)


def cross_entropies(scaling: Scaling, logits: np.ndarray, gold: sparse.csr_matrix) -> np.ndarray:
    """The summed cross-entropy (B,) of each note; cells with `EXCLUDED_LOGIT` are ignored."""
    probabilities = np.clip(scaling(logits).astype(np.float64), 1e-7, 1 - 1e-7)
    losses = np.where(gold.toarray().astype(bool), np.log(probabilities), np.log1p(-probabilities))
    return -np.where(logits > EXCLUDED_LOGIT, losses, 0).sum(1)


def _fit_pair(
    logits: np.ndarray,
    true: np.ndarray,
    false: np.ndarray,
    center: tuple[float, float],
    strength: tuple[float, float],
) -> tuple[float, float]:
    """The pair (a, b) of highest posterior for logits (N,) with counts of true and of false cells (N,).

    center, strength: mean and precision of the normal prior of a and b.
    """
    from scipy.optimize import minimize  # here, because it takes 0.2 s to import and coding a note does not need it

    mean, precision = np.array(center), np.array(strength)

    def loss(pair: np.ndarray) -> tuple[float, np.ndarray]:
        margin = pair[0] * logits + pair[1]
        gradient = false * expit(margin) - true * expit(-margin)
        offset = pair - mean
        value = true @ np.logaddexp(0, -margin) + false @ np.logaddexp(0, margin) + precision @ offset**2 / 2
        return value, np.array([gradient @ logits, gradient.sum()]) + precision * offset

    bounds = [(_MIN_SLOPE, None), (None, None)]
    optimum = minimize(loss, mean, jac=True, method="L-BFGS-B", bounds=bounds)
    return float(optimum.x[0]), float(optimum.x[1])


@dataclass(frozen=True)
class ScoreCalibration:
    """P(code | score s, n training notes of the code) = sigmoid(a + b s + c log n + d s log n).

    It calibrates the scores of one-vs-rest linear models. All codes share one curve, because most codes have too few
    notes for their own. It depends on n: a score means less for a code that was seen once than for a frequent one.

    A prior with the weight of four cells replaces missing dev notes: at score 1 the probability is 0.9, at -1 it is
    0.1, for rare and for frequent codes.
    """

    intercept: float
    score: float
    log_notes: float
    both: float

    @classmethod
    def fit(
        cls, scores: np.ndarray, gold: sparse.csr_matrix, notes: np.ndarray, max_cells: int = 4_000_000
    ) -> ScoreCalibration:
        """The curve of highest likelihood for scores (B, L) of notes that the model was not trained on.

        gold: 0/1 (B, L). notes: (L,) training notes of each code. If there are more than `max_cells` cells, evenly
        spaced notes are used. Without a true cell only the prior counts.
        """
        step = max(1, -(-scores.size // max_cells))
        scores = scores[::step]
        target = sparse.csr_matrix(gold[::step]).toarray().astype(bool).ravel()
        s, log_notes = scores.ravel(), np.broadcast_to(np.log(notes), scores.shape).ravel()
        return cls._fit_cells(s, log_notes, target, np.ones(len(target)), notes)

    @classmethod
    def fit_counts(
        cls, scores: np.ndarray, log_notes: np.ndarray, true: np.ndarray, false: np.ndarray, notes: np.ndarray
    ) -> ScoreCalibration:
        """The same for counts (N,) of true and of false cells with these scores and log numbers of notes (N,)."""
        some_true, some_false = np.flatnonzero(true > 0), np.flatnonzero(false > 0)
        rows = np.concatenate([some_true, some_false])
        weight = np.concatenate([true[some_true], false[some_false]]).astype(np.float64)
        return cls._fit_cells(scores[rows], log_notes[rows], np.arange(len(rows)) < len(some_true), weight, notes)

    @classmethod
    def _fit_cells(
        cls, s: np.ndarray, log_notes: np.ndarray, target: np.ndarray, weight: np.ndarray, notes: np.ndarray
    ) -> ScoreCalibration:
        from sklearn.linear_model import LogisticRegression

        if not target.any():
            s, log_notes, target, weight = s[:0], log_notes[:0], target[:0], weight[:0]
        rare, frequent = np.log(notes.min()), np.log(notes.max())
        s = np.concatenate([s, np.tile([1.0, 1.0, -1.0, -1.0], 2)])
        log_notes = np.concatenate([log_notes, np.repeat([rare, frequent], 4)])
        weight = np.concatenate([weight, np.tile([0.9, 0.1, 0.1, 0.9], 2)])
        target = np.concatenate([target, np.tile([True, False], 4)])
        features = np.column_stack([s, log_notes, s * log_notes])
        # Weak regularization keeps the curve defined if all codes have the same number of notes.
        regression = LogisticRegression(C=1e3, solver="newton-cholesky", tol=1e-8)
        # pyrefly: ignore[bad-argument-type]  # the stubs want arrays with __buffer__, which Python 3.11 does not have
        fitted = regression.fit(features, target, weight)
        return cls(float(fitted.intercept_[0]), *map(float, fitted.coef_[0]))

    def __call__(self, scores: np.ndarray, notes: np.ndarray) -> np.ndarray:
        """Probabilities (B, L) of scores (B, L); notes: (L,) training notes of each code."""
        log_notes = np.log(notes)
        slope = self.score + self.both * log_notes
        return expit(scores * slope + (self.intercept + self.log_notes * log_notes)).astype(np.float32)
