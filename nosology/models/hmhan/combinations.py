"""Codes come in sets: a set that train notes often have is likelier than its codes by themselves make it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logit, softmax

_EDGE = 1e-6
_TRIED = [(share, weight) for share in (0.5, 0.75, 1.0) for weight in (0.0, 0.5, 1.0)]  # beside doing nothing


@dataclass(frozen=True)
class Combinations:
    """P(code) = share x P(code | the note's set is one of these) + (1 - share) x P(code).

    Among these sets, P(set | note) is proportional to the probabilities of all its codes and of the absence of all
    others, times the set's share of the train notes to the power `weight`.
    """

    sets: sparse.csr_matrix  # (S, L) of 0/1, S >= 1
    notes: np.ndarray  # (S,) train notes that have the set
    share: float = 0.0
    weight: float = 0.0

    @classmethod
    def of(cls, gold: sparse.csr_matrix) -> Combinations:
        """The sets of train notes; gold: 0/1 (B, L). Notes without a code have the empty set."""
        counts = Counter(_keys(gold))
        indices = np.concatenate([np.array(key, dtype=np.int32) for key in counts])
        indptr = np.cumsum([0, *map(len, counts)])
        shape = (len(counts), gold.shape[1])
        sets = sparse.csr_matrix((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=shape)
        return cls(sets, np.array(list(counts.values()), dtype=np.float64))

    def __call__(self, probabilities: np.ndarray, without: sparse.csr_matrix | None = None) -> np.ndarray:
        """Probabilities (B, L) of probabilities (B, L), float32.

        without: 0/1 (B, L), the sets of these notes themselves, which are then counted once less each: of a note that
        is among the train notes its own set must not be taken for a sign.
        """
        if not self.share:
            return probabilities
        clipped = np.clip(probabilities.astype(np.float64), _EDGE, 1 - _EDGE)
        scores = (self.sets @ logit(clipped).T).T  # (B, S), but for what all sets of a note share
        counts = np.broadcast_to(self.notes, scores.shape)
        if without is not None:
            counts = counts.copy()
            place = {key: row for row, key in enumerate(_keys(self.sets))}
            for row, key in enumerate(_keys(without)):
                if key in place:
                    counts[row, place[key]] -= 1
        scores = np.where(counts > 0, scores + self.weight * np.log(np.maximum(counts, 1)), -np.inf)
        empty = ~np.isfinite(scores).any(1)
        scores[empty] = 0.0
        among = (self.sets.T @ softmax(scores, axis=1).T).T
        mixed = self.share * among + (1 - self.share) * probabilities
        return np.where(empty[:, None] | (probabilities <= 0), probabilities, np.clip(mixed, 0, 1)).astype(np.float32)

    def tuned(
        self,
        probabilities: np.ndarray,
        quality: Callable[[np.ndarray], float],
        without: sparse.csr_matrix | None = None,
        gain: float = 0.002,
    ) -> Combinations:
        """These sets with the share and the weight that are best on held-out notes, if they gain enough."""
        best, reached = replace(self, share=0.0), quality(probabilities) + gain
        for share, weight in _TRIED:
            found = replace(self, share=share, weight=weight)
            value = quality(found(probabilities, without))
            if value > reached:
                best, reached = found, value
        return best

    def to_json(self) -> dict[str, Any]:
        """All that it is made of."""
        sets = [list(map(int, key)) for key in _keys(self.sets)]
        return {"sets": sets, "notes": self.notes.tolist(), "share": self.share, "weight": self.weight}

    @classmethod
    def from_json(cls, value: dict[str, Any], labels: int) -> Combinations:
        """What `to_json` gave."""
        indices = [column for row in value["sets"] for column in row]
        indptr = np.cumsum([0, *map(len, value["sets"])])
        data = np.ones(len(indices), dtype=np.float32)
        sets = sparse.csr_matrix((data, indices, indptr), shape=(len(value["sets"]), labels))
        return cls(sets, np.array(value["notes"]), value["share"], value["weight"])


def _keys(gold: sparse.csr_matrix) -> Sequence[tuple[int, ...]]:
    gold = gold.tocsr().sorted_indices()
    return [tuple(gold.indices[a:b].tolist()) for a, b in zip(gold.indptr, gold.indptr[1:])]
