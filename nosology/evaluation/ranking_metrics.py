"""Ranks of true codes: ranking metrics, AUC, and counts of cells (notes x codes) above each score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.evaluation.scored import Scored


@dataclass(frozen=True)
class CellCounts:
    """For each distinct score of a true cell, ascending: how many cells lie below it and up to it.

    Only cells of codes in the label space are counted.
    """

    values: np.ndarray
    below: np.ndarray
    upto: np.ndarray
    true_below: np.ndarray
    true_upto: np.ndarray
    n_cells: int
    n_true: int

    @staticmethod
    def of(scored: Scored) -> CellCounts:
        """The counts over all notes. Each block is sorted separately, and the counts are added."""
        true = np.sort(scored.true_scores)
        values = np.unique(true)

        def count(_: slice, block: np.ndarray) -> np.ndarray:
            cells = np.sort(block, axis=None)
            return np.stack([np.searchsorted(cells, values, "left"), np.searchsorted(cells, values, "right")])

        below, upto = np.sum(scored.map_notes(count), axis=0)
        true_below, true_upto = np.searchsorted(true, values, "left"), np.searchsorted(true, values, "right")
        return CellCounts(values, below, upto, true_below, true_upto, scored.n_notes * scored.n_labels, len(true))

    @property
    def accepted(self) -> np.ndarray:
        """The number of cells that score at least each value."""
        return self.n_cells - self.below

    @property
    def hits(self) -> np.ndarray:
        """The number of true cells that score at least each value."""
        return self.n_true - self.true_below

    @property
    def false_beaten(self) -> np.ndarray:
        """The number of false cells that score less than each value, a tie counting one half."""
        return (self.below - self.true_below + self.upto - self.true_upto) / 2


CUTS = (5, 8, 15)


@dataclass(frozen=True)
class Ranks:
    """Ranks (from 1) of the true codes in the label space, in the order of `Scored.gold_in_labels`.

    `rank` breaks ties by column; a score of 0 has the rank infinity. `worst` counts all codes with an equal score, as
    scikit-learn does.
    """

    rank: np.ndarray
    worst: np.ndarray
    grid_beats: np.ndarray  # (B,) see `rank_codes`


def rank_codes(scored: Scored, grid: np.ndarray) -> Ranks:
    """The ranks, and for each note the number of (score of `grid`, lower cell) pairs; a tie counts one half.

    grid: scores, ascending. Each note is sorted once for both.
    """
    true, bounds = scored.true_scores, scored.gold_in_labels.indptr
    columns = scored.gold_in_labels.indices
    rank, worst = np.empty(len(true)), np.empty(len(true), dtype=np.int64)
    grid_beats = np.zeros(scored.n_notes)

    def count(notes: slice, block: np.ndarray) -> None:
        for note, row, ascending in zip(range(notes.start, notes.stop), block, np.sort(block, axis=1)):
            of_note = slice(bounds[note], bounds[note + 1])
            values = true[of_note]
            above = len(row) - np.searchsorted(ascending, values, "right")
            worst[of_note] = len(row) - np.searchsorted(ascending, values, "left")
            rank[of_note] = above + 1
            for i in np.flatnonzero((worst[of_note] - above > 1) & (values > 0)):
                before = row[: columns[of_note.start + i]]
                rank[of_note.start + i] += np.count_nonzero(before == values[i])
            beats = np.searchsorted(ascending, grid, "left") + np.searchsorted(ascending, grid, "right")
            grid_beats[note] = beats.sum() / 2

    scored.map_notes(count)
    rank[true == 0] = np.inf
    return Ranks(rank, worst, grid_beats)


def note_values(scored: Scored, ranks: Ranks) -> dict[str, np.ndarray]:
    """The ranking metrics of each note (B,); NaN for a note without a true code."""
    n_true = np.diff(scored.gold.indptr)
    note = np.repeat(np.arange(scored.n_notes), np.diff(scored.gold_in_labels.indptr))

    def per_note(values: np.ndarray) -> np.ndarray:
        return np.bincount(note, weights=values, minlength=scored.n_notes)

    divisor = np.where(n_true > 0, n_true, np.nan)
    hits = {k: per_note(ranks.rank <= k) for k in CUTS}
    values = {"map": per_note(_precision_at_rank(note, ranks.worst)) / divisor}
    values |= {f"p@{k}": np.where(n_true > 0, hits[k] / k, np.nan) for k in CUTS}
    values["r@15"] = hits[15] / divisor
    values["r_precision"] = per_note(ranks.rank <= n_true[note]) / divisor
    deepest = np.zeros(scored.n_notes)
    np.maximum.at(deepest, note, ranks.worst)
    deepest[n_true > np.diff(scored.gold_in_labels.indptr)] = len(scored.space)
    values["coverage_error"] = np.where(n_true > 0, deepest, np.nan)
    return values


def _precision_at_rank(note: np.ndarray, worst: np.ndarray) -> np.ndarray:
    """For each true code, the share of true codes among all codes that rank at least as high."""
    order = np.lexsort((worst, note))
    # The true codes of a note are now adjacent, best first; of equal scores, each counts up to the last.
    key = note[order].astype(np.int64) * (int(worst.max(initial=0)) + 1) + worst[order]
    upto = np.searchsorted(key, key, "right") - np.searchsorted(note, note[order], "left")
    precision = np.empty(len(worst))
    precision[order] = upto / worst[order]
    return precision


GRID = 1024


def grid_of(cells: CellCounts) -> np.ndarray:
    """At most 1,024 quantiles (ascending) of the scores of true cells, which represent them in `micro_auc`."""
    if not cells.n_true:
        return np.empty(0)
    positions = (np.arange(min(GRID, cells.n_true)) + 0.5) / min(GRID, cells.n_true) * cells.n_true
    return cells.values[np.searchsorted(cells.true_upto, positions, "left")]


def micro_auc(scored: Scored, cells: CellCounts, ranks: Ranks, grid: np.ndarray) -> tuple[float, np.ndarray]:
    """The AUC over all cells, and the influence (B,) of each note on it.

    Cells of codes outside the label space have the lowest score, with ties. The AUC is exact; the influence uses `grid`
    in place of the true scores.
    """
    n_true = np.diff(scored.gold.indptr)
    n_in_labels = np.diff(scored.gold_in_labels.indptr)
    n_false = len(scored.space) - n_true
    total_true, total_false = int(n_true.sum()), int(n_false.sum())
    if not total_true or not total_false:
        return np.nan, np.zeros(scored.n_notes)
    outside_true = n_true - n_in_labels
    outside_false = scored.n_outside - outside_true
    note = np.repeat(np.arange(scored.n_notes), n_in_labels)
    beaten = cells.false_beaten[np.searchsorted(cells.values, scored.true_scores)] + outside_false.sum()
    won = np.bincount(note, weights=beaten, minlength=scored.n_notes) + outside_true * outside_false.sum() / 2
    auc = float(won.sum() / total_true / total_false)

    lost = np.zeros(scored.n_notes)
    if len(grid):
        true = scored.true_scores
        beaten_by = len(grid) - (np.searchsorted(grid, true, "left") + np.searchsorted(grid, true, "right")) / 2
        beaten_by = np.bincount(note, weights=beaten_by, minlength=scored.n_notes)
        lost = (ranks.grid_beats - beaten_by) / len(grid) * n_in_labels.sum()
    lost += outside_false * (n_in_labels.sum() + outside_true.sum() / 2)
    influence = (won / total_false - auc * n_true) / total_true + (lost / total_true - auc * n_false) / total_false
    return auc, influence


def code_aucs(scored: Scored) -> tuple[np.ndarray, sparse.csr_matrix, np.ndarray]:
    """The AUC of each code (len(space),), and two arrays that give the mean AUC of resampled notes.

    The AUC of a code without a true or without a false note is NaN; outside the label space it is 0.5. The matrix
    (B, len(space)) has for each true code of a note the share of the false notes of the code with a lower score (a tie
    counts one half): the AUC of a code is the mean of its column. The vector (B,) is the influence of the notes on the
    mean AUC as false notes.
    """
    positives = scored.gold.tocsc()
    support = np.diff(positives.indptr)
    mixed = np.flatnonzero((support > 0) & (support < scored.n_notes))
    aucs, won = np.full(len(scored.space), np.nan), np.full(scored.gold.nnz, 0.5)
    aucs[mixed[mixed >= scored.n_labels]] = 0.5

    def count(group: np.ndarray, block: np.ndarray) -> np.ndarray:
        influence = np.zeros(scored.n_notes)
        for column, values, ascending in zip(group, block, np.sort(block, axis=1)):
            true = slice(positives.indptr[column], positives.indptr[column + 1])
            won[true] = _add_code(values, ascending, positives.indices[true], influence)
            aucs[column] = won[true].mean()
        return influence

    influence = sum(scored.map_codes(mixed[mixed < scored.n_labels], count), np.zeros(scored.n_notes))
    shares = sparse.csc_matrix((won, positives.indices, positives.indptr), shape=positives.shape)
    return aucs, shares.tocsr(), influence / max(1, len(mixed))


def _add_code(values: np.ndarray, ascending: np.ndarray, notes: np.ndarray, influence: np.ndarray) -> np.ndarray:
    """The share of false notes below each true note of a code; adds the influence of the false notes to `influence`."""
    true_scores = values[notes]
    true = np.sort(true_scores)
    n_true, n_false = len(true), len(values) - len(true)
    below = np.searchsorted(ascending, true_scores, "left") + np.searchsorted(ascending, true_scores, "right")
    below -= np.searchsorted(true, true_scores, "left") + np.searchsorted(true, true_scores, "right")
    won = below / (2 * n_false)
    lost = np.searchsorted(true, values, "left") + np.searchsorted(true, values, "right")
    lost = (1 - won.mean() - lost / (2 * n_true)) / n_false
    lost[notes] = 0
    influence += lost
    return won
