"""Candidate cells: the (note, code) pairs that a part of a stacked coder ranks high, with features of their scores.

Shapes: B notes, L labels of the stacked coder, L_i labels of part i, N cells, P parts, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logit

from nosology.core import Note
from nosology.core.label_space import LabelSpace
from nosology.models.bundle import Bundle

_LEAST = 1e-4  # probabilities are clipped to [_LEAST, 1 - _LEAST] before the logit


@dataclass(frozen=True)
class CandidateCells:
    """N cells, sorted by note and label."""

    rows: np.ndarray  # (N,) note
    labels: np.ndarray  # (N,)
    features: np.ndarray  # (N, F) float32


class PartScorer:
    """The parts of a stacked coder, their joint label space, and the cells of notes."""

    def __init__(self, parts: Sequence[Bundle], candidates: int):
        """candidates: codes per note and part."""
        self.parts, self.candidates = tuple(parts), candidates
        self.labels = LabelSpace(sorted({code for part in parts for code in part.model.labels.codes}))
        self.label_of = [
            np.array([self.labels.column(code) for code in part.model.labels.codes], dtype=np.int64) for part in parts
        ]
        self.column_of = [np.full(len(self.labels), -1, dtype=np.int64) for _ in parts]
        self.train_counts = np.zeros(len(self.labels), dtype=np.int64)
        self.thresholds = np.zeros((len(self.labels), len(parts)))  # of the decision of each part; 0: unknown to it
        for number, (part, label_of, column_of) in enumerate(zip(parts, self.label_of, self.column_of)):
            column_of[label_of] = np.arange(len(label_of))
            np.maximum.at(self.train_counts, label_of, part.model.train_counts)
            self.thresholds[label_of, number] = part.decision.thresholds(part.model.labels)

    @cached_property
    def category(self) -> np.ndarray:
        """The category (L,) of each label as a number: codes with the same system and first three characters."""
        names = [(code.system, code.code[:3]) for code in self.labels.codes]
        number = {name: position for position, name in enumerate(dict.fromkeys(names))}
        return np.array([number[name] for name in names], dtype=np.int64)

    def probabilities(self, notes: Sequence[Note]) -> list[np.ndarray]:
        """The probabilities (B, L_i) of each part."""
        return [part.model.probabilities(notes) for part in self.parts]

    def means(self, probabilities: Sequence[np.ndarray]) -> np.ndarray:
        """The mean probability (B, L) of the parts, 0 for a part that does not know the code."""
        means = np.zeros((len(probabilities[0]), len(self.labels)), dtype=np.float32)
        for block, label_of in zip(probabilities, self.label_of):
            means[:, label_of] += block / len(probabilities)
        return means

    def cells(self, probabilities: Sequence[np.ndarray]) -> CandidateCells:
        """The cells of B notes with these probabilities (B, L_i): the highest of each part, where they are above 0."""
        tops = [_top(block, self.candidates) for block in probabilities]
        keys = []
        for block, top, label_of in zip(probabilities, tops, self.label_of):
            positive = np.take_along_axis(block, top, 1) > 0
            row = np.broadcast_to(np.arange(len(block))[:, None], top.shape)
            keys.append((row * len(self.labels) + label_of[top])[positive])
        rows, labels = np.divmod(np.unique(np.concatenate(keys)), len(self.labels))
        values, ranks, known = [], [], []
        for block, top, column_of in zip(probabilities, tops, self.column_of):
            column = column_of[labels]
            value = np.where(column >= 0, block[rows, column], 0) if block.shape[1] else np.zeros(len(rows))
            higher = np.take_along_axis(block, top, 1)[rows] > value[:, None]
            values.append(value)
            ranks.append(higher.sum(1))
            known.append(column >= 0)
        by_part = (np.stack(arrays, 1) for arrays in (values, ranks, known))  # (N, P) each
        return CandidateCells(rows, labels, self._features(rows, labels, *by_part))

    def _features(
        self, rows: np.ndarray, labels: np.ndarray, probabilities: np.ndarray, ranks: np.ndarray, known: np.ndarray
    ) -> np.ndarray:
        """Features (N, F): three of each part, then six of all parts together.

        probabilities, ranks, known: (N, P); the probability is 0 where the part does not know the code.
        """
        logits = logit(np.clip(probabilities.astype(np.float64), _LEAST, 1 - _LEAST))
        mean = (logits * known).sum(1) / np.maximum(known.sum(1), 1)
        sibling, siblings = _siblings(rows * (self.category.max(initial=0) + 1) + self.category[labels], mean)
        shared = [
            np.log1p(self.train_counts[labels]),
            (known & (probabilities >= self.thresholds[labels])).sum(1),
            mean,
            logits.max(1, initial=logit(_LEAST)),
            mean - sibling,
            np.log1p(siblings),
        ]
        own = np.stack([logits, np.log1p(ranks), known], 2).reshape(len(rows), 3 * len(self.parts))
        return np.concatenate([own, np.stack(shared, 1)], 1).astype(np.float32)


def fill_scores(scores: np.ndarray, rows: np.ndarray, labels: np.ndarray, stacked: np.ndarray) -> None:
    """Makes means (B, L) of the parts the probabilities of the stacked coder: the cells (N,) have those of the stacker.

    Other codes keep their mean, but are never above the lowest cell of their note.
    """
    lowest = np.ones(len(scores), dtype=np.float32)
    np.minimum.at(lowest, rows, stacked)
    np.minimum(scores, lowest[:, None], out=scores)
    scores[rows, labels] = stacked


def _top(block: np.ndarray, count: int) -> np.ndarray:
    """The columns (B, count) of the highest values of each row, in any order; fewer if fewer are above 0 anywhere."""
    columns = np.flatnonzero((block > 0).any(0))  # partitions of rows that are mostly 0 are slow
    count = min(count, len(columns))
    if not count:
        return np.zeros((len(block), 0), np.int64)
    return columns[np.argpartition(-block[:, columns], count - 1, axis=1)[:, :count]]


def _siblings(groups: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each cell, the highest value of another cell of its group, or the lowest logit, and the number of others."""
    lowest = logit(_LEAST)
    order = np.lexsort((-values, groups))
    _, first, inverse, counts = np.unique(groups[order], return_index=True, return_inverse=True, return_counts=True)
    sorted_values = values[order]
    best = sorted_values[first]
    second = np.where(counts > 1, sorted_values[np.minimum(first + 1, len(values) - 1)], lowest)
    is_first = np.zeros(len(values), dtype=bool)
    is_first[first] = True
    sibling, others = np.empty(len(values)), np.empty(len(values))
    sibling[order] = np.where(is_first, second[inverse], best[inverse])
    others[order] = counts[inverse] - 1
    return sibling, others
