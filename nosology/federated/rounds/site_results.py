"""What a site returns: the update of a round, and the counts of an evaluation. Nothing here depends on Flower."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from scipy.special import expit

from nosology.core import Code
from nosology.core.label_space import LabelSpace, label_versions, note_versions
from nosology.evaluation.counts import Counts, micro
from nosology.evaluation.ranking_metrics import note_values, rank_codes
from nosology.evaluation.scored import Scored
from nosology.federated.rounds.federation_setup import Arrays
from nosology.training.calibration import PlattScaling

_EDGES = np.round(np.arange(-3000, 3001) / 100, 2).astype(np.float32)  # of the bins of logits


@dataclass(frozen=True, eq=False)
class SiteUpdate:
    """The weights of a site after a round, or the mean of several sites."""

    site: str
    arrays: Arrays
    notes: float  # its weight in the mean
    loss: float  # mean per note
    label_mask: np.ndarray  # (L,) bool: labels that the site codes with; the rows of other labels are unchanged
    optimizer_state: Arrays = field(default_factory=dict)  # of AdamW, with optimizer_state = "keep"; stays at the site


@dataclass(frozen=True, eq=False)
class SiteCounts:
    """Evaluation counts over the labels that a site uses. All int64 but `precision`.

    + adds the counts of two sites. Metrics of all sites together are computed from the sum.
    """

    notes: np.ndarray  # (1,)
    outside: np.ndarray  # (1,) true codes that are not labels
    cells: np.ndarray  # (bins,) histogram of the logits of all notes x labels
    true: np.ndarray  # (bins,) histogram of the logits of true codes
    precision: np.ndarray  # (2,) float64: sum of average precisions per note, and number of notes that have one
    hits: np.ndarray  # (3, L) tp, fp, fn per label; zeros without a threshold
    exact: np.ndarray  # (1,) notes whose predicted codes are exactly the true ones

    @staticmethod
    def of(
        labels: LabelSpace,
        logits: np.ndarray,
        scores: np.ndarray,
        codes: Sequence[Collection[Code]],
        label_mask: np.ndarray,
        threshold: float | None,
    ) -> SiteCounts:
        """The counts of logits and probabilities (B, L) of notes with these true codes.

        label_mask: (L,) bool; other labels are ignored, also where they are true. threshold: of probabilities. A note
        is scored only on codes of its ICD versions, as in `nosology evaluate`; a note without codes, on the version of
        most notes.
        """
        columns = np.flatnonzero(label_mask)
        used = LabelSpace(labels.codes[i] for i in columns)
        unused = set(labels.codes) - set(used.codes)
        of_notes = note_versions(codes)[:, None]
        codes = [set(note) - unused for note in codes]
        true = used.encode(codes).toarray().astype(bool)
        outside = np.array([len(note) for note in codes], dtype=np.int64) - true.sum(1)
        scored = ((of_notes & label_versions(used)) > 0) | (of_notes == 0)
        probabilities = np.where(scored, scores[:, columns], np.float32(0))
        bins = np.searchsorted(_EDGES, logits[:, columns], "right")
        hits, exact = np.zeros((3, len(labels)), np.int64), 0
        if threshold is not None:
            predicted = (probabilities >= np.float32(threshold)) & (probabilities > 0)
            for row, cells in enumerate((true & predicted, ~true & predicted, true & ~predicted)):
                hits[row, columns] = cells.sum(0)
            exact = int(((true == predicted).all(1) & (outside == 0)).sum())
        return SiteCounts(
            np.array([len(logits)]),
            np.array([outside.sum()]),
            np.bincount(bins[scored], minlength=len(_EDGES) + 1),
            np.bincount(bins[true], minlength=len(_EDGES) + 1),
            _average_precisions(used, codes, probabilities),
            hits,
            np.array([exact]),
        )

    @staticmethod
    def empty(labels: LabelSpace) -> SiteCounts:
        """The counts of no notes."""
        logits = np.zeros((0, len(labels)), np.float32)
        return SiteCounts.of(labels, logits, logits, [], np.ones(len(labels), bool), None)

    def __add__(self, other: SiteCounts) -> SiteCounts:
        return SiteCounts(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    @property
    def best(self) -> tuple[float, float]:
        """The logit threshold with the highest micro F1, and that F1. The edges of bins are tried."""
        accepted, right = (np.cumsum(array[::-1])[::-1][1:] for array in (self.cells, self.true))
        positives = self.true.sum() + self.outside[0]
        f1 = 2 * right / np.maximum(accepted + positives, 1)
        index = len(f1) - 1 - int(np.argmax(f1[::-1]))
        return float(_EDGES[index]), float(f1[index])

    @property
    def best_f1(self) -> float | None:
        """The highest micro F1; None without true codes."""
        return self.best[1] if self.true.any() else None

    @cached_property
    def calibration(self) -> PlattScaling:
        """The PlattScaling calibration of highest likelihood, with each logit at the middle of its bin."""
        middles = np.concatenate([_EDGES[:1] - 0.005, (_EDGES[:-1] + _EDGES[1:]) / 2, _EDGES[-1:] + 0.005])
        return PlattScaling.fit_counts(middles.astype(np.float64), self.true, self.cells - self.true)

    @property
    def threshold(self) -> float:
        """The threshold of calibrated probabilities with the highest micro F1."""
        return float(expit(self.calibration.a * self.best[0] + self.calibration.b))

    @property
    def map(self) -> float:
        """The mean average precision."""
        return float(self.precision[0] / max(1.0, self.precision[1]))

    def metrics(self, labels: LabelSpace) -> dict[str, float | None]:
        """The metrics of all notes. A true code that is not a label is a false negative.

        If there are such codes, metrics that need the number of different codes are None: sites do not report them.
        """
        tp, fp, fn = self.hits
        metrics = Counts(labels, len(labels), tp, fp, fn, int(self.notes[0]), int(self.exact[0])).metrics()
        if self.outside[0]:
            sums = micro(*(np.array([total]) for total in (tp.sum(), fp.sum(), fn.sum() + self.outside[0])))
            defined = {name: None if np.isnan(value[0]) else float(value[0]) for name, value in sums.items()}
            metrics = dict.fromkeys(metrics) | defined | {"exact_match": metrics["exact_match"]}
        return metrics | {"map": self.map}

    def arrays(self) -> Arrays:
        """The counts by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def _average_precisions(labels: LabelSpace, codes: Sequence[Collection[Code]], scores: np.ndarray) -> np.ndarray:
    """The sum of the average precisions of notes, and the number of notes that have one."""
    if not any(codes):
        return np.zeros(2)
    scored = Scored.of(labels, codes, scores)
    values = note_values(scored, rank_codes(scored, np.empty(0)))["map"]
    return np.array([np.nansum(values), np.isfinite(values).sum()], dtype=np.float64)
