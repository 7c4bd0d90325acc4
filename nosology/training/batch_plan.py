"""Which notes form which batch: notes of one group and of similar length, in an order that the seed decides."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

WIDTH_MULTIPLE = 8  # a batch is as wide as its longest note, rounded up: bf16 matrix products need aligned rows
_POOL_BATCHES = 50  # batches that are sorted by length together; more would pad less but shuffle less


def derive_seed(*parts: int | str) -> int:
    """A 64-bit seed that depends on the parts alone, on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


class EpochSteps(Protocol):
    """The steps of one epoch. A step is a list of micro-batches: arrays of note rows."""

    def __getitem__(self, step: int, /) -> list[np.ndarray]: ...

    def padding_share(self) -> float:
        """The share of padding among all tokens of the epoch."""
        ...


class StepPlan(Protocol):
    """What the trainer needs of a plan: the steps of every epoch."""

    @property
    def lengths(self) -> np.ndarray: ...

    @property
    def groups(self) -> np.ndarray: ...

    @property
    def micro_tokens(self) -> int: ...

    @property
    def seed(self) -> int: ...

    def __len__(self) -> int: ...

    def epoch(self, number: int) -> EpochSteps: ...


@dataclass(frozen=True)
class BatchPlan:
    """The batches of every epoch. They depend on these fields, not on the number of processes."""

    lengths: np.ndarray  # (N,) tokens of each note
    groups: np.ndarray  # (N,) integers; notes of different groups never share a batch
    batch: int  # notes per step
    micro_tokens: int  # largest micro-batch in tokens, padding included; a single longer note is allowed
    seed: int
    micro_batches: int = 1  # per step at least, if it has this many notes

    def __post_init__(self) -> None:
        if self.lengths.ndim != 1 or self.lengths.shape != self.groups.shape:
            raise ValueError(f"lengths and groups must be (N,); got {self.lengths.shape} and {self.groups.shape}")

    def __len__(self) -> int:
        """Steps per epoch."""
        return int(self._group_steps.sum())

    @cached_property
    def _group(self) -> np.ndarray:
        """The group of each note (N,), counted from 0."""
        return np.unique(self.groups, return_inverse=True)[1]

    @cached_property
    def _group_notes(self) -> np.ndarray:
        return np.bincount(self._group)

    @cached_property
    def _group_steps(self) -> np.ndarray:
        return -(-self._group_notes // self.batch)

    @cached_property
    def widths(self) -> np.ndarray:
        """The width (N,) of a micro-batch in which the note is the longest."""
        return np.maximum(-(-self.lengths.astype(np.int64) // WIDTH_MULTIPLE), 1) * WIDTH_MULTIPLE

    def epoch(self, number: int) -> EpochPlan:
        """The steps of an epoch, counted from 0.

        Notes are shuffled and then sorted by length within pools of some batches of a group. The notes that do not fill
        a batch are a random sample of the group, not its longest notes: a short batch counts as much as a full one.
        """
        rng = np.random.default_rng(derive_seed("plan", self.seed, number))
        order = rng.permutation(len(self.lengths))
        order = order[np.argsort(self._group[order], kind="stable")]
        group = self._group[order]
        first = np.cumsum(self._group_notes) - self._group_notes
        rank = np.arange(len(order)) - first[group]  # within the group
        is_full = rank < (self._group_notes - self._group_notes % self.batch)[group]
        pools = self._group_steps + 1  # upper bound of the number of pools of a group
        last = np.cumsum(pools) - 1
        pool = np.where(is_full, (last - pools + 1)[group] + rank // (_POOL_BATCHES * self.batch), last[group])
        order = order[np.lexsort((-self.lengths[order], pool))]
        batch = (np.cumsum(self._group_steps) - self._group_steps)[group] + rank // self.batch
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        return EpochPlan(self, order, np.append(starts, len(order)), rng.permutation(len(starts)))


@dataclass(frozen=True)
class EpochPlan:
    """The steps of one epoch. A step is a list of micro-batches: arrays of note rows, longest note first."""

    plan: BatchPlan
    notes: np.ndarray  # (N,) batch after batch, in each the longest note first
    bounds: np.ndarray  # (steps + 1,) start and end of the batches in `notes`
    order: np.ndarray  # (steps,) the batch of each step

    def __len__(self) -> int:
        return len(self.order)

    def rows(self, step: int) -> np.ndarray:
        """The notes of a step, longest first."""
        return self.notes[slice(*self.bounds[self.order[step] : self.order[step] + 2])]

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return (self[step] for step in range(len(self)))

    def __getitem__(self, step: int) -> list[np.ndarray]:
        """The micro-batches of a step.

        Where several are wanted, each is as small as their number permits: processes that share them work equally long.
        """
        notes, plan = self.rows(step), self.plan
        widths: list[int] = plan.widths[notes].tolist()
        cuts = _cuts(widths, plan.micro_tokens)
        if plan.micro_batches > 1:
            pieces = plan.micro_batches * -(-(len(cuts) - 1) // plan.micro_batches)
            limits = range(1, min(plan.micro_tokens, widths[0] * len(widths)) + 1)
            smallest = bisect_left(limits, -pieces, key=lambda limit: 1 - len(_cuts(widths, limit)))
            cuts = _cuts(widths, limits[min(smallest, len(limits) - 1)])
            while len(cuts) <= min(pieces, len(notes)):
                start, end = max(pairwise(cuts), key=lambda piece: (piece[1] - piece[0], -piece[0]))
                insort(cuts, (start + end + 1) // 2)
        return [notes[start:end] for start, end in pairwise(cuts)]

    def padding_share(self) -> float:
        """The share of padding among all tokens of the epoch."""
        longest, counts = np.array([(rows[0], len(rows)) for step in self for rows in step]).T
        return 1 - float(self.plan.lengths.sum() / (self.plan.widths[longest] * counts).sum())


def _cuts(widths: list[int], tokens: int) -> list[int]:
    """Where notes, by their widths, are cut into micro-batches of at most so many tokens or of one note."""
    cuts = [0]
    while cuts[-1] < len(widths):
        cuts.append(min(len(widths), cuts[-1] + max(1, tokens // widths[cuts[-1]])))
    return cuts
