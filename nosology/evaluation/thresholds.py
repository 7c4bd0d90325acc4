"""The score from which a code is accepted, found on development notes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from nosology.core import Code, DataError
from nosology.core.label_space import LabelSpace
from nosology.evaluation.ranking_metrics import CellCounts
from nosology.evaluation.scored import Scored, Scores


def tune_threshold(
    labels: LabelSpace,
    gold: Sequence[Collection[Code]],
    scores: Scores,
    *,
    systems: Collection[str] | None = None,
) -> float:
    """The threshold with the highest micro F1 on these notes; of equally good scores the highest.

    The optimum is exact: between two scores of true cells a lower threshold only adds false codes, so that the best
    one is the score of a true cell. The threshold is put in the middle of the gap below that score, which accepts the
    same codes here and is the safer place for new notes. True codes that the model cannot name are misses anywhere.
    """
    scored = Scored.of(labels, gold, scores, systems)
    return _best_threshold(scored)


def tune_thresholds(
    labels: LabelSpace,
    gold: Sequence[Collection[Code]],
    scores: Scores,
    *,
    min_positives: int = 10,
) -> np.ndarray:
    """One threshold a label (L,), with the highest F1 of that code; codes with fewer than `min_positives` true notes
    get the global one, since the best threshold of a handful of notes is noise."""
    scored = Scored.of(labels, gold, scores)
    thresholds = np.full(len(labels), _best_threshold(scored))
    positives = scored.named_gold.tocsc()
    frequent = np.flatnonzero(np.diff(positives.indptr) >= max(1, min_positives))

    def tune(group: np.ndarray, block: np.ndarray) -> None:
        for column, values, ascending in zip(group, block, np.sort(block, axis=1)):
            true = np.sort(values[positives.indices[positives.indptr[column] : positives.indptr[column + 1]]])
            accepted = len(ascending) - np.searchsorted(ascending, true, "left")
            hits = len(true) - np.searchsorted(true, true, "left")
            best = _best(true, hits, accepted, len(true))
            if best is not None:
                at = np.searchsorted(ascending, best, "left")
                thresholds[column] = _middle(best, ascending[at - 1] if at else ascending.dtype.type(0))

    scored.over_codes(frequent, tune)
    return thresholds


def _best_threshold(scored: Scored) -> float:
    cells = CellCounts.of(scored)
    best = _best(cells.values, cells.hits, cells.accepted, scored.gold.nnz)
    if best is None:
        raise DataError("cannot tune a threshold: no true code of these notes has a score above 0")
    return _middle(best, max(scored.over_notes(lambda _, block: np.where(block < best, block, 0).max(initial=0))))


def _middle(best: np.floating, below: np.floating) -> float:
    """The middle of the gap between the best score and the next one below it, in the precision of the scores."""
    middle = below + (best - below) / 2
    return float(middle if middle > below else best)


def _best(values: np.ndarray, hits: np.ndarray, accepted: np.ndarray, n_true: int) -> np.floating | None:
    """The value (ascending) with the highest F1 = 2 hits / (accepted + true); zero scores are never accepted."""
    f1 = np.where(values > 0, 2 * hits / (accepted + n_true), -1.0)
    if not len(f1) or f1.max() < 0:
        return None
    return values[len(f1) - 1 - np.argmax(f1[::-1])]
