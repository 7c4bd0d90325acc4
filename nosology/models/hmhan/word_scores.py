"""The lexical branch of HMHAN, fitted before the net: one linear machine a code over words, and what it says held out.

A few hundred reports have ten thousand different words and pairs. A convex fit with a large margin weighs them well;
the steps of AdamW, which give a word seen once as much as any other, do not (docs/log.md). So the machine is fitted
first, and the net learns what is still to be said: in training it is given scores of machines that have not seen the
report, since those of one that has would leave it nothing to learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.models.hmhan.hmhan_model import Report
from nosology.training.calibration import ScoreCalibration

_UNSEEN = -1.0  # the score of a code that none of the reports of a fit have: what a machine says of a sure no


@dataclass(frozen=True)
class WordScores:
    """Logits of codes by words alone: x . weights + bias."""

    weights: np.ndarray  # (F, L) float32
    bias: np.ndarray  # (L,) float32
    held: np.ndarray  # (B, L) float32, the logits of the train reports by machines that have not seen them


def fit_word_scores(
    reports: list[Report],
    described: list[Report],
    features: int,
    gold: sparse.csr_matrix,
    part: np.ndarray,
    strengths: list[float],
) -> WordScores:
    """The machines of train reports; gold: 0/1 (B, L); part: (B,) the reports that are held out together.

    described: (L,) the descriptions of the codes, read as reports: each is one more report with its own code alone, of
    which a code with one report or two has much.

    strengths: of several inverse regularisations the one whose held-out scores have the best pooled average precision.
    """
    from sklearn.metrics import average_precision_score

    dense = gold.toarray().astype(bool)
    x = word_matrix([*reports, *described], features)
    whole = np.concatenate([dense, np.eye(len(described), dtype=bool)])
    parts = np.concatenate([part, np.full(len(described), -1)])  # no part: a description is never held out
    every = {c: _held(x, whole, parts, c)[: len(dense)] for c in strengths}
    chosen = max(strengths, key=lambda c: average_precision_score(dense.ravel(), every[c].ravel()))
    held = every[chosen]
    weights, bias = _machines(x, whole, chosen)
    notes = np.maximum(dense.sum(0), 1)
    curve = ScoreCalibration.fit(held, gold, notes)
    slope, shift = curve.score + curve.both * np.log(notes), curve.intercept + curve.log_notes * np.log(notes)
    slope = np.maximum(slope, 0.1)  # a higher score is never a lower logit
    return WordScores(
        (weights * slope).astype(np.float32),
        (bias * slope + shift).astype(np.float32),
        (held * slope + shift).astype(np.float32),
    )


def word_matrix(reports: list[Report], features: int) -> sparse.csr_matrix:
    """The features of reports (B, F)."""
    indptr = np.cumsum([0, *(len(report.features) for report in reports)])
    numbers = np.concatenate([report.features for report in reports]) - 1
    values = np.concatenate([report.values for report in reports])
    return sparse.csr_matrix((values, numbers, indptr), shape=(len(reports), features))


def _held(x: sparse.csr_matrix, gold: np.ndarray, part: np.ndarray, c: float) -> np.ndarray:
    """Scores (B, L) of each part by machines fitted on the others."""
    held = np.zeros(gold.shape)
    for number in np.unique(part[part >= 0]):
        out = part == number
        weights, bias = _machines(x[~out], gold[~out], c)
        held[out] = x[out] @ weights + bias
    return held


def _machines(x: sparse.csr_matrix, gold: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights (F, L) and bias (L,) of one machine a code."""
    from sklearn.svm import LinearSVC

    weights, bias = np.zeros((x.shape[1], gold.shape[1])), np.full(gold.shape[1], _UNSEEN)
    for label in range(gold.shape[1]):
        true = gold[:, label]
        if 0 < true.sum() < len(true):
            fitted = LinearSVC(C=c, random_state=0).fit(x, true)
            weights[:, label], bias[label] = fitted.coef_[0], fitted.intercept_[0]
        elif true.any():
            bias[label] = -_UNSEEN
    return weights, bias
