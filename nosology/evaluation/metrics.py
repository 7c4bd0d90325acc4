"""All metrics of a model on coded notes, each with its interval."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.codes.label_space import LabelSpace
from nosology.core import Code
from nosology.evaluation.auc import code_aucs, grid_of, micro_auc
from nosology.evaluation.cells import CellCounts
from nosology.evaluation.counts import Counts, macro, micro, ratio
from nosology.evaluation.ranking import note_values, rank
from nosology.evaluation.scored import Scored, Scores

CHUNK = 50  # replicates at a time: their weights and per-code sums stay small beside the scores

Metrics = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Evaluation:
    """A model's predictions laid beside the truth: the metrics, and what tables and plots are made from."""

    scored: Scored
    threshold: float | np.ndarray
    predicted: sparse.csr_matrix
    counts: Counts
    cells: CellCounts
    aucs: np.ndarray  # (len(space),) NaN where undefined
    per_note: dict[str, np.ndarray]  # each ranking metric (B,) NaN for a note without a true code
    metrics: Metrics


def evaluate(
    labels: LabelSpace,
    gold: Sequence[Collection[Code]],
    scores: Scores,
    threshold: float | np.ndarray,
    *,
    systems: Collection[str] | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Metrics:
    """The content of metrics.json: each metric by name, with its 95% interval under name_low and name_high.

    labels: the L codes the model can name. gold: the true codes of each of the B notes, in or outside `labels`.
    scores: probabilities (B, L), dense or sparse. threshold: one number or one a label. systems: where given, only
    their codes count. What is undefined is None.
    """
    found = examine(labels, gold, scores, threshold, systems=systems, replicates=replicates, seed=seed)
    return found.metrics


def examine(
    labels: LabelSpace,
    gold: Sequence[Collection[Code]],
    scores: Scores,
    threshold: float | np.ndarray,
    *,
    systems: Collection[str] | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """The same as `evaluate`, with the counts, ranks and AUCs that a report shows beside the metrics."""
    scored = Scored.of(labels, gold, scores, systems)
    predicted = scored.predicted(threshold)
    counts = Counts.of(scored.space, scored.n_nameable, scored.gold, predicted)
    cells = CellCounts.of(scored)
    grid = grid_of(cells)
    ranks = rank(scored, grid)
    pooled, pooled_influence = micro_auc(scored, cells, ranks, grid)
    aucs, mean_influence = code_aucs(scored)
    mean = float(np.nanmean(aucs)) if not np.all(np.isnan(aucs)) else np.nan
    per_note = note_values(scored, ranks)
    weighed = _Weighed(scored, predicted, per_note)
    linear = {"micro_auc": (pooled, pooled_influence), "macro_auc": (mean, mean_influence)}
    metrics = _with_intervals(weighed, linear, replicates, seed)
    metrics |= {
        "threshold": float(threshold) if np.ndim(threshold) == 0 else None,
        "n_notes": scored.n_notes,
        "n_notes_without_codes": int(np.sum(np.diff(scored.gold.indptr) == 0)),
        "n_codes": scored.n_nameable,
        "n_codes_with_true_note": int(np.sum(counts.support > 0)),
        "n_true_codes_outside_label_space": scored.n_outside,
        "n_true_assignments": int(scored.gold.nnz),
        "n_true_assignments_outside_label_space": int(scored.gold.nnz - scored.named_gold.nnz),
    }
    return Evaluation(scored, threshold, predicted, counts, cells, aucs, per_note, metrics)


class _Weighed:
    """The metrics as functions of the notes' weights: weights of 1 give the value, random ones its spread."""

    def __init__(self, scored: Scored, predicted: sparse.csr_matrix, ranking: dict[str, np.ndarray]):
        gold, self.n_notes, self.n_codes = scored.gold, scored.n_notes, len(scored.space)
        hits = gold.multiply(predicted).tocsr()
        tp, n_gold, n_predicted = (np.diff(matrix.indptr) for matrix in (hits, gold, predicted))
        exact = (tp == n_gold) & (tp == n_predicted)
        self.sums = np.stack([tp, n_predicted - tp, n_gold - tp, exact], axis=1).astype(np.float64)
        has_codes = n_gold > 0
        self.ranking = np.stack([np.where(has_codes, v, 0.0) for v in ranking.values()] + [has_codes], axis=1)
        self.ranking_names = list(ranking)
        active = np.unique(np.concatenate([gold.indices, predicted.indices]))
        self.by_code = [matrix[:, active].T.astype(np.float64).tocsr() for matrix in (hits, predicted, gold)]

    def at(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Each metric (R,) at R sets of weights (R, B)."""
        tp, fp, fn, exact = (weights @ self.sums).T
        found = micro(tp, fp, fn)
        mass = weights.sum(1)
        found["hamming_loss"] = ratio(fp + fn, mass * self.n_codes)
        found["exact_match"] = exact / mass
        *values, with_codes = (weights @ self.ranking).T
        found |= {name: ratio(value, with_codes) for name, value in zip(self.ranking_names, values)}
        hits, predicted, true = ((matrix @ weights.T).T for matrix in self.by_code)
        # Sums of real weights differ in the last digit by their order; a count of 0 must not come out as -1e-16.
        return found | macro(hits, np.maximum(predicted - hits, 0), np.maximum(true - hits, 0), self.n_codes)


def random_weights(rng: np.random.Generator, replicates: int, n_notes: int) -> np.ndarray:
    """Weights of the notes (replicates, B) from a flat Dirichlet distribution, with mean 1: the Bayesian bootstrap."""
    weights = rng.standard_exponential((replicates, n_notes))
    return weights / weights.mean(1, keepdims=True)


def _with_intervals(
    weighed: _Weighed, linear: dict[str, tuple[float, np.ndarray]], replicates: int, seed: int
) -> Metrics:
    """Every metric, with the 2.5% and 97.5% quantiles of `replicates` Bayesian bootstrap replicates over notes.

    Notes get weights from a flat Dirichlet distribution instead of counts of draws: no code loses all its notes in a
    replicate, so that macro means run over the same codes in each and their intervals are not shifted. Metrics in
    `linear` come as (value, influence of each note) and follow the weights to first order.
    """
    rng = np.random.default_rng(seed)
    spread: dict[str, list[np.ndarray]] = {}
    for start in range(0, replicates, CHUNK):
        weights = random_weights(rng, min(CHUNK, replicates - start), weighed.n_notes)
        found = weighed.at(weights)
        found |= {name: value + (weights - 1) @ influence for name, (value, influence) in linear.items()}
        for name, values in found.items():
            spread.setdefault(name, []).append(values)
    points = {name: float(value[0]) for name, value in weighed.at(np.ones((1, weighed.n_notes))).items()}
    points |= {name: value for name, (value, _) in linear.items()}
    metrics: Metrics = {}
    for name, value in points.items():
        metrics[name] = None if np.isnan(value) else value
        if replicates:
            low, high = _interval(value, np.concatenate(spread[name]))
            metrics |= {f"{name}_low": low, f"{name}_high": high}
    return metrics


def _interval(value: float, spread: np.ndarray) -> tuple[float | None, float | None]:
    """The middle 95% of the replicates, moved so that their mean is the value.

    F1 is concave in the weights: the mean F1 of many rare codes is lower in every replicate than in the sample.
    """
    if np.isnan(value):
        return None, None
    low, high = np.quantile(spread, (0.025, 0.975)) - spread.mean() + value
    ceiling = 1.0 if value <= 1 else np.inf  # all metrics lie in [0, 1] but coverage error, which is at least 1
    return float(np.clip(low, 0, value)), float(np.clip(high, value, ceiling))
