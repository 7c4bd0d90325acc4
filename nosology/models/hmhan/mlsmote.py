"""Synthetic rows of rare codes (MLSMOTE, Charte et al. 2015).

A synthetic row is interpolated between two train reports. It is not a note: it has no text, id or split, so it cannot
be evaluated. Only a batch can contain it (`SyntheticBatch`), and it only enters the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from nosology.core.label_space import column_sums


@dataclass(frozen=True)
class SyntheticRows:
    """S synthetic rows, each between a train report and one of its neighbours."""

    first: np.ndarray  # (S,) rows of the train reports
    second: np.ndarray  # (S,)
    fractions: np.ndarray  # (S,) position between the first (0) and the second (1)
    targets: np.ndarray  # (S, L) of 0 and 1

    def __len__(self) -> int:
        return len(self.first)

    def reindexed(self, rows: np.ndarray) -> SyntheticRows:
        """The same rows for a larger dataset, in which report i is at rows[i]."""
        return replace(self, first=rows[self.first], second=rows[self.second])

    def subset(self, chosen: np.ndarray) -> SyntheticRows:
        return SyntheticRows(self.first[chosen], self.second[chosen], self.fractions[chosen], self.targets[chosen])


def imbalance(gold: sparse.csr_matrix) -> tuple[np.ndarray, float]:
    """IRLbl (L,), count of the most frequent label / count of the label, and MeanIR, its mean over labels."""
    counts = column_sums(gold).astype(np.float64)
    ratios = np.divide(counts.max(), counts, out=np.full(len(counts), np.inf), where=counts > 0)
    return ratios, float(ratios[np.isfinite(ratios)].mean())


def minority_labels(gold: sparse.csr_matrix) -> np.ndarray:
    """The labels with IRLbl > MeanIR, without labels that no note has."""
    ratios, mean = imbalance(gold)
    return np.flatnonzero(np.isfinite(ratios) & (ratios > mean))


def mlsmote(
    gold: sparse.csr_matrix, vectors: np.ndarray, *, ratio: float, neighbours: int = 5, seed: int = 0
) -> SyntheticRows:
    """Synthetic rows of train reports (MLSMOTE, Charte et al. 2015): on average `ratio` per report and minority label.

    gold: 0/1 (B, L). vectors: (B, D), for the distance between reports. A report is interpolated with one of its
    nearest neighbours that have the same minority label. The row gets that label and all labels that at least half of
    report and neighbours have.
    """
    rng = np.random.default_rng([seed, 2015])
    dense = gold.toarray().astype(bool)
    first, second, targets = [], [], []
    for label in minority_labels(gold):
        bag = np.flatnonzero(dense[:, label])
        if len(bag) < 2:
            continue
        for row in bag.tolist():
            nearest = _nearest(vectors, row, bag[bag != row], neighbours)
            for _ in range(int(ratio) + (rng.random() < ratio % 1)):
                votes = dense[row].astype(int) + dense[nearest].sum(0)
                target = 2 * votes >= len(nearest) + 1
                target[label] = True
                first.append(row)
                second.append(rng.choice(nearest))
                targets.append(target)
    dense_targets = np.array(targets, dtype=np.float32).reshape(-1, gold.shape[1])
    return SyntheticRows(np.array(first, np.int64), np.array(second, np.int64), rng.random(len(first)), dense_targets)


def _nearest(vectors: np.ndarray, row: int, candidates: np.ndarray, k: int) -> np.ndarray:
    """The k candidates that are nearest to a row, nearest first."""
    distance = np.square(vectors[candidates] - vectors[row]).sum(1)
    return candidates[np.argsort(distance, kind="stable")[:k]]
