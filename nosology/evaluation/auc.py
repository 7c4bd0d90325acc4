"""Areas under the ROC curve, exact with ties, and how much each note moves them."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from nosology.evaluation.cells import CellCounts
from nosology.evaluation.ranking import Ranks
from nosology.evaluation.scored import Scored

GRID = 1024


def grid_of(cells: CellCounts) -> np.ndarray:
    """At most 1,024 scores (ascending) spread evenly over the true cells: they stand for them in `micro_auc`."""
    if not cells.n_true:
        return np.empty(0)
    wanted = (np.arange(min(GRID, cells.n_true)) + 0.5) / min(GRID, cells.n_true) * cells.n_true
    return cells.values[np.searchsorted(cells.true_upto, wanted, "left")]


def micro_auc(scored: Scored, cells: CellCounts, ranks: Ranks, grid: np.ndarray) -> tuple[float, np.ndarray]:
    """The AUC over all cells, and the influence (B,) of each note on it.

    Cells of codes that cannot be named lie below all others and tie among themselves. The AUC is exact; the influence
    takes `grid` for the true scores.
    """
    n_true = np.diff(scored.gold.indptr)
    n_named = np.diff(scored.named_gold.indptr)
    n_false = len(scored.space) - n_true
    total_true, total_false = int(n_true.sum()), int(n_false.sum())
    if not total_true or not total_false:
        return np.nan, np.zeros(scored.n_notes)
    outside_true = n_true - n_named
    outside_false = scored.n_outside - outside_true
    note = np.repeat(np.arange(scored.n_notes), n_named)
    beaten = cells.false_beaten[np.searchsorted(cells.values, scored.true_scores)] + outside_false.sum()
    won = np.bincount(note, weights=beaten, minlength=scored.n_notes) + outside_true * outside_false.sum() / 2
    auc = float(won.sum() / total_true / total_false)

    lost = np.zeros(scored.n_notes)
    if len(grid):
        true = scored.true_scores
        own = len(grid) - (np.searchsorted(grid, true, "left") + np.searchsorted(grid, true, "right")) / 2
        own = np.bincount(note, weights=own, minlength=scored.n_notes)
        lost = (ranks.grid_beats - own) / len(grid) * n_named.sum()
    lost += outside_false * (n_named.sum() + outside_true.sum() / 2)
    influence = (won / total_false - auc * n_true) / total_true + (lost / total_true - auc * n_false) / total_false
    return auc, influence


def code_aucs(scored: Scored) -> tuple[np.ndarray, sparse.csr_matrix, np.ndarray]:
    """The AUC of each code (len(space),), and what resampled notes need to find the mean of these again.

    A code without a true or a false note has no AUC (NaN); one that cannot be named has one score everywhere: 0.5.
    The matrix (B, len(space)) holds for each true code of a note the share of the code's false notes that score less,
    a tie counting one half: a code's AUC is the mean of its column. The vector (B,) is the influence that notes have
    on the mean AUC as false notes of their codes.
    """
    positives = scored.gold.tocsc()
    support = np.diff(positives.indptr)
    mixed = np.flatnonzero((support > 0) & (support < scored.n_notes))
    aucs, won = np.full(len(scored.space), np.nan), np.full(scored.gold.nnz, 0.5)
    aucs[mixed[mixed >= scored.n_nameable]] = 0.5

    def look(group: np.ndarray, block: np.ndarray) -> np.ndarray:
        influence = np.zeros(scored.n_notes)
        for column, values, ascending in zip(group, block, np.sort(block, axis=1)):
            mine = slice(positives.indptr[column], positives.indptr[column + 1])
            won[mine] = _add_code(values, ascending, positives.indices[mine], influence)
            aucs[column] = won[mine].mean()
        return influence

    influence = sum(scored.over_codes(mixed[mixed < scored.n_nameable], look), np.zeros(scored.n_notes))
    shares = sparse.csc_matrix((won, positives.indices, positives.indptr), shape=positives.shape)
    return aucs, shares.tocsr(), influence / max(1, len(mixed))


def _add_code(values: np.ndarray, ascending: np.ndarray, notes: np.ndarray, influence: np.ndarray) -> np.ndarray:
    """The share of false notes that each true note of one code beats; adds the influence of the false notes."""
    own = values[notes]
    true = np.sort(own)
    n_true, n_false = len(true), len(values) - len(true)
    beaten = np.searchsorted(ascending, own, "left") + np.searchsorted(ascending, own, "right")
    won = (beaten - np.searchsorted(true, own, "left") - np.searchsorted(true, own, "right")) / (2 * n_false)
    lost = np.searchsorted(true, values, "left") + np.searchsorted(true, values, "right")
    lost = (1 - won.mean() - lost / (2 * n_true)) / n_false
    lost[notes] = 0
    influence += lost
    return won
