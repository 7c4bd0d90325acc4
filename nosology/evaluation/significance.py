"""Whether one model is better than another, or was lucky."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.core import DataError
from nosology.evaluation.counts import macro, micro, ratio
from nosology.evaluation.metrics import Evaluation, random_draws

CHUNK = 50


@dataclass(frozen=True)
class Difference:
    """First minus second, its 95% interval where the test gives one, and the two-sided p-value (None: undefined)."""

    value: float
    p: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class _Tally:
    """A metric as a function of sums over notes: `value` takes (R, D) sums of the rows (B, D)."""

    rows: np.ndarray | sparse.csr_matrix
    value: Callable[[np.ndarray], np.ndarray]

    def at(self, weights: np.ndarray) -> np.ndarray:
        return self.value(self.sums(weights))

    def sums(self, weights: np.ndarray) -> np.ndarray:
        return (self.rows.T @ weights.T).T


def paired_bootstrap(
    first: Evaluation,
    second: Evaluation,
    metric: str = "micro_f1",
    *,
    groups: Sequence[str] | None = None,
    replicates: int = 2000,
    seed: int = 0,
) -> Difference:
    """The difference of two models on the same notes, with its bootstrap interval.

    Notes are drawn with replacement, the same for both models; groups: the patient of each note (B,), where patients
    are to be drawn with all their notes. p is the share of replicates that lie as far from the difference found as that
    lies from 0. Replicates in which the metric is undefined (no note with a code among them) do not count.
    """
    a, b = _tallies(first, second, metric)
    rng, n_notes = np.random.default_rng(seed), first.scored.n_notes
    if groups is not None and len(groups) != n_notes:
        raise ValueError(f"groups must name the patient of each of the {n_notes} notes; got {len(groups)}")
    unit = np.arange(n_notes) if groups is None else np.unique(groups, return_inverse=True)[1]
    found = _gap(a, b, metric)
    draws = []
    for size in _chunks(replicates):
        weights = random_draws(rng, size, int(unit.max()) + 1)[:, unit]
        draws.append(a.at(weights) - b.at(weights))
    spread = np.concatenate(draws)
    spread = spread[~np.isnan(spread)]
    low, high = np.quantile(spread, (0.025, 0.975)) if len(spread) else (found, found)
    return Difference(found, _share(np.abs(spread - found) >= abs(found) - 1e-12), float(low), float(high))


def approximate_randomisation(
    first: Evaluation, second: Evaluation, metric: str = "micro_f1", *, replicates: int = 10000, seed: int = 0
) -> Difference:
    """The difference of two models on the same notes, tested by swapping their predictions note by note.

    If the models were equally good, it would not matter which of them coded a note. p is the share of random swaps with
    a difference at least as large as the one found.
    """
    a, b = _tallies(first, second, metric)
    rng, n_notes = np.random.default_rng(seed), first.scored.n_notes
    ones = np.ones((1, n_notes))
    found = _gap(a, b, metric)
    whole = a.sums(ones) + b.sums(ones)
    gap = _Tally(b.rows - a.rows, a.value)
    draws = []
    for size in _chunks(replicates):
        swapped = a.sums(ones) + gap.sums(rng.integers(0, 2, (size, n_notes)).astype(np.float64))
        draws.append(a.value(swapped) - a.value(whole - swapped))
    return Difference(found, _share(np.abs(np.concatenate(draws)) >= abs(found) - 1e-12))


def paired_t_test(first: Sequence[float], second: Sequence[float]) -> Difference:
    """The mean difference of a metric over seeds (or splits), tested by Student's paired t; interval at 95%."""
    from scipy.stats import t

    if len(first) != len(second) or len(first) < 2:
        raise ValueError(
            f"a paired t-test needs two equally long rows of 2 or more; got {len(first)} and {len(second)}"
        )
    gaps = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    mean, error = float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
    if error == 0:
        return Difference(mean, None, mean, mean)
    reach = float(t.ppf(0.975, len(gaps) - 1)) * error
    return Difference(mean, float(2 * t.sf(abs(mean / error), len(gaps) - 1)), mean - reach, mean + reach)


def _gap(a: _Tally, b: _Tally, metric: str) -> float:
    ones = np.ones((1, a.rows.shape[0]))
    gap = float((a.at(ones) - b.at(ones))[0])
    if np.isnan(gap):
        raise DataError(f"two models cannot be compared by {metric}: it is undefined on these notes")
    return gap


def _chunks(replicates: int) -> list[int]:
    if replicates < 1:
        raise ValueError(f"replicates must be at least 1; got {replicates}")
    return [min(CHUNK, replicates - start) for start in range(0, replicates, CHUNK)]


def _share(as_far: np.ndarray) -> float:
    # The difference found is itself one of the possible ones: p is never 0.
    return float((as_far.sum() + 1) / (len(as_far) + 1))


def _tallies(first: Evaluation, second: Evaluation, metric: str) -> tuple[_Tally, _Tally]:
    names = ("micro_f1", "micro_precision", "micro_recall", "macro_f1", *first.per_note)
    if metric not in names:
        raise ValueError(f"metric must be one of {', '.join(names)}; got {metric}")
    if _gold_codes(first) != _gold_codes(second):
        raise ValueError("two models can be compared only on the same notes with the same true codes")
    return _tally(first, metric), _tally(second, metric)


def _gold_codes(found: Evaluation) -> list[frozenset]:
    gold, codes = found.scored.gold, found.scored.space.codes
    return [frozenset(codes[j] for j in gold.indices[a:b]) for a, b in zip(gold.indptr, gold.indptr[1:])]


def _tally(found: Evaluation, metric: str) -> _Tally:
    if metric in found.per_note:
        values = found.per_note[metric]
        coded = ~np.isnan(values)
        return _Tally(np.stack([np.where(coded, values, 0.0), coded], axis=1), lambda s: ratio(s[:, 0], s[:, 1]))
    gold, predicted = found.scored.gold, found.predicted
    hits = gold.multiply(predicted).tocsr()
    if metric == "macro_f1":
        # Sorted by code, the columns of two models with different label spaces agree.
        true = np.array(sorted(np.unique(gold.indices), key=found.scored.space.codes.__getitem__), dtype=np.intp)
        parts = [matrix[:, true].astype(np.float64) for matrix in (hits, predicted, gold)]
        return _Tally(sparse.hstack(parts, format="csr"), _macro_f1)
    rows = np.stack([np.diff(m.indptr) for m in (hits, predicted, gold)], axis=1).astype(np.float64)
    return _Tally(rows, lambda s: micro(s[:, 0], s[:, 1] - s[:, 0], s[:, 2] - s[:, 0])[metric])


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    hits, predicted, true = np.split(sums, 3, axis=1)
    return macro(hits, predicted - hits, true - hits)["macro_f1"]
