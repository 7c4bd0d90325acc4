"""How the true cells stand among all cells (notes x codes): behind micro AUC, the threshold and the PR curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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

        below, upto = sum(scored.over_notes(count))
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
