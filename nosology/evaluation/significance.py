"""Significance tests of the difference of two models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from nosology.core import DataError
from nosology.core.label_space import LabelSpace
from nosology.evaluation.counts import macro, micro, ratio
from nosology.evaluation.metrics import Evaluation, random_draws

CHUNK = 50
MICRO = ("micro_f1", "micro_precision", "micro_recall")
MACRO = ("macro_f1", "macro_precision", "macro_recall")


@dataclass(frozen=True)
class Difference:
    """First minus second, its 95% interval if the test has one, and the two-sided p-value (None: undefined)."""

    value: float
    p: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class NotePredictions:
    """The part of an evaluation that tests over notes compare; it can be stored without the scores."""

    space: LabelSpace
    gold: sparse.csr_matrix  # (B, len(space)) of 0/1
    predicted: sparse.csr_matrix  # the same for the accepted codes
    per_note: dict[str, np.ndarray]  # ranking metrics (B,); NaN for a note without a true code

    @staticmethod
    def of(evaluation: Evaluation | NotePredictions) -> NotePredictions:
        """The predictions of an evaluation."""
        if isinstance(evaluation, NotePredictions):
            return evaluation
        scored = evaluation.scored
        return NotePredictions(scored.space, scored.gold, evaluation.predicted, evaluation.per_note)

    @cached_property
    def gold_codes(self) -> list[frozenset]:
        """The true codes of each note."""
        gold, codes = self.gold, self.space.codes
        return [frozenset(codes[j] for j in gold.indices[a:b]) for a, b in zip(gold.indptr, gold.indptr[1:])]


@dataclass(frozen=True)
class _NoteSums:
    """A metric as a function of sums over notes: `value` takes (R, D) sums of the rows (B, D)."""

    rows: np.ndarray | sparse.csr_matrix
    value: Callable[[np.ndarray], np.ndarray]

    def at(self, weights: np.ndarray) -> np.ndarray:
        return self.value(self.sums(weights))

    def sums(self, weights: np.ndarray) -> np.ndarray:
        return (self.rows.T @ weights.T).T


def paired_bootstrap(
    first: Evaluation | NotePredictions,
    second: Evaluation | NotePredictions,
    metric: str = "micro_f1",
    *,
    groups: Sequence[str] | None = None,
    replicates: int = 2000,
    seed: int = 0,
) -> Difference:
    """The difference of two models on the same notes, with its bootstrap interval.

    Notes are drawn with replacement, the same for both models. groups: the patient of each note (B,), to draw patients
    with all their notes. p is the share of replicates whose distance from the observed difference is at least the
    observed difference. Replicates in which the metric is undefined (no note has a code) do not count.
    """
    a, b = _note_sums(first, second, metric)
    rng, n_notes = np.random.default_rng(seed), a.rows.shape[0]
    if groups is not None and len(groups) != n_notes:
        raise ValueError(f"groups must have the patient of each of the {n_notes} notes; got {len(groups)}")
    unit = np.arange(n_notes) if groups is None else np.unique(groups, return_inverse=True)[1]
    observed = _difference(a, b, metric)
    draws = []
    for size in _chunks(replicates):
        weights = random_draws(rng, size, int(unit.max()) + 1)[:, unit]
        draws.append(a.at(weights) - b.at(weights))
    spread = np.concatenate(draws)
    spread = spread[~np.isnan(spread)]
    low, high = np.quantile(spread, (0.025, 0.975)) if len(spread) else (observed, observed)
    p = _p_value(np.abs(spread - observed) >= abs(observed) - 1e-12)
    return Difference(observed, p, float(low), float(high))


def approximate_randomisation(
    first: Evaluation | NotePredictions,
    second: Evaluation | NotePredictions,
    metric: str = "micro_f1",
    *,
    replicates: int = 10000,
    seed: int = 0,
) -> Difference:
    """The difference of two models on the same notes, tested by random swaps of their predictions per note.

    p is the share of random swaps with a difference at least as large as the observed one.
    """
    a, b = _note_sums(first, second, metric)
    rng, n_notes = np.random.default_rng(seed), a.rows.shape[0]
    ones = np.ones((1, n_notes))
    observed = _difference(a, b, metric)
    whole = a.sums(ones) + b.sums(ones)
    difference = _NoteSums(b.rows - a.rows, a.value)
    draws = []
    for size in _chunks(replicates):
        bits = np.unpackbits(rng.integers(0, 256, (size, -(-n_notes // 8)), np.uint8), axis=1, count=n_notes)
        swapped = a.sums(ones) + difference.sums(bits.astype(np.float64))
        draws.append(a.value(swapped) - a.value(whole - swapped))
    return Difference(observed, _p_value(np.abs(np.concatenate(draws)) >= abs(observed) - 1e-12))


def paired_t_test(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The mean difference of a metric over seeds (or splits) by Student's paired t-test, with its 95% interval."""
    from scipy.stats import ttest_rel

    if len(first) != len(second) or len(first) < 2:
        counts = f"{len(first)} and {len(second)}"
        raise ValueError(f"a paired t-test needs two equally long rows of 2 or more; got {counts}")
    differences = np.subtract(first, second, dtype=np.float64)
    mean = float(differences.mean())
    if differences.std() == 0:
        return Difference(mean, None, mean, mean)
    test = ttest_rel(first, second)
    low, high = test.confidence_interval(0.95)
    return Difference(mean, float(test.pvalue), float(low), float(high))


def _difference(a: _NoteSums, b: _NoteSums, metric: str) -> float:
    ones = np.ones((1, a.rows.shape[0]))
    difference = float((a.at(ones) - b.at(ones))[0])
    if np.isnan(difference):
        raise DataError(f"two models cannot be compared by {metric}: it is undefined on these notes")
    return difference


def _chunks(replicates: int) -> list[int]:
    if replicates < 1:
        raise ValueError(f"replicates must be at least 1; got {replicates}")
    return [min(CHUNK, replicates - start) for start in range(0, replicates, CHUNK)]


def _p_value(is_extreme: np.ndarray) -> float:
    # The observed difference is one of the possible ones, so that p is never 0.
    return float((is_extreme.sum() + 1) / (len(is_extreme) + 1))


def _note_sums(
    first: Evaluation | NotePredictions, second: Evaluation | NotePredictions, metric: str
) -> tuple[_NoteSums, _NoteSums]:
    a, b = NotePredictions.of(first), NotePredictions.of(second)
    names = (*MICRO, *MACRO, *a.per_note)
    if metric not in names:
        raise ValueError(f"metric must be one of {', '.join(names)}; got {metric}")
    if a.gold_codes != b.gold_codes:
        raise ValueError("two models can be compared only on the same notes with the same true codes")
    return _sums_of(a, metric), _sums_of(b, metric)


def _sums_of(notes: NotePredictions, metric: str) -> _NoteSums:
    if metric in notes.per_note:
        values = notes.per_note[metric]
        coded = ~np.isnan(values)
        return _NoteSums(np.stack([np.where(coded, values, 0.0), coded], axis=1), lambda s: ratio(s[:, 0], s[:, 1]))
    gold, predicted = notes.gold, notes.predicted
    hits = gold.multiply(predicted).tocsr()
    if metric in MACRO:
        # Sorted by code, the columns of two models with different label spaces agree.
        true = np.array(sorted(np.unique(gold.indices), key=notes.space.codes.__getitem__), dtype=np.intp)
        parts = [matrix[:, true].astype(np.float64) for matrix in (hits, predicted, gold)]
        return _NoteSums(sparse.hstack(parts, format="csr"), lambda s: _macro(s)[metric])
    rows = np.stack([np.diff(m.indptr) for m in (hits, predicted, gold)], axis=1).astype(np.float64)
    return _NoteSums(rows, lambda s: micro(s[:, 0], s[:, 1] - s[:, 0], s[:, 2] - s[:, 0])[metric])


def _macro(sums: np.ndarray) -> dict[str, np.ndarray]:
    hits, predicted, true = np.split(sums, 3, axis=1)
    return macro(hits, predicted - hits, true - hits)
