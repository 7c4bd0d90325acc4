"""Calibration: the reliability table and the expected calibration error (ECE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nosology.evaluation.scored import Scored


@dataclass(frozen=True)
class Reliability:
    """Cells (notes x codes) in bins by score; each array has one entry per bin that is not empty."""

    count: np.ndarray
    mean_score: np.ndarray
    true_rate: np.ndarray

    @property
    def ece(self) -> float | None:
        """The expected calibration error: the mean distance of score and true rate over cells; None if empty."""
        if not self.count.sum():
            return None
        return float(np.average(np.abs(self.mean_score - self.true_rate), weights=self.count))


def reliability(
    scored: Scored, *, n_bins: int = 15, bins: Literal["equal_mass", "equal_width"] = "equal_mass", floor: float = 0.01
) -> Reliability:
    """The reliability table over the cells that score at least `floor`.

    In a space of thousands of codes nearly all cells are near 0 and right; with floor = 0 they hide all others. Bins of
    equal_mass have about equally many cells. Codes outside the label space have no score and are not counted.
    """
    if bins not in ("equal_mass", "equal_width"):
        raise ValueError(f"bins must be equal_mass or equal_width; got {bins}")
    if n_bins < 1 or not 0 <= floor < 1:
        raise ValueError(f"n_bins must be at least 1 and floor in [0, 1); got {n_bins} and {floor}")
    if bins == "equal_mass":
        selected = np.concatenate(scored.map_notes(lambda _, block: block[block >= floor]))
        edges = (
            np.quantile(selected.astype(np.float64), np.linspace(0, 1, n_bins + 1))[1:-1] if len(selected) else selected
        )
    else:
        edges = np.linspace(floor, 1, n_bins + 1)[1:-1]

    def count_bins(_: slice, block: np.ndarray) -> np.ndarray:
        return _sums(block[block >= floor] if floor else block.ravel(), edges)

    count, total = np.sum(scored.map_notes(count_bins), axis=0)
    true, _ = _sums(scored.true_scores[scored.true_scores >= floor], edges)
    filled = count > 0
    return Reliability(count[filled].astype(np.int64), total[filled] / count[filled], true[filled] / count[filled])


def _sums(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The number and the sum of the values in each bin, (2, bins)."""
    # Without a floor almost all values are in the first bin; only the others are searched.
    high = values[values > edges[0]] if len(edges) else values[:0]
    where = np.searchsorted(edges, high.astype(np.float64))
    sums = np.stack([np.bincount(where, weights=w, minlength=len(edges) + 1) for w in (None, high)]).astype(np.float64)
    sums[:, 0] += len(values) - len(high), values.sum(dtype=np.float64) - high.sum(dtype=np.float64)
    return sums
