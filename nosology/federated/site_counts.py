"""How a head does on a hospital's notes, as counts: they add up over hospitals, and the metrics are computed once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.special import expit

from nosology.codes.label_space import LabelSpace
from nosology.evaluation.counts import Counts
from nosology.evaluation.ranking import note_values, rank
from nosology.evaluation.scored import Scored
from nosology.models.platt import Platt

_EDGES = np.round(np.arange(-3000, 3001) / 100, 2).astype(np.float32)  # of bins of logits


@dataclass(frozen=True, eq=False)
class SiteCounts:
    """Counts over the codes that a site codes with; + adds two of them. All arrays are int64, save `precision`."""

    notes: np.ndarray  # (1,)
    outside: np.ndarray  # (1,) true codes that no label stands for
    cells: np.ndarray  # (bins,) notes x codes by logit
    true: np.ndarray  # (bins,) the true ones among them
    precision: np.ndarray  # (2,) float64: sum of the notes' average precisions, and how many notes have one
    hits: np.ndarray  # (3, L) tp, fp, fn of each code; zeros where no threshold was given
    exact: np.ndarray  # (1,) notes whose codes are all right

    @staticmethod
    def of(
        labels: LabelSpace,
        logits: np.ndarray,
        gold: sparse.csr_matrix,
        outside: int,
        known: np.ndarray,
        accepted: np.ndarray | None,
    ) -> SiteCounts:
        """The counts of logits (B, L) and true codes (B, L); known: (L,) bool; accepted: (B, L) bool or None."""
        columns = np.flatnonzero(known)
        true = gold[:, columns].toarray().astype(bool)
        chosen = logits[:, columns]
        bins = np.searchsorted(_EDGES, chosen, "right")
        hits, exact = np.zeros((3, len(labels)), np.int64), 0
        if accepted is not None:
            mine = accepted[:, columns]
            for row, cells in enumerate((true & mine, ~true & mine, true & ~mine)):
                hits[row, columns] = cells.sum(0)
            exact = int((true == mine).all(1).sum())
        return SiteCounts(
            np.array([len(logits)]),
            np.array([outside]),
            np.bincount(bins.ravel(), minlength=len(_EDGES) + 1),
            np.bincount(bins[true], minlength=len(_EDGES) + 1),
            _precision(LabelSpace(labels.codes[i] for i in columns), chosen, true),
            hits,
            np.array([exact]),
        )

    def __add__(self, other: SiteCounts) -> SiteCounts:
        return SiteCounts(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    @property
    def best(self) -> tuple[float, float]:
        """The logit from which on codes are best accepted, and the micro F1 there; the edges of bins are tried."""
        accepted, right = (np.cumsum(array[::-1])[::-1][1:] for array in (self.cells, self.true))
        wanted = self.true.sum() + self.outside[0]
        f1 = 2 * right / np.maximum(accepted + wanted, 1)
        place = len(f1) - 1 - int(np.argmax(f1[::-1]))
        return float(_EDGES[place]), float(f1[place])

    @cached_property
    def calibration(self) -> Platt:
        """The calibration of highest likelihood, each cell taken at the middle of its bin."""
        middles = np.concatenate([_EDGES[:1] - 0.005, (_EDGES[:-1] + _EDGES[1:]) / 2, _EDGES[-1:] + 0.005])
        return Platt.of_counts(middles.astype(np.float64), self.true, self.cells - self.true)

    @property
    def threshold(self) -> float:
        """The probability, calibrated, from which on codes are best accepted."""
        return float(expit(self.calibration.a * self.best[0] + self.calibration.b))

    @property
    def map(self) -> float:
        """The mean average precision."""
        return float(self.precision[0] / max(1.0, self.precision[1]))

    def counts(self, labels: LabelSpace) -> Counts:
        """The counts that metrics are computed from; true codes without a label are left out."""
        return Counts(labels, len(labels), *self.hits, int(self.notes[0]), int(self.exact[0]))

    def arrays(self) -> dict[str, np.ndarray]:
        """The counts by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def _precision(labels: LabelSpace, logits: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The sum of the average precisions of notes (B,), and how many notes have one."""
    if not len(logits) or not true.any():
        return np.zeros(2)
    codes = [[labels.codes[j] for j in np.flatnonzero(row)] for row in true]
    scored = Scored.of(labels, codes, expit(logits.astype(np.float64)).astype(np.float32))
    values = note_values(scored, rank(scored, np.empty(0)))["map"]
    return np.array([np.nansum(values), np.isfinite(values).sum()], dtype=np.float64)
