"""Dual label-wise attention: codes, read from their descriptions, attend to the tokens of a note (paper 001, eq. 3-6).

Shapes: B notes, T tokens, D width of a state, M heads, P width of a projection, L labels.

The L x T weights of a note and the L x M D features made with them are far larger than everything else, and nothing
outside needs them. So the loss goes through the notes in chunks and differentiates each chunk on the spot: no chunk's
tensors outlive it, and nothing is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_MULTIPLE = {"cpu": 8, "cuda": 64}  # matrix products want even sizes
_CELLS = 1 << 25  # weights (notes x labels x heads x tokens) that scoring holds at once, where nobody says otherwise

_LABELS = 512  # labels that a CPU scores at a time


class DualHead(NamedTuple):
    """The weights between a note's states and a code's logit."""

    key: Tensor  # (M P, D): projections of the note's states, all heads
    key_bias: Tensor  # (M P,)
    hidden: Tensor  # (C, M D): the classifier's first layer
    hidden_bias: Tensor  # (C,)
    out: Tensor  # (C,): its second
    out_bias: Tensor  # (1,)

    def to(self, kind: torch.dtype) -> DualHead:
        """The same in another precision."""
        return DualHead(*(weight.to(kind) for weight in self))


class _Room:
    """Memory for the large tensors of a chunk, taken once: chunks of ever new sizes would leave it in shreds."""

    def __init__(self, like: Tensor, cells: int, rows: int, features: int, hidden: int):
        self.weights, self.d_weights = like.new_empty(cells), like.new_empty(cells)
        self.features, self.d_features = like.new_empty(rows * features), like.new_empty(rows * features)
        self.hidden = like.new_empty(rows * hidden)

    @staticmethod
    def for_chunks(states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, chunk: int) -> _Room:
        """Room for the largest of the chunks, with derivatives."""
        m, labels, _ = queries.shape
        notes = min(chunk, len(states))
        cells = (
            max((part.stop - part.start) * width for part, width in _chunks(lengths, chunk, states.device)) * m * labels
        )
        return _Room(states, cells, notes * labels, m * states.shape[-1], len(head.hidden))


def _in(room: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """A tensor of that shape, at the beginning of the room or, where there is none, in memory of its own."""
    return like.new_empty(shape) if room is None else room[: math.prod(shape)].view(shape)


@dataclass
class _Forward:
    keys: Tensor  # (n T, M P)
    weights: Tensor  # (L, M, n, T) attention
    features: Tensor  # (n L, M D)
    hidden: Tensor  # (n L, C)
    logits: Tensor  # (n, L) float32, or double where that came in


def attention_weights(
    states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, room: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Equation 3: weights (L, M, n, T) of states (n, T, D) under queries (M, L, P), and the keys (n T, M P).

    With the labels first, scores of all notes together are one matrix product a head.
    """
    n, t, _ = states.shape
    m, labels, p = queries.shape
    with _as_given(states):
        keys = torch.addmm(head.key_bias, states.flatten(0, 1), head.key.t()).tanh_()
        weights = _in(room, states, labels, m, n * t)
        for i in range(m):
            torch.mm(queries[i], keys[:, i * p : (i + 1) * p].t(), out=weights[:, i])
        weights = weights.view(labels, m, n, t)
        masked_softmax_(weights, lengths)
    return weights, keys


def _forward(states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, room: _Room | None = None) -> _Forward:
    """Logits of states (n, T, D) for queries (M, L, P), and all that led to them."""
    weights, keys = attention_weights(states, lengths, queries, head, room and room.weights)
    n, labels, rows = len(states), len(weights), weights.shape[0] * weights.shape[1]
    features = _in(room and room.features, states, n, rows, states.shape[-1])
    torch.bmm(_by_note(weights), states, out=features)  # equations 4 and 5
    features = features.view(n * labels, -1)
    hidden = _in(room and room.hidden, states, n * labels, len(head.hidden))
    torch.ops.aten._addmm_activation.out(head.hidden_bias, features, head.hidden.t(), out=hidden)  # with a ReLU
    logits = (hidden @ head.out + head.out_bias).view(n, labels)  # equation 6
    return _Forward(keys, weights, features, hidden, logits.to(torch.promote_types(logits.dtype, torch.float32)))


def _by_note(weights: Tensor) -> Tensor:
    """Weights (L, M, n, T) seen as (n, L M, T)."""
    return weights.flatten(0, 1).transpose(0, 1)


def _chunks(lengths: Tensor, size: int, device: torch.device) -> Iterator[tuple[slice, int]]:
    """Slices of at most `size` notes, each with the length of its longest note, rounded up."""
    step = _MULTIPLE.get(device.type, 8)
    longest = lengths.clamp(min=1)
    for start in range(0, len(lengths), size):
        part = slice(start, min(start + size, len(lengths)))
        yield part, -(-int(longest[part].max()) // step) * step


def dual_logits(
    states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, *, notes: int = 0, labels: int = 0
) -> Tensor:
    """Logits (B, L) of states (B, T, D) for queries (M, L, P), without gradients, so many notes and labels at a time.

    lengths: (B,) on the CPU. The answer does not depend on the sizes of the chunks; 0: what fits.
    """
    with _as_given(states):
        if states.device.type == "cpu":
            return _logits_by_note(states, lengths, queries, head, labels or _LABELS)
        return _logits_by_chunk(states, lengths, queries, head, notes, labels)


def _as_given(states: Tensor) -> torch.autocast:
    """Arithmetic in the precision of the states, whatever autocast would choose."""
    return torch.autocast(states.device.type, enabled=False)


def _logits_by_chunk(
    states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, notes: int, labels: int
) -> Tensor:
    """The same, several notes at a time, as a GPU likes it."""
    heads, total, _ = queries.shape
    notes = notes or max(1, min(len(states), _CELLS // (heads * states.shape[1] * min(total, 512))))
    labels = labels or max(1, _CELLS // (notes * heads * states.shape[1]))
    on_device = lengths.clamp(min=1).to(states.device)
    found = states.new_empty(len(states), total, dtype=torch.promote_types(states.dtype, torch.float32))
    for part, width in _chunks(lengths, notes, states.device):
        held = _cut(states, part, width)
        for start in range(0, total, labels):
            some = queries[:, start : start + labels]
            found[part, start : start + labels] = _forward(held, on_device[part], some, head).logits
    return found


def _logits_by_note(states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, labels: int) -> Tensor:
    """The same one note and one head after the other, without a pad, and with weights that stay in a CPU's cache."""
    m, total, p = queries.shape
    d = states.shape[-1]
    found = states.new_empty(len(states), total, dtype=torch.promote_types(states.dtype, torch.float32))
    room = states.new_empty(min(labels, total) * states.shape[1])  # taken once: fresh memory costs a CPU a fault a page
    features, hidden = states.new_empty(min(labels, total), m * d), states.new_empty(min(labels, total), len(head.out))
    for row, length in enumerate(lengths.clamp(min=1).tolist()):
        words = states[row, :length]
        keys = torch.addmm(head.key_bias, words, head.key.t()).tanh_()
        for start in range(0, total, labels):
            some = queries[:, start : start + labels]
            n = some.shape[1]
            for i in range(m):
                weights = torch.mm(some[i], keys[:, i * p : (i + 1) * p].t(), out=_in(room, states, n, length))
                torch.softmax(weights, -1, out=weights)
                torch.mm(weights, words, out=features[:n, i * d : (i + 1) * d])
            torch.ops.aten._addmm_activation.out(head.hidden_bias, features[:n], head.hidden.t(), out=hidden[:n])
            found[row, start : start + n] = hidden[:n] @ head.out + head.out_bias
    return found


def _cut(states: Tensor, part: slice, width: int) -> Tensor:
    """The states of some notes, cut or padded to a width (n, width, D)."""
    held = states[part, :width]
    if held.shape[1] < width:
        held = torch.nn.functional.pad(held, (0, 0, 0, width - held.shape[1]))
    return held.contiguous()


class _DualLoss(torch.autograd.Function):
    """The mean cross entropy and, found together with it, all its derivatives."""

    @staticmethod
    def forward(ctx, chunk: int, lengths: Tensor, targets: Tensor, states: Tensor, queries: Tensor, *head: Tensor):
        kind = states.dtype
        cast, asked = DualHead(*head).to(kind), queries.to(kind)
        on_device = lengths.clamp(min=1).to(states.device)
        total = torch.zeros((), device=states.device, dtype=torch.promote_types(kind, torch.float32))
        d_states = torch.zeros_like(states)
        d_queries = torch.zeros_like(queries, dtype=total.dtype)
        d_head = DualHead(*(torch.zeros_like(weight) for weight in head))
        room = _Room.for_chunks(states, lengths, asked, cast, chunk)
        for part, width in _chunks(lengths, chunk, states.device):
            held = _cut(states, part, width)
            done = _forward(held, on_device[part], asked, cast, room)
            wanted = targets[part].to(done.logits.dtype)
            total += torch.nn.functional.binary_cross_entropy_with_logits(done.logits, wanted, reduction="sum")
            d_logits = (done.logits.sigmoid() - wanted) / targets.numel()
            found = _backward(done, d_logits.to(kind), held, asked, cast, d_queries, d_head, room)
            d_states[part, :width] = found[:, : states.shape[1]]
        ctx.found = (d_states, d_queries, *d_head)
        return total / targets.numel()

    @staticmethod
    def backward(ctx, scale: Tensor):
        if ctx.found is None:
            raise RuntimeError("the derivatives of dual_loss can be asked for once")
        found, ctx.found = ctx.found, None
        return None, None, None, *(grad.mul_(scale) for grad in found)


def _backward(
    done: _Forward,
    d_logits: Tensor,
    states: Tensor,
    queries: Tensor,
    head: DualHead,
    d_queries: Tensor,
    d_head: DualHead,
    room: _Room,
) -> Tensor:
    """Derivatives by the states (n, T, D); those by queries and head are added to what is there. Consumes `done`."""
    n, t, d = states.shape
    m, labels, p = queries.shape
    given = d_logits.reshape(-1)
    d_head.out.add_(given @ done.hidden)
    d_head.out_bias.add_(given.sum())
    d_hidden = relu_backward_(done.hidden, given, head.out)
    d_head.hidden_bias.add_(d_hidden.new_ones(len(d_hidden)) @ d_hidden)
    d_head.hidden.add_(d_hidden.t() @ done.features)
    d_features = torch.mm(d_hidden, head.hidden, out=_in(room.d_features, states, n * labels, m * d))
    d_features = d_features.view(n, labels * m, d)
    d_states = torch.bmm(_by_note(done.weights).transpose(1, 2), d_features)
    d_scores = _in(room.d_weights, states, labels, m, n, t)
    torch.bmm(d_features, states.transpose(1, 2), out=_by_note(d_scores))
    softmax_backward_(done.weights, d_scores)
    d_scores = d_scores.view(labels, m, n * t)
    d_keys = torch.empty_like(done.keys)
    for i in range(m):
        span = slice(i * p, (i + 1) * p)
        d_queries[i].add_(d_scores[:, i] @ done.keys[:, span])
        torch.mm(d_scores[:, i].t(), queries[i], out=d_keys[:, span])
    d_inner = tanh_backward_(done.keys, d_keys)
    d_head.key.add_(d_inner.t() @ states.flatten(0, 1))
    d_head.key_bias.add_(d_inner.sum(0))
    return d_states.view(n * t, d).addmm_(d_inner, head.key).view(n, t, d)


def dual_loss(
    states: Tensor, lengths: Tensor, queries: Tensor, targets: Tensor, head: DualHead, chunk: int = 4
) -> Tensor:
    """The mean binary cross entropy over notes x labels.

    states: (B, T, D), its precision is that of the arithmetic; lengths: (B,) on the CPU; queries: (M, L, P); targets:
    (B, L) of 0 and 1; chunk: notes whose weights are held at once, which changes memory and nothing else.
    """
    with _as_given(states):
        return _DualLoss.apply(chunk, lengths, targets, states, queries, *head)


try:
    from nosology.attention import dual_kernels as fused
except ImportError:  # triton comes with the CUDA builds of torch alone
    fused = None  # type: ignore[assignment]


def _fusable(x: Tensor) -> bool:
    return fused is not None and x.is_cuda and x.dtype is torch.bfloat16


def masked_softmax_(scores: Tensor, lengths: Tensor) -> None:
    """Turns scores (..., n, T) into weights over the first lengths[n] tokens, in place; beyond them 0."""
    if _fusable(scores):
        return fused.masked_softmax_(scores, lengths)
    after = torch.arange(scores.shape[-1], device=scores.device) >= lengths[:, None]
    scores.masked_fill_(after, float("-inf"))
    torch.softmax(scores, -1, out=scores)


def softmax_backward_(weights: Tensor, given: Tensor) -> None:
    """Turns derivatives by the weights (..., T) into derivatives by the scores they were made of, in place."""
    if _fusable(weights):
        return fused.softmax_backward_(weights, given)
    given.sub_((weights * given).sum(-1, keepdim=True)).mul_(weights)


def relu_backward_(hidden: Tensor, given: Tensor, out: Tensor) -> Tensor:
    """Derivatives by z (N, C) for logits = relu(z) . out, in the place of hidden = relu(z).

    hidden: (N, C); given: (N,) derivatives by the logits; out: (C,).
    """
    if _fusable(hidden):
        return fused.relu_backward_(hidden, given, out)
    return torch.where(hidden > 0, given[:, None] * out, 0)


def tanh_backward_(y: Tensor, given: Tensor) -> Tensor:
    """Derivatives by z for y = tanh(z), in the place of the derivatives by y."""
    return torch.ops.aten.tanh_backward.grad_input(given, y, grad_input=given)
