"""Groups of codes: categories of the code system, and sets of codes that occur together in training notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logit, softmax

from nosology.codes import table
from nosology.core.label_space import LabelSpace

_EPSILON = 1e-6
# (mixture_weight, prior_exponent) that are tried in addition to no change
_CANDIDATES = [(weight, exponent) for weight in (0.5, 0.75, 1.0) for exponent in (0.0, 0.5, 1.0)]


@dataclass(frozen=True)
class CodeCategories:
    """K categories (chapters or blocks); label j belongs to category `names[of_label[j]]`."""

    names: list[str]  # system and range: "icd9cm 460-519"
    descriptions: list[str]
    of_label: np.ndarray  # (L,)

    @staticmethod
    def at_level(labels: LabelSpace, level: str) -> CodeCategories:
        """The chapters or blocks of the labels; a code that is in no table has the category "unknown" of its system."""
        category_of_label = [_category(*code, level) for code in labels.codes]
        categories = sorted(set(category_of_label))
        index = {category: i for i, category in enumerate(categories)}
        descriptions = [_description(*category) for category in categories]
        names = [" ".join(category) for category in categories]
        return CodeCategories(names, descriptions, np.array([index[category] for category in category_of_label]))


def _category(system: str, code: str, level: str) -> tuple[str, str]:
    codes = table(system)
    if code not in codes:
        return system, "unknown"
    return system, (codes.block(code) if level == "block" else None) or codes.chapter(code)


def _description(system: str, category: str) -> str:
    codes = table(system)
    return codes.description(category) if category in codes else category


@dataclass(frozen=True)
class CodeCombinations:
    """A prior over sets of codes: P'(code) = w P(code | the set of the note is a known one) + (1 - w) P(code).

    w is `mixture_weight`. P(set | note) is proportional to the product of the probabilities that its codes are present
    and all others absent, times the number of training notes with the set to the power `prior_exponent`.
    """

    sets: sparse.csr_matrix  # (S, L) of 0/1, S >= 1
    notes: np.ndarray  # (S,) training notes with the set
    mixture_weight: float = 0.0
    prior_exponent: float = 0.0

    @classmethod
    def from_gold(cls, gold: sparse.csr_matrix) -> CodeCombinations:
        """The sets of training notes; gold: 0/1 (B, L). A note without a code has the empty set."""
        counts = Counter(_row_keys(gold))
        return cls(_set_matrix(list(counts), gold.shape[1]), np.array(list(counts.values()), dtype=np.float64))

    def __call__(self, probabilities: np.ndarray, exclude: sparse.csr_matrix | None = None) -> np.ndarray:
        """Probabilities (B, L), float32, with the prior applied to probabilities (B, L).

        exclude: 0/1 (B, L), the gold sets of these notes if they are training notes. Each is counted once less for its
        own note; otherwise the prior would reveal the gold set.
        """
        if not self.mixture_weight:
            return probabilities
        clipped = np.clip(probabilities.astype(np.float64), _EPSILON, 1 - _EPSILON)
        scores = (self.sets @ logit(clipped).T).T  # (B, S) log-probabilities up to a constant per note
        counts = np.broadcast_to(self.notes, scores.shape)
        if exclude is not None:
            counts = counts.copy()
            column = {key: number for number, key in enumerate(_row_keys(self.sets))}
            for row, key in enumerate(_row_keys(exclude)):
                if key in column:
                    counts[row, column[key]] -= 1
        scores = np.where(counts > 0, scores + self.prior_exponent * np.log(np.maximum(counts, 1)), -np.inf)
        no_set = np.asarray(~np.isfinite(scores).any(axis=1))
        scores[no_set] = 0.0
        posterior = (self.sets.T @ softmax(scores, axis=1).T).T
        mixed = self.mixture_weight * posterior + (1 - self.mixture_weight) * probabilities
        unchanged = no_set[:, None] | (probabilities <= 0)
        return np.where(unchanged, probabilities, np.clip(mixed, 0, 1)).astype(np.float32)

    def tuned(self, metric: Callable[[CodeCombinations], float], min_gain: float = 0.002) -> CodeCombinations:
        """These sets with the weight and exponent of the best metric on held-out notes.

        The weight is 0 (no change) if the gain is not above `min_gain`.
        """
        best = replace(self, mixture_weight=0.0)
        best_value = metric(best) + min_gain
        for weight, exponent in _CANDIDATES:
            candidate = replace(self, mixture_weight=weight, prior_exponent=exponent)
            value = metric(candidate)
            if value > best_value:
                best, best_value = candidate, value
        return best

    def to_json(self) -> dict[str, Any]:
        return {
            "sets": [list(key) for key in _row_keys(self.sets)],
            "notes": self.notes.tolist(),
            "share": self.mixture_weight,
            "weight": self.prior_exponent,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], labels: int) -> CodeCombinations:
        return cls(_set_matrix(value["sets"], labels), np.array(value["notes"]), value["share"], value["weight"])


def _set_matrix(sets: list[Any], labels: int) -> sparse.csr_matrix:
    """Sets of label indices as 0/1 (S, L)."""
    indices = np.array([label for labels_of_set in sets for label in labels_of_set], dtype=np.int32)
    indptr = np.cumsum([0, *map(len, sets)])
    return sparse.csr_matrix((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(len(sets), labels))


def _row_keys(gold: sparse.csr_matrix) -> list[tuple[int, ...]]:
    """The label indices of each row, ascending."""
    gold = gold.tocsr().sorted_indices()
    return [tuple(gold.indices[a:b].tolist()) for a, b in zip(gold.indptr, gold.indptr[1:])]
