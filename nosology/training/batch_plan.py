"""Which notes go in which batch: notes of one group and of like length together, in an order that a seed decides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

_POOL = 50  # batches: so many are sorted by length at a time; more would pad less and mix less
_MULTIPLE = 8  # a batch is as wide as its longest note, rounded up to this


def seed_of(*parts: int | str) -> int:
    """A number of 64 bits that the parts decide, whatever machine or process asks."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Plan:
    """The batches of every epoch, decided by the seed and by nothing else: not by the number of processes."""

    lengths: np.ndarray  # (N,) tokens of each note
    groups: np.ndarray  # (N,) whole numbers; notes of different groups never share a batch
    batch: int  # notes a step
    micro_tokens: int  # notes x longest of a micro-batch, unless one note alone is longer
    seed: int
    micro_batches: int = 1  # a step at least, where it has so many notes

    def __post_init__(self) -> None:
        if self.lengths.ndim != 1 or self.lengths.shape != self.groups.shape:
            raise ValueError(f"lengths and groups must be (N,); got {self.lengths.shape} and {self.groups.shape}")

    def __len__(self) -> int:
        """Steps an epoch."""
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
    def _widths(self) -> np.ndarray:
        """Columns (N,) that each note fills if it is the longest of its micro-batch."""
        return np.maximum(-(-self.lengths.astype(np.int64) // _MULTIPLE), 1) * _MULTIPLE

    def epoch(self, number: int) -> Epoch:
        """The steps of an epoch, counted from 0.

        Notes are shuffled, then sorted by length within pools of some batches of a group. What does not fill a batch
        is a chance selection of the group rather than its longest notes: a short batch counts as much as a full one.
        """
        rng = np.random.default_rng(seed_of("plan", self.seed, number))
        order = rng.permutation(len(self.lengths))
        order = order[np.argsort(self._group[order], kind="stable")]
        group = self._group[order]
        first = np.cumsum(self._group_notes) - self._group_notes
        place = np.arange(len(order)) - first[group]  # within the group
        full = place < (self._group_notes - self._group_notes % self.batch)[group]
        pools = self._group_steps + 1  # more than enough numbers for a group's pools
        last = np.cumsum(pools) - 1
        pool = np.where(full, (last - pools + 1)[group] + place // (_POOL * self.batch), last[group])
        order = order[np.lexsort((-self.lengths[order], pool))]
        batch = (np.cumsum(self._group_steps) - self._group_steps)[group] + place // self.batch
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        return Epoch(self, order, np.append(starts, len(order)), rng.permutation(len(starts)))


@dataclass(frozen=True)
class Epoch(Sequence[list[np.ndarray]]):
    """The steps of one epoch; a step is a list of micro-batches, each the numbers of its notes, longest first."""

    plan: Plan
    notes: np.ndarray  # (N,) batch after batch, in each the longest note first
    bounds: np.ndarray  # (steps + 1,) where the batches begin and end in `notes`
    order: np.ndarray  # (steps,) the batch of each step

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, step: int) -> list[np.ndarray]:
        notes = self.notes[slice(*self.bounds[self.order[step] : self.order[step] + 2])]
        widths = self.plan._widths[notes].tolist()
        cuts = [0]
        while cuts[-1] < len(notes):
            parts = max(1, self.plan.micro_batches + 1 - len(cuts))  # that are still wanted
            fair = -(-(len(notes) - cuts[-1]) // parts)
            cuts.append(cuts[-1] + max(1, min(fair, self.plan.micro_tokens // widths[cuts[-1]])))
        return [notes[start:end] for start, end in pairwise(cuts)]

    def pads(self) -> float:
        """The share of pads among all tokens of the epoch."""
        firsts = [(part[0], len(part)) for step in self for part in step]
        longest, counts = np.array(firsts).T
        return 1 - float(self.plan.lengths.sum() / (self.plan._widths[longest] * counts).sum())
