"""Texts as one long stream, read in order by several readers at once: what a language model learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from nosology.encoders.vocabulary import PAD
from nosology.training.batch_plan import seed_of


@dataclass(frozen=True)
class StreamBatch:
    """A window of B streams, and the word that follows each of its words."""

    tokens: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64; PAD: not asked for
    first: bool  # whether the streams begin here

    def to(self, device: torch.device | str) -> StreamBatch:
        """The batch on a device."""
        moved = (self.tokens.to(device, non_blocking=True), self.targets.to(device, non_blocking=True))
        return replace(self, tokens=moved[0], targets=moved[1])


@dataclass(frozen=True)
class StreamPlan:
    """Windows in their order, epoch after epoch. A step is named epoch x steps + window, so that its batch is known."""

    lengths: np.ndarray  # (N,) tokens of each text, with the one that ends it
    streams: int
    window: int
    seed: int

    @property
    def groups(self) -> np.ndarray:
        """All texts are of one group."""
        return np.zeros_like(self.lengths)

    @property
    def micro_tokens(self) -> int:
        """Tokens of a step."""
        return self.streams * self.window

    @cached_property
    def _each(self) -> int:
        """Tokens of a stream; what is left over waits for another epoch's order."""
        return max(2, int(self.lengths.sum()) // self.streams)

    def __len__(self) -> int:
        return -(-(self._each - 1) // self.window)

    def epoch(self, number: int) -> _Windows:
        """The steps of an epoch."""
        return _Windows(number * len(self), len(self))

    def order(self, number: int) -> np.ndarray:
        """The order of the texts in an epoch."""
        return np.random.default_rng(seed_of("stream", self.seed, number)).permutation(len(self.lengths))


@dataclass(frozen=True)
class _Windows(Sequence[list[np.ndarray]]):
    first: int
    steps: int

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> list[np.ndarray]:
        if not 0 <= step < self.steps:
            raise IndexError(step)
        return [np.array([self.first + step])]

    def pads(self) -> float:
        """The share of pads."""
        return 0.0


class Streams:
    """Texts, each followed by a pad that ends it, as the windows of a plan."""

    def __init__(self, texts: Sequence[np.ndarray], plan: StreamPlan, backward: bool = False):
        self.texts, self.plan, self.backward = texts, plan, backward
        self._epoch = lru_cache(maxsize=2)(self._laid_out)

    @staticmethod
    def plan_of(texts: Sequence[np.ndarray], streams: int, window: int, seed: int) -> StreamPlan:
        """The plan of texts given as arrays of token ids; never more streams than there are pairs of tokens."""
        lengths = np.array([len(text) + 1 for text in texts], dtype=np.int64)
        return StreamPlan(lengths, max(1, min(streams, int(lengths.sum()) // 2)), window, seed)

    def batch(self, rows: np.ndarray) -> StreamBatch:
        """The batch of a step."""
        number, window = divmod(int(rows[0]), len(self.plan))
        tokens, start = self._epoch(number), window * self.plan.window
        part = torch.from_numpy(tokens[:, start : start + self.plan.window + 1].astype(np.int64))
        return StreamBatch(part[:, :-1], part[:, 1:], window == 0)

    def _laid_out(self, number: int) -> np.ndarray:
        """The streams (B, tokens) of an epoch."""
        flat = np.full(int(self.plan.lengths.sum()), PAD, dtype=np.int32)
        place = 0
        for row in self.plan.order(number):
            text = self.texts[row]
            flat[place : place + len(text)] = text[::-1] if self.backward else text
            place += len(text) + 1
        return flat[: self.plan._each * self.plan.streams].reshape(self.plan.streams, self.plan._each)
