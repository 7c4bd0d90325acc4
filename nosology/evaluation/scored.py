"""True codes and scores of notes, validated once and processed in blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from scipy import sparse

from nosology.core import SYSTEMS, Code, ConfigError, DataError
from nosology.core.label_space import LabelSpace
from nosology.core.parallel import cores

BLOCK_CELLS = 1 << 23  # 32 MiB of float32: large enough for fast sorts, small compared to all scores
MAX_THREADS = 8

T = TypeVar("T")
Scores = np.ndarray | sparse.csr_matrix | sparse.csr_array


@dataclass(frozen=True)
class Scored:
    """B notes and a space of codes: the L labels of a model, then the true codes outside of its label space.

    `scores` (B, L) are probabilities, dense or sparse (absent = 0). Codes outside the label space have no scores.
    """

    space: LabelSpace
    n_labels: int
    gold: sparse.csr_matrix  # (B, len(space)) of 0/1
    scores: Scores
    columns: np.ndarray | None  # of `scores` that count; None: all

    @staticmethod
    def of(
        labels: LabelSpace,
        gold: Sequence[Collection[Code]],
        scores: Scores,
        systems: Collection[str] | None = None,
    ) -> Scored:
        """The validated scores; `systems` selects the true codes and columns of these code systems."""
        scores = _check_scores(scores, (len(gold), len(labels)))
        columns, wanted = None, frozenset[str]()
        if systems is not None:
            wanted = _check_systems(systems)
            gold = [[code for code in codes if code[0] in wanted] for codes in gold]
            columns = np.array([j for j, code in enumerate(labels.codes) if code.system in wanted], dtype=np.intp)
            labels = LabelSpace(labels.codes[j] for j in columns)
        space = labels.extended(code for codes in gold for code in codes)
        if not len(space):
            of = f" of {', '.join(sorted(wanted))}" if systems is not None else ""
            raise DataError(f"there is nothing to evaluate: neither the model nor the notes have a code{of}")
        return Scored(space, len(labels), space.encode(gold), scores, columns)

    @property
    def n_notes(self) -> int:
        """B, the number of notes."""
        return self.gold.shape[0]

    @property
    def n_outside(self) -> int:
        """The number of distinct true codes outside the label space."""
        return len(self.space) - self.n_labels

    def map_notes(self, function: Callable[[slice, np.ndarray], T]) -> list[T]:
        """The results of a function of (slice of notes, their dense scores (b, L)) for each block, in order."""
        step = max(1, BLOCK_CELLS // max(1, self.scores.shape[1]))

        def one(start: int) -> T:
            notes = slice(start, min(start + step, self.n_notes))
            block = self.scores[notes]
            if sparse.issparse(block):
                block = block.toarray()
            return function(notes, block if self.columns is None else block[:, self.columns])

        return _in_threads(one, range(0, self.n_notes, step))

    def map_codes(self, columns: np.ndarray, function: Callable[[np.ndarray, np.ndarray], T]) -> list[T]:
        """The results of a function of (columns, their scores (l, B)) for each group of columns, in order."""
        step = max(1, BLOCK_CELLS // self.n_notes)
        stored = self.scores.tocsc() if sparse.issparse(self.scores) else self.scores

        def one(start: int) -> T:
            group = columns[start : start + step]
            block = stored[:, group if self.columns is None else self.columns[group]]
            return function(group, np.ascontiguousarray((block.toarray() if sparse.issparse(block) else block).T))

        return _in_threads(one, range(0, len(columns), step))

    @cached_property
    def gold_in_labels(self) -> sparse.csr_matrix:
        """The true codes in the label space, (B, L)."""
        return self.gold[:, : self.n_labels]

    @cached_property
    def true_scores(self) -> np.ndarray:
        """The scores of the true codes in the label space, in the order of `gold_in_labels`."""
        rows = np.repeat(np.arange(self.n_notes), np.diff(self.gold_in_labels.indptr))
        columns = self.gold_in_labels.indices if self.columns is None else self.columns[self.gold_in_labels.indices]
        return np.asarray(self.scores[rows, columns]).ravel()

    def predicted(self, threshold: float | np.ndarray, at_least_one: bool = False) -> sparse.csr_matrix:
        """The accepted codes (B, len(space)): the score is above 0 and reaches the threshold.

        at_least_one: if no code of a note is accepted, the one with the highest score is.
        """
        limit = _check_threshold(threshold, self.scores.shape[1]).astype(self.scores.dtype)
        if self.columns is not None and limit.ndim:
            limit = limit[self.columns]

        def accepted(_: slice, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            reached = (block >= limit) & (block > 0)
            if at_least_one:
                none = np.flatnonzero(~reached.any(1) & (block > 0).any(1))
                reached[none, block[none].argmax(1)] = True
            note, column = np.nonzero(reached)
            return np.bincount(note, minlength=len(block)), column

        sizes, columns = (np.concatenate(parts) for parts in zip(*self.map_notes(accepted)))
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        return sparse.csr_matrix((np.ones(len(columns), dtype=np.int8), columns, indptr), shape=self.gold.shape)


def _in_threads(one: Callable[[int], T], starts: range) -> list[T]:
    # numpy sorts and searches release the interpreter lock, so threads run in parallel.
    with ThreadPoolExecutor(min(MAX_THREADS, cores())) as pool:
        return list(pool.map(one, starts))


def _check_scores(scores: Scores, shape: tuple[int, int]) -> Scores:
    if not (isinstance(scores, np.ndarray) or sparse.issparse(scores)):
        raise ValueError(f"scores must be a numpy array or a scipy sparse matrix; got {type(scores).__name__}")
    if scores.shape != shape:
        raise ValueError(f"scores must have the shape (notes, labels) = {shape}; got {scores.shape}")
    if shape[0] == 0:
        raise DataError("there is nothing to evaluate: got no notes")
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float32)
    if not isinstance(scores, np.ndarray):
        scores = scores.tocsr()
        if not scores.has_canonical_format:
            scores = scores.copy()
            scores.sum_duplicates()
    values: np.ndarray = scores if isinstance(scores, np.ndarray) else scores.data
    if values.size:
        low, high = values.min(), values.max()
        if np.isnan(low):
            raise ValueError("scores must be probabilities in [0, 1]; got NaN")
        if low < 0 or high > 1:
            raise ValueError(f"scores must be probabilities in [0, 1], not logits; got {low:.6g} to {high:.6g}")
    return scores


def _check_threshold(threshold: float | np.ndarray, n_labels: int) -> np.ndarray:
    limit = np.asarray(threshold, dtype=np.float64)
    if limit.shape not in ((), (n_labels,)):
        raise ValueError(f"threshold must be one number or one per label ({n_labels}); got the shape {limit.shape}")
    if not np.all((limit >= 0) & (limit <= 1)):
        raise ValueError(f"threshold must lie in [0, 1]; got {limit.min():.6g} to {limit.max():.6g}")
    return limit


def _check_systems(systems: Collection[str]) -> frozenset[str]:
    wanted = frozenset([systems] if isinstance(systems, str) else systems)
    if not wanted or wanted - set(SYSTEMS):
        raise ConfigError(f"systems must be some of {', '.join(SYSTEMS)}; got {', '.join(sorted(wanted)) or 'none'}")
    return wanted
