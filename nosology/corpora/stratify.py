"""Stratification of groups of notes: every part gets its share of every label.

First the greedy method of Sechidis, Tsoumakas and Vlahavas (2011), stated for groups: the label with the fewest notes
left goes first, and each of its groups goes to the part that still lacks most notes of that label. Then sweeps over
the groups, each moved to where it makes chi-squared smallest: the greedy method cannot mend what it did early.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

# In each sweep, how much the size of a part and its number of labels weigh against the labels of one note together.
# Without them rare labels, which only the largest part can take, draw notes with many labels there; heavy from the
# start, they let no note move.
_WHOLE = (0.5, 1, 2, 4)


def stratify(
    counts: sparse.csr_matrix,
    sizes: np.ndarray,
    shares: np.ndarray,
    rng: np.random.Generator,
    *,
    wanted: np.ndarray | None = None,
) -> np.ndarray:
    """The part of each group, as integers (G groups).

    `counts` (G, L labels) says how many notes of a group have a label, `sizes` (G) how many notes it has, `shares`
    (P parts) what share of all notes each part should get. `wanted` (P, L) says how many notes with each label a part
    should get: by default its share of them; if given, frequent labels go first, else the rare ones would decide alone.
    No part is empty if there are as many groups as parts.
    """
    # Two more labels: how many labels a group has, and how many notes.
    whole = np.column_stack([np.asarray(counts.sum(axis=1)).ravel(), sizes])
    counts = sparse.csr_matrix(sparse.hstack([counts, whole]), dtype=float)
    counts.sort_indices()
    totals = np.asarray(counts.sum(axis=0)).ravel()
    lacking = np.outer(shares, totals)
    if wanted is not None:
        lacking[:, :-2] = wanted
    part = _greedy(counts, lacking, rng, rarest_first=wanted is None)
    for whole_weight in _WHOLE:
        weights = 1 / np.maximum(totals, 1)
        weights[-2:] *= whole_weight * max(totals[-2] / max(totals[-1], 1), 1)
        _sweep(counts, lacking, weights, shares, part, rng.permutation(len(sizes)))
    _fill(part, sizes, len(shares))
    return part


def _fill(part: np.ndarray, sizes: np.ndarray, parts: int) -> None:
    """Gives each empty part the smallest group of the part with most groups, while that has two."""
    for empty in np.setdiff1d(np.arange(parts), part):
        crowded = np.flatnonzero(part == np.bincount(part).argmax())
        if len(crowded) > 1:
            part[crowded[sizes[crowded].argmin()]] = empty


def _greedy(
    counts: sparse.csr_matrix, lacking: np.ndarray, rng: np.random.Generator, *, rarest_first: bool
) -> np.ndarray:
    """The part of each group (G), which is taken from `lacking`; groups without labels are placed by size."""
    groups, labels = counts.shape
    part = np.full(groups, -1)
    by_label = counts.tocsc()
    left = np.asarray(counts.sum(axis=0)).ravel()
    sign = 1 if rarest_first else -1
    # Of a label's groups the largest goes first, while every part has room; equal ones in random order.
    rank = np.lexsort((rng.random(groups), -counts[:, [-1]].toarray().ravel())).argsort()
    while True:
        some = left[:-2] > 0
        label = int(np.where(some, sign * left[:-2], np.inf).argmin()) if some.any() else labels - 1
        members = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
        members = members[part[members] < 0]
        for group in members[rank[members].argsort()]:
            row = slice(counts.indptr[group], counts.indptr[group + 1])
            part[group] = chosen = _most_lacking(lacking[:, label], lacking[:, -1], rng)
            lacking[chosen, counts.indices[row]] -= counts.data[row]
            left[counts.indices[row]] -= counts.data[row]
        if label == labels - 1:
            return part


def _most_lacking(label: np.ndarray, size: np.ndarray, rng: np.random.Generator) -> int:
    """The part that lacks most of the label; of equals, most notes; of equals, a random one."""
    best = np.flatnonzero(label == label.max())
    if len(best) > 1:
        best = best[size[best] == size[best].max()]
    return int(best[0]) if len(best) == 1 else int(rng.choice(best))


def _sweep(
    counts: sparse.csr_matrix,
    lacking: np.ndarray,
    weights: np.ndarray,
    shares: np.ndarray,
    part: np.ndarray,
    order: np.ndarray,
) -> None:
    """Moves each group in turn to the part that makes sum(weights * lacking**2 / shares) smallest."""
    for group in order:
        row = slice(counts.indptr[group], counts.indptr[group + 1])
        labels, notes = counts.indices[row], counts.data[row]
        old = part[group]
        lacking[old, labels] += notes
        weighted = weights[labels] * notes
        cost = (weighted @ notes - 2 * (lacking[:, labels] @ weighted)) / shares
        best = int(cost.argmin())
        if cost[best] < cost[old] - 1e-9:
            part[group] = best
        lacking[part[group], labels] -= notes
