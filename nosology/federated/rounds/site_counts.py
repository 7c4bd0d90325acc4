"""How a head does on a hospital's notes, as counts: they add up over hospitals, and the metrics are computed once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from scipy.special import expit

from nosology.core import Code
from nosology.core.label_space import LabelSpace, label_versions, note_versions
from nosology.evaluation.counts import Counts, micro
from nosology.evaluation.ranking_metrics import note_values, rank
from nosology.evaluation.scored import Scored
from nosology.training.calibration import PlattScaling

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
        scores: np.ndarray,
        codes: Sequence[Collection[Code]],
        known: np.ndarray,
        threshold: float | None,
    ) -> SiteCounts:
        """The counts of logits and probabilities (B, L) of notes with these true codes, in or outside `labels`.

        known: (L,) bool; other labels are passed over, also where they are true. threshold: of accepted probabilities.
        A note is held only against codes of the ICD versions it is coded in, as `nosology evaluate` does; one without
        codes, against those of most notes here.
        """
        columns = np.flatnonzero(known)
        named = LabelSpace(labels.codes[i] for i in columns)
        unknown = set(labels.codes) - set(named.codes)
        of_notes = note_versions(codes)[:, None]
        codes = [set(note) - unknown for note in codes]
        true = named.encode(codes).toarray().astype(bool)
        outside = np.array([len(note) for note in codes], dtype=np.int64) - true.sum(1)
        own = ((of_notes & label_versions(named)) > 0) | (of_notes == 0)
        chosen = np.where(own, scores[:, columns], np.float32(0))
        bins = np.searchsorted(_EDGES, logits[:, columns], "right")
        hits, exact = np.zeros((3, len(labels)), np.int64), 0
        if threshold is not None:
            mine = (chosen >= np.float32(threshold)) & (chosen > 0)
            for row, cells in enumerate((true & mine, ~true & mine, true & ~mine)):
                hits[row, columns] = cells.sum(0)
            exact = int(((true == mine).all(1) & (outside == 0)).sum())
        return SiteCounts(
            np.array([len(logits)]),
            np.array([outside.sum()]),
            np.bincount(bins[own], minlength=len(_EDGES) + 1),
            np.bincount(bins[true], minlength=len(_EDGES) + 1),
            _precision(named, codes, chosen),
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
    def calibration(self) -> PlattScaling:
        """The calibration of highest likelihood, each cell taken at the middle of its bin."""
        middles = np.concatenate([_EDGES[:1] - 0.005, (_EDGES[:-1] + _EDGES[1:]) / 2, _EDGES[-1:] + 0.005])
        return PlattScaling.fit_counts(middles.astype(np.float64), self.true, self.cells - self.true)

    @property
    def threshold(self) -> float:
        """The probability, calibrated, from which on codes are best accepted."""
        return float(expit(self.calibration.a * self.best[0] + self.calibration.b))

    @property
    def map(self) -> float:
        """The mean average precision."""
        return float(self.precision[0] / max(1.0, self.precision[1]))

    def metrics(self, labels: LabelSpace) -> dict[str, float | None]:
        """The metrics of all notes together, by name; a true code that no label stands for is a miss.

        Where there are such codes, the metrics that depend on how many different ones there are have no value: the
        sites do not name them.
        """
        whole = Counts(labels, len(labels), *self.hits, int(self.notes[0]), int(self.exact[0])).metrics()
        if self.outside[0]:
            tp, fp, fn = self.hits.sum(1)
            sums = micro(np.array([tp]), np.array([fp]), np.array([fn + self.outside[0]]))
            found = {name: None if np.isnan(value[0]) else float(value[0]) for name, value in sums.items()}
            whole = dict.fromkeys(whole) | found | {"exact_match": whole["exact_match"]}
        return whole | {"map": self.map}

    def arrays(self) -> dict[str, np.ndarray]:
        """The counts by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def _precision(labels: LabelSpace, codes: Sequence[Collection[Code]], scores: np.ndarray) -> np.ndarray:
    """The sum of the average precisions of notes (B,), and how many notes have one."""
    if not any(codes):
        return np.zeros(2)
    scored = Scored.of(labels, codes, scores)
    values = note_values(scored, rank(scored, np.empty(0)))["map"]
    return np.array([np.nansum(values), np.isfinite(values).sum()], dtype=np.float64)
