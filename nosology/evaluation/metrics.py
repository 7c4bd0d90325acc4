"""All metrics of a model on coded notes with their intervals; metrics by training frequency and by chapter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.evaluation.counts import Counts, macro, micro, ratio
from nosology.evaluation.ranking_metrics import CellCounts, code_aucs, grid_of, micro_auc, note_values, rank_codes
from nosology.evaluation.scored import Scored, Scores

CHUNK = 50  # replicates at a time, to limit memory

Metrics = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Evaluation:
    """Predictions compared with true codes: the metrics, and the data of tables and plots."""

    scored: Scored
    threshold: float | np.ndarray
    predicted: sparse.csr_matrix
    counts: Counts
    cells: CellCounts
    aucs: np.ndarray  # (len(space),) NaN where undefined
    per_note: dict[str, np.ndarray]  # ranking metrics (B,); NaN for a note without a true code
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
    """The content of metrics.json: each metric by name, with its 95% interval as name_low and name_high.

    labels: the L codes of the model. gold: the true codes of each of the B notes, in or outside of `labels`. scores:
    probabilities (B, L), dense or sparse. threshold: one number or one per label. systems: count only their codes. An
    undefined value is None.
    """
    return examine(labels, gold, scores, threshold, systems=systems, replicates=replicates, seed=seed).metrics


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
    """The metrics of `evaluate` with the counts, ranks and AUCs that a report shows.

    at_least_one: if no code of a note reaches its threshold, the one with the highest score is accepted.
    """
    scored = Scored.of(labels, gold, scores, systems)
    predicted = scored.predicted(threshold, at_least_one)
    counts = Counts.of(scored.space, scored.n_labels, scored.gold, predicted)
    cells = CellCounts.of(scored)
    grid = grid_of(cells)
    ranks = rank_codes(scored, grid)
    per_note = note_values(scored, ranks)
    aucs, won, false_influence = code_aucs(scored)
    resampled = _Resampled(scored, predicted, per_note, aucs, won, false_influence)
    metrics = _with_intervals(resampled, micro_auc(scored, cells, ranks, grid), replicates, seed)
    metrics |= {
        "threshold": float(threshold) if np.ndim(threshold) == 0 else None,
        "n_notes": scored.n_notes,
        "n_notes_without_codes": int(np.sum(np.diff(scored.gold.indptr) == 0)),
        "n_codes": scored.n_labels,
        "n_codes_with_true_note": int(np.sum(counts.support > 0)),
        "n_true_codes_outside_label_space": scored.n_outside,
        "n_true_assignments": int(scored.gold.nnz),
        "n_true_assignments_outside_label_space": int(scored.gold.nnz - scored.gold_in_labels.nnz),
    }
    return Evaluation(scored, threshold, predicted, counts, cells, aucs, per_note, metrics)


class _Resampled:
    """The metrics as functions of the number of times that each note is drawn, for the bootstrap."""

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
        """The metrics (R,) of R samples; draws: how often each note is in a sample, (R, B)."""
        tp, fp, fn, exact = (draws @ self.sums).T
        metrics = micro(tp, fp, fn)
        total = draws.sum(1)
        metrics["hamming_loss"] = ratio(fp + fn, total * self.n_codes)
        metrics["exact_match"] = exact / total
        *values, with_codes = (draws @ self.ranking).T
        metrics |= {name: ratio(value, with_codes) for name, value in zip(self.ranking_names, values)}
        hits, predicted, true, won = ((matrix @ draws.T).T for matrix in self.by_code)
        metrics |= macro(hits, predicted - hits, true - hits, self.n_codes)
        present = self.mixed & (true > 0)
        aucs = np.where(present, won, 0.0) / np.maximum(true, 1)
        # True notes are resampled exactly; the many false notes of a code to first order.
        metrics["macro_auc"] = ratio(aucs.sum(1), present.sum(1)) + (draws - 1) @ self.false_influence
        return metrics


def random_draws(rng: np.random.Generator, replicates: int, n_notes: int) -> np.ndarray:
    """How often each of B notes is drawn (replicates, B), if B notes are drawn with replacement."""
    return rng.multinomial(n_notes, np.full(n_notes, 1 / n_notes), replicates).astype(np.float64)


def _with_intervals(resampled: _Resampled, pooled_auc: tuple[float, np.ndarray], replicates: int, seed: int) -> Metrics:
    """All metrics with their intervals; pooled_auc: micro AUC and the influence of each note on it."""
    rng = np.random.default_rng(seed)
    auc, influence = pooled_auc
    spread: dict[str, list[np.ndarray]] = {}
    for start in range(0, replicates, CHUNK):
        draws = random_draws(rng, min(CHUNK, replicates - start), resampled.n_notes)
        sample = resampled.at(draws) | {"micro_auc": auc + (draws - 1) @ influence}
        for name, values in sample.items():
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

    A replicate lacks some of the rare codes, which shifts its macro means but not their spread.
    """
    if np.isnan(value):
        return None, None
    spread = spread[~np.isnan(spread)]
    low, high = np.quantile(spread, (0.025, 0.975)) - spread.mean() + value
    ceiling = 1.0 if value <= 1 else np.inf  # all metrics are in [0, 1] except coverage error, which is at least 1
    return float(np.clip(low, 0, value)), float(np.clip(high, value, ceiling))


def brief(labels: LabelSpace, gold: Sequence[Collection[Code]], scores: Scores) -> dict[str, float]:
    """MAP, P@15, and the micro F1 at the best threshold; 0 if no true code has a score."""
    scored = Scored.of(labels, gold, scores)
    cells = CellCounts.of(scored)
    accepted = cells.values > 0
    if not accepted.any():
        return {"map": 0.0, "p@15": 0.0, "micro_f1": 0.0}
    f1 = 2 * cells.hits / (cells.accepted + scored.gold.nnz)
    values = note_values(scored, rank_codes(scored, np.empty(0)))
    ranking = {name: float(np.nanmean(values[name])) for name in ("map", "p@15")}
    return ranking | {"micro_f1": float(f1[accepted].max())}


# The last band is part of the second: the few-shot codes of the literature.
BANDS = (("0", 0, 0), ("1-9", 1, 9), ("10-99", 10, 99), ("100-999", 100, 999), ("1000+", 1000, 10**9), ("1-5", 1, 5))

Row = dict[str, str | int | float | None]


def by_frequency(evaluation: Evaluation, train_counts: Mapping[Code, int]) -> list[Row]:
    """One row per band of training frequency."""
    counts = np.array([train_counts.get(code, 0) for code in evaluation.scored.space.codes], dtype=np.int64)
    return [
        {"train_notes": name} | _group_metrics(evaluation, (counts >= low) & (counts <= high))
        for name, low, high in BANDS
    ]


def by_chapter(evaluation: Evaluation) -> list[Row]:
    """One row per chapter with a code of the space, by system and in the order of the code table."""
    chapters = [_chapter(code) for code in evaluation.scored.space.codes]
    rows = []
    for system, order, name, title in sorted(set(chapters)):
        mask = np.array([chapter == (system, order, name, title) for chapter in chapters], dtype=bool)
        rows.append({"system": system, "chapter": name, "title": title} | _group_metrics(evaluation, mask))
    return rows


def _chapter(code: Code) -> tuple[str, int, str, str]:
    """System, position, name and title of a code's chapter; for a retired code, those of its longest valid prefix."""
    from nosology.codes import table

    codes = table(code.system)
    for length in range(len(code.code), 0, -1):
        prefix = code.code[:length].rstrip(".")
        if prefix in codes:
            chapter = codes.chapter(prefix)
            return code.system, codes.chapters().index(chapter), chapter, codes.description(chapter)
    return code.system, len(codes.chapters()), "?", "not in the code table"


def _group_metrics(evaluation: Evaluation, mask: np.ndarray) -> Row:
    counts = evaluation.counts
    tp, fp, fn = (values[mask].astype(np.float64)[None, :] for values in (counts.tp, counts.fp, counts.fn))
    pooled, mean = micro(tp.sum(1), fp.sum(1), fn.sum(1)), macro(tp, fp, fn)
    aucs = evaluation.aucs[mask]
    mean["macro_auc"] = np.array([aucs[~np.isnan(aucs)].mean() if not np.isnan(aucs).all() else np.nan])
    names = ("micro_f1", "micro_precision", "micro_recall", "macro_f1", "macro_f1_all", "macro_auc")
    values = {name: float((pooled | mean)[name][0]) for name in names}
    row: Row = {
        "codes": int(mask.sum()),
        "codes_with_true_note": int(np.sum(counts.support[mask] > 0)),
        "true_assignments": int(counts.support[mask].sum()),
    }
    return row | {name: None if np.isnan(value) else value for name, value in values.items()}
