"""How the true cells stand among all cells (notes x codes): behind micro AUC, the threshold and the PR curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nosology.evaluation.scored import Scored


@dataclass(frozen=True)
class CellCounts:
    """For each distinct score of a true cell, ascending: how many cells lie below it and up to it.

    Only cells of codes that the model can name are counted. The four arrays of counts are exact integers.
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
        """The counts over all notes: each block is sorted alone, and the counts add up."""
        true = np.sort(scored.true_scores)
        values = np.unique(true)

        def count(_: slice, block: np.ndarray) -> np.ndarray:
            cells = np.sort(block, axis=None)
            return np.stack([np.searchsorted(cells, values, "left"), np.searchsorted(cells, values, "right")])

        below, upto = np.sum(scored.over_notes(count), axis=0)
        true_below, true_upto = np.searchsorted(true, values, "left"), np.searchsorted(true, values, "right")
        return CellCounts(values, below, upto, true_below, true_upto, scored.n_notes * scored.n_nameable, len(true))

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
    """Ranks (from 1) of the true codes that can be named, in the order of `Scored.named_gold`.

    `place` breaks ties by column; a score of 0 is no place at all (infinity), nor has a code that cannot be named one.
    `worst` counts every code that scores as much, as scikit-learn does.
    """

    place: np.ndarray
    worst: np.ndarray
    grid_beats: np.ndarray  # (B,) see `rank`


def rank(scored: Scored, grid: np.ndarray) -> Ranks:
    """The ranks; and for each note, summed over `grid` (scores, ascending), how many of its cells a score beats.

    A tie with a grid score counts one half. One sort of a note serves both.
    """
    true, bounds = scored.true_scores, scored.named_gold.indptr
    columns = scored.named_gold.indices
    place, worst = np.empty(len(true)), np.empty(len(true), dtype=np.int64)
    grid_beats = np.zeros(scored.n_notes)

    def look(notes: slice, block: np.ndarray) -> None:
        for note, row, ascending in zip(range(notes.start, notes.stop), block, np.sort(block, axis=1)):
            mine = slice(bounds[note], bounds[note + 1])
            values = true[mine]
            above = len(row) - np.searchsorted(ascending, values, "right")
            worst[mine] = len(row) - np.searchsorted(ascending, values, "left")
            place[mine] = above + 1
            for i in np.flatnonzero((worst[mine] - above > 1) & (values > 0)):
                place[mine.start + i] += np.count_nonzero(row[: columns[mine.start + i]] == values[i])
            beats = np.searchsorted(ascending, grid, "left") + np.searchsorted(ascending, grid, "right")
            grid_beats[note] = beats.sum() / 2

    scored.over_notes(look)
    place[true == 0] = np.inf
    return Ranks(place, worst, grid_beats)


def note_values(scored: Scored, ranks: Ranks) -> dict[str, np.ndarray]:
    """Each ranking metric of each note (B,); NaN for a note without a true code."""
    n_true = np.diff(scored.gold.indptr)
    note = np.repeat(np.arange(scored.n_notes), np.diff(scored.named_gold.indptr))

    def per_note(values: np.ndarray) -> np.ndarray:
        return np.bincount(note, weights=values, minlength=scored.n_notes)

    safe = np.where(n_true > 0, n_true, np.nan)
    hits = {k: per_note(ranks.place <= k) for k in CUTS}
    found = {"map": per_note(_precision_at_own_rank(note, ranks.worst)) / safe}
    found |= {f"p@{k}": np.where(n_true > 0, hits[k] / k, np.nan) for k in CUTS}
    found["r@15"] = hits[15] / safe
    found["r_precision"] = per_note(ranks.place <= n_true[note]) / safe
    deepest = np.zeros(scored.n_notes)
    np.maximum.at(deepest, note, ranks.worst)
    deepest[n_true > np.diff(scored.named_gold.indptr)] = len(scored.space)
    found["coverage_error"] = np.where(n_true > 0, deepest, np.nan)
    return found


def _precision_at_own_rank(note: np.ndarray, worst: np.ndarray) -> np.ndarray:
    """For each true code the share of true codes among all that rank at least as high."""
    order = np.lexsort((worst, note))
    # A note's true codes are now neighbours, best first; codes of one tie all count up to the last of them.
    key = note[order].astype(np.int64) * (int(worst.max(initial=0)) + 1) + worst[order]
    upto = np.searchsorted(key, key, "right") - np.searchsorted(note, note[order], "left")
    precision = np.empty(len(worst))
    precision[order] = upto / worst[order]
    return precision


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
