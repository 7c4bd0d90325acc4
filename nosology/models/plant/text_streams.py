"""Texts joined into long streams, which a language model reads window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from nosology.encoders.tokenizers import PAD
from nosology.training.batch_plan import derive_seed


@dataclass(frozen=True)
class StreamPlan:
    """The windows of a language model's text streams, in reading order. A step is a number: epoch x steps + window."""

    lengths: np.ndarray  # (N,) tokens of each text, with the PAD that ends it
    streams: int
    window: int
    seed: int

    @classmethod
    def of(cls, texts: Sequence[np.ndarray], streams: int, window: int, seed: int) -> StreamPlan:
        """The plan of texts given as arrays of token ids; at most one stream per two tokens."""
        lengths = np.array([len(text) + 1 for text in texts], dtype=np.int64)
        return cls(lengths, max(1, min(streams, int(lengths.sum()) // 2)), window, seed)

    @property
    def groups(self) -> np.ndarray:
        """All texts are of one group."""
        return np.zeros_like(self.lengths)

    @property
    def micro_tokens(self) -> int:
        """Tokens per step."""
        return self.streams * self.window

    @cached_property
    def stream_tokens(self) -> int:
        """Tokens per stream; the remainder is left out in this epoch."""
        return max(2, int(self.lengths.sum()) // self.streams)

    def __len__(self) -> int:
        """Steps per epoch."""
        return -(-(self.stream_tokens - 1) // self.window)

    def epoch(self, number: int) -> StreamEpochPlan:
        """The steps of an epoch."""
        return StreamEpochPlan(number * len(self), len(self))

    def order(self, number: int) -> np.ndarray:
        """The order of the texts in an epoch."""
        return np.random.default_rng(derive_seed("stream", self.seed, number)).permutation(len(self.lengths))


@dataclass(frozen=True)
class StreamEpochPlan:
    """The steps of one epoch of a StreamPlan: each is one micro-batch with the number of the step."""

    first: int
    steps: int

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> list[np.ndarray]:
        if not 0 <= step < self.steps:
            raise IndexError(step)
        return [np.array([self.first + step])]

    def padding_share(self) -> float:
        """Streams have no padding."""
        return 0.0


@dataclass(frozen=True)
class StreamBatch:
    """A window of B text streams, and the token that follows each of its tokens."""

    tokens: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64; PAD: not predicted
    is_first: bool  # whether the streams start here

    def to(self, device: torch.device | str) -> Self:
        """The batch on a device."""
        tokens, targets = (value.to(device, non_blocking=True) for value in (self.tokens, self.targets))
        return replace(self, tokens=tokens, targets=targets)


class TextStreams:
    """Texts for a language model: joined into long streams, which are read window by window."""

    def __init__(self, texts: Sequence[np.ndarray], plan: StreamPlan, backward: bool = False):
        self.texts, self.plan, self.backward = texts, plan, backward
        self._epoch = lru_cache(maxsize=2)(self._join)

    def batch(self, rows: np.ndarray) -> StreamBatch:
        """The batch of a step; rows: the one number that StreamPlan gives to it."""
        epoch, window = divmod(int(rows[0]), len(self.plan))
        start = window * self.plan.window
        tokens = torch.from_numpy(self._epoch(epoch)[:, start : start + self.plan.window + 1].astype(np.int64))
        return StreamBatch(tokens[:, :-1], tokens[:, 1:], window == 0)

    def _join(self, epoch: int) -> np.ndarray:
        """The streams (B, tokens) of an epoch; a PAD follows each text."""
        flat = np.full(int(self.plan.lengths.sum()), PAD, dtype=np.int32)
        start = 0
        for row in self.plan.order(epoch):
            text = self.texts[row]
            flat[start : start + len(text)] = text[::-1] if self.backward else text
            start += len(text) + 1
        return flat[: self.plan.stream_tokens * self.plan.streams].reshape(self.plan.streams, -1)
