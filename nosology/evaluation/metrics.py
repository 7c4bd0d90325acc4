"""All metrics of a model on coded notes, each with its interval."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.evaluation.counts import Counts, macro, micro, ratio
from nosology.evaluation.ranking_metrics import CellCounts, code_aucs, grid_of, micro_auc, note_values, rank
from nosology.evaluation.scored import Scored, Scores

CHUNK = 50  # replicates at a time: their draws and per-code sums stay small beside the scores

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
    at_least_one: bool = False,
    replicates: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """The same as `evaluate`, with the counts, ranks and AUCs that a report shows beside the metrics.

    at_least_one: a note's code of highest score is accepted where none reaches its threshold.
    """
    scored = Scored.of(labels, gold, scores, systems)
    predicted = scored.predicted(threshold, at_least_one)
    counts = Counts.of(scored.space, scored.n_nameable, scored.gold, predicted)
    cells = CellCounts.of(scored)
    grid = grid_of(cells)
    ranks = rank(scored, grid)
    per_note = note_values(scored, ranks)
    aucs, won, false_influence = code_aucs(scored)
    resampled = _Resampled(scored, predicted, per_note, aucs, won, false_influence)
    metrics = _with_intervals(resampled, micro_auc(scored, cells, ranks, grid), replicates, seed)
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


class _Resampled:
    """The metrics as functions of how often each note is drawn: once each gives the value, random draws its spread."""

    def __init__(
        self,
        scored: Scored,
        predicted: sparse.csr_matrix,
        per_note: dict[str, np.ndarray],
        aucs: np.ndarray,
        won: sparse.csr_matrix,
        false_influence: np.ndarray,
    ):
        gold, self.n_notes, self.n_codes = scored.gold, scored.n_notes, len(scored.space)
        hits = gold.multiply(predicted).tocsr()
        tp, n_gold, n_predicted = (np.diff(matrix.indptr) for matrix in (hits, gold, predicted))
        exact = (tp == n_gold) & (tp == n_predicted)
        self.sums = np.stack([tp, n_predicted - tp, n_gold - tp, exact], axis=1).astype(np.float64)
        has_codes = n_gold > 0
        self.ranking = np.stack([np.where(has_codes, v, 0.0) for v in per_note.values()] + [has_codes], axis=1)
        self.ranking_names = list(per_note)
        active = np.unique(np.concatenate([gold.indices, predicted.indices]))
        self.by_code = [m[:, active].T.astype(np.float64).tocsr() for m in (hits, predicted, gold, won)]
        self.mixed = ~np.isnan(aucs[active])
        self.false_influence = false_influence

    def at(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Each metric (R,) where each note is drawn so often, (R, B)."""
        tp, fp, fn, exact = (draws @ self.sums).T
        found = micro(tp, fp, fn)
        total = draws.sum(1)
        found["hamming_loss"] = ratio(fp + fn, total * self.n_codes)
        found["exact_match"] = exact / total
        *values, with_codes = (draws @ self.ranking).T
        found |= {name: ratio(value, with_codes) for name, value in zip(self.ranking_names, values)}
        hits, predicted, true, won = ((matrix @ draws.T).T for matrix in self.by_code)
        found |= macro(hits, predicted - hits, true - hits, self.n_codes)
        present = self.mixed & (true > 0)
        aucs = np.where(present, won, 0.0) / np.maximum(true, 1)
        # True notes are resampled in full; false ones, which are many to a code, to first order.
        found["macro_auc"] = ratio(aucs.sum(1), present.sum(1)) + (draws - 1) @ self.false_influence
        return found


def random_draws(rng: np.random.Generator, replicates: int, n_notes: int) -> np.ndarray:
    """How often each note is drawn (replicates, B) when B notes are drawn with replacement."""
    return rng.multinomial(n_notes, np.full(n_notes, 1 / n_notes), replicates).astype(np.float64)


def _with_intervals(resampled: _Resampled, pooled_auc: tuple[float, np.ndarray], replicates: int, seed: int) -> Metrics:
    """Every metric with its interval; micro AUC comes as (value, influence of each note) and follows to first order."""
    rng = np.random.default_rng(seed)
    auc, influence = pooled_auc
    spread: dict[str, list[np.ndarray]] = {}
    for start in range(0, replicates, CHUNK):
        draws = random_draws(rng, min(CHUNK, replicates - start), resampled.n_notes)
        found = resampled.at(draws) | {"micro_auc": auc + (draws - 1) @ influence}
        for name, values in found.items():
            spread.setdefault(name, []).append(values)
    points = {name: float(value[0]) for name, value in resampled.at(np.ones((1, resampled.n_notes))).items()}
    metrics: Metrics = {}
    for name, value in (points | {"micro_auc": auc}).items():
        metrics[name] = None if np.isnan(value) else value
        if replicates:
            low, high = _interval(value, np.concatenate(spread[name]))
            metrics |= {f"{name}_low": low, f"{name}_high": high}
    return metrics


def _interval(value: float, spread: np.ndarray) -> tuple[float | None, float | None]:
    """The middle 95% of the replicates, moved so that their mean is the value.

    Rare codes drop out of a replicate, and a macro mean over those left is shifted; its spread is right, its place not.
    """
    if np.isnan(value):
        return None, None
    spread = spread[~np.isnan(spread)]
    low, high = np.quantile(spread, (0.025, 0.975)) - spread.mean() + value
    ceiling = 1.0 if value <= 1 else np.inf  # all metrics lie in [0, 1] but coverage error, which is at least 1
    return float(np.clip(low, 0, value)), float(np.clip(high, value, ceiling))


def brief(labels: LabelSpace, gold: Sequence[Collection[Code]], scores: Scores) -> dict[str, float]:
    """MAP, and the micro F1 at its best threshold; 0 where no true code has a score."""
    scored = Scored.of(labels, gold, scores)
    cells = CellCounts.of(scored)
    accepted = cells.values > 0
    if not accepted.any():
        return {"map": 0.0, "micro_f1": 0.0}
    f1 = 2 * cells.hits / (cells.accepted + scored.gold.nnz)
    values = note_values(scored, rank(scored, np.empty(0)))["map"]
    return {"map": float(np.nanmean(values)), "micro_f1": float(f1[accepted].max())}
