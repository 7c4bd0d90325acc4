"""Synthetic rows for minority labels (MLSMOTE, Charte et al. 2015), of train reports and for training alone.

A synthetic row is a place between two train reports, never a note: it has no text, no id and no split, and what
measures a coder takes notes. Only a batch can hold it (`SyntheticBatch`), and only a loss is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class Synthetic:
    """S rows, each between a train report and one of its neighbours; all numbers name rows of the train reports."""

    first: np.ndarray  # (S,)
    second: np.ndarray  # (S,)
    shares: np.ndarray  # (S,) of the way from the first to the second
    targets: np.ndarray  # (S, L) of 0 and 1

    def __len__(self) -> int:
        return len(self.first)

    def among(self, rows: np.ndarray) -> Synthetic:
        """The same, where the train reports are these rows of more reports."""
        return replace(self, first=rows[self.first], second=rows[self.second])

    def part(self, chosen: np.ndarray) -> Synthetic:
        """Some of the rows."""
        return Synthetic(self.first[chosen], self.second[chosen], self.shares[chosen], self.targets[chosen])


def imbalance(gold: sparse.csr_matrix) -> tuple[np.ndarray, float]:
    """IRLbl (L,), how many times rarer than the most frequent label each is, and MeanIR, its mean over labels."""
    counts = np.asarray(gold.sum(0), dtype=np.float64).ravel()
    ratios = np.divide(counts.max(), counts, out=np.full(len(counts), np.inf), where=counts > 0)
    return ratios, float(ratios[np.isfinite(ratios)].mean())


def minority(gold: sparse.csr_matrix) -> np.ndarray:
    """The labels (columns) with IRLbl > MeanIR; labels without a note are none."""
    ratios, mean = imbalance(gold)
    return np.flatnonzero(np.isfinite(ratios) & (ratios > mean))


def mlsmote(
    gold: sparse.csr_matrix, vectors: np.ndarray, *, share: float, neighbours: int = 5, seed: int = 0
) -> Synthetic:
    """The synthetic rows of train reports: `share` of them for each minority label of each report, on average.

    gold: 0/1 (B, L) of train reports. vectors: (B, D), in which neighbours are near. A report is interpolated with one
    of its nearest neighbours that have the same minority label; a synthetic row has the labels that at least half of
    report and neighbours have, the minority label among them.
    """
    rng = np.random.default_rng([seed, 2015])
    dense = gold.toarray().astype(bool)
    first, second, targets = [], [], []
    for label in minority(gold):
        bag = np.flatnonzero(dense[:, label])
        if len(bag) < 2:
            continue
        for row in bag:
            near = _nearest(vectors, row, bag[bag != row], neighbours)
            for _ in range(int(share) + (rng.random() < share % 1)):
                votes = dense[row].astype(int) + dense[near].sum(0)
                wanted = 2 * votes >= len(near) + 1
                wanted[label] = True
                first.append(row)
                second.append(rng.choice(near))
                targets.append(wanted)
    made = np.array(targets, dtype=np.float32).reshape(-1, gold.shape[1])
    return Synthetic(np.array(first, np.int64), np.array(second, np.int64), rng.random(len(first)), made)


def _nearest(vectors: np.ndarray, row: int, others: np.ndarray, k: int) -> np.ndarray:
    """The k of the other rows that lie nearest to a row, the nearest first."""
    distance = np.square(vectors[others] - vectors[row]).sum(1)
    return others[np.argsort(distance, kind="stable")[:k]]
