"""The language model of PLANT: an AWD-LSTM that predicts the next word, with tied input and output embeddings.

Texts are joined into long streams, which it reads window by window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from nosology.attention import kernels
from nosology.encoders.tokenizers import PAD, TokenIds
from nosology.encoders.word_encoders import AwdLstm, LstmState, WeightDropLstm, detach_state, locked_dropout
from nosology.training.batch_plan import derive_seed

_CHUNK = 8192  # positions whose logits are in memory at once
_CPU_LOGITS = 1 << 20  # logits that a processor computes at once: these values stay in its cache
_MULTIPLE = 8  # bf16 matrix products are faster with aligned rows


@dataclass(frozen=True)
class StreamPlan:
    """The windows of text streams in reading order. A step is a number: epoch x steps + window."""

    lengths: np.ndarray  # (N,) tokens of each text, with the PAD that ends it
    streams: int
    window: int
    seed: int

    @classmethod
    def of(cls, texts: Sequence[TokenIds], streams: int, window: int, seed: int) -> StreamPlan:
        """The plan of tokenized texts; at most one stream per two tokens."""
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
    """The batches of texts by a StreamPlan; backward: each text is reversed."""

    def __init__(self, texts: Sequence[TokenIds], plan: StreamPlan, backward: bool = False):
        self.texts, self.plan, self.backward = texts, plan, backward
        self._epoch = lru_cache(maxsize=2)(self._join)

    def batch(self, rows: np.ndarray) -> StreamBatch:
        """The batch of a step; rows: the number of the step."""
        epoch, window = divmod(int(rows[0]), len(self.plan))
        start = window * self.plan.window
        tokens = torch.from_numpy(self._epoch(epoch)[:, start : start + self.plan.window + 1].astype(np.int64))
        return StreamBatch(tokens[:, :-1], tokens[:, 1:], window == 0)

    def _join(self, epoch: int) -> np.ndarray:
        """The streams (B, tokens) of an epoch; a PAD follows each text."""
        flat = np.full(int(self.plan.lengths.sum()), PAD, dtype=np.int32)
        start = 0
        for row in self.plan.order(epoch):
            text = self.texts[int(row)].ids
            flat[start : start + len(text)] = text[::-1] if self.backward else text
            start += len(text) + 1
        return flat[: self.plan.stream_tokens * self.plan.streams].reshape(self.plan.streams, -1)


class LanguageModel(nn.Module):
    """An AWD-LSTM with an output layer. Its last state is in buffers, for checkpoints and for the next window."""

    def __init__(self, encoder: AwdLstm, streams: int, ar: float = 0.0, tar: float = 0.0):
        """ar, tar: weights of activation and temporal activation regularization (Merity et al. 2018)."""
        super().__init__()
        self.encoder, self.ar, self.tar = encoder, ar, tar
        self.bias = nn.Parameter(torch.zeros(len(encoder.encoder.weight)))
        for number, layer in enumerate(encoder.rnns):
            assert isinstance(layer, WeightDropLstm)
            for name in ("hidden", "cell"):
                self.register_buffer(f"{name}_{number}", torch.zeros(1, streams, layer.width))

    def forward(self, batch: StreamBatch) -> Tensor:
        """The mean cross-entropy of the next words; the end of a text is not predicted."""
        states, state = self.encoder(batch.tokens, None if batch.is_first else self._state())
        for number, (hidden, cell) in enumerate(detach_state(state)):
            # New tensors, not copies: gradients may still need the old ones.
            setattr(self, f"hidden_{number}", hidden)
            setattr(self, f"cell_{number}", cell)
        dropped = locked_dropout(states, self.encoder.dropout.output, self.training)
        with torch.autocast(states.device.type, enabled=False):
            vectors = self.encoder.encoder.weight
            loss = next_word_loss(dropped.flatten(0, 1), vectors, self.bias, batch.targets.flatten())
            return loss + self._regularization(states, dropped)

    def _regularization(self, states: Tensor, dropped: Tensor) -> Tensor:
        """ar x mean square of the states (B, T, D) after dropout + tar x that of their changes from word to word."""
        total = states.new_zeros((), dtype=torch.float32)
        if self.ar:
            total = total + self.ar * dropped.float().square().mean()
        if self.tar and states.shape[1] > 1:
            total = total + self.tar * states.float().diff(dim=1).square().mean()
        return total

    def _state(self) -> LstmState:
        return tuple((getattr(self, f"hidden_{i}"), getattr(self, f"cell_{i}")) for i in range(len(self.encoder.rnns)))


def next_word_loss(states: Tensor, vectors: Tensor, bias: Tensor, targets: Tensor, chunk: int = _CHUNK) -> Tensor:
    """The mean cross-entropy of the next words; targets that are PAD are ignored.

    states: (N, D); vectors: (V, D) and bias: (V,) of the words; targets: (N,).
    """
    return _NextWordLoss.apply(states, vectors, bias, targets, chunk)


class _NextWordLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states, vectors, bias, targets, chunk):
        size = states.shape[1]
        # The bias is one more value of each vector: one matrix product then gives its gradients as well.
        wide = -(-(size + 1) // _MULTIPLE) * _MULTIPLE
        words = states.new_zeros(len(vectors), wide)
        words[:, :size], words[:, size] = vectors, bias
        x = states.new_zeros(len(states), wide)
        x[:, :size], x[:, size] = states, 1
        scale = 1 / (targets != PAD).sum().clamp(min=1).float()
        d_x = torch.empty_like(x)
        d_words = torch.zeros(words.shape, device=words.device)
        total = torch.zeros((), device=words.device)
        if not words.is_cuda:
            chunk = max(1, min(chunk, _CPU_LOGITS // len(words)))
        for first in range(0, len(x), chunk):
            part = slice(first, first + chunk)
            logits = x[part] @ words.T
            total += cross_entropy_(logits, targets[part], scale)
            d_x[part] = logits @ words
            d_words += logits.T @ x[part]
        ctx.dtypes = vectors.dtype, bias.dtype
        ctx.size = size
        ctx.save_for_backward(d_x, d_words)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor):
        d_x, d_words = ctx.saved_tensors
        d_states = d_x[:, : ctx.size] * grad_outputs[0].to(d_x.dtype)
        d_words = d_words * grad_outputs[0]
        return d_states, d_words[:, : ctx.size].to(ctx.dtypes[0]), d_words[:, ctx.size].to(ctx.dtypes[1]), None, None


def cross_entropy_(logits: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
    """The summed cross-entropy times `scale`; the logits (n, V) are overwritten by its gradients."""
    if kernels.AVAILABLE and logits.is_cuda:
        return kernels.cross_entropy_(logits, targets, scale, PAD)
    predicted = (targets != PAD)[:, None]
    logs = torch.log_softmax(logits.float(), dim=1)
    of_target = logs.gather(1, targets[:, None])
    gradient = logs.exp_().scatter_add_(1, targets[:, None], torch.full_like(of_target, -1))
    logits.copy_(gradient.mul_(predicted * scale))
    return -(of_target * predicted).sum() * scale
