"""Dual label-wise attention of DualLAAT (Liu and Nguyen 2026, equations 3 to 6).

The queries are encoded code descriptions; they attend to the tokens of a note.
Shapes: B notes, T tokens, D width of a state, M heads, P width of a projection, L labels, C hidden units.

The attention weights (L x T per note) and features (L x M D per note) are by far the largest tensors, and no caller
needs them. The loss therefore processes notes in chunks and computes the gradients of each chunk at once: memory is
bounded by one chunk, and nothing is computed twice. Memory-bound steps use fused Triton kernels on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nosology.attention import kernels

_WIDTH_MULTIPLE = {"cpu": 8, "cuda": 64}  # chunks are padded to it: matrix products are faster with such sizes
_MAX_CELLS = 1 << 27  # notes x labels x heads x tokens that a GPU scores at once by default
_MAX_ROWS = 1 << 16  # notes x labels, likewise
_GPU_LABELS = 2048  # labels that a GPU scores at once if several notes fit
_CPU_LABELS = 512  # labels that a CPU scores at once


class DualHead(NamedTuple):
    """The weights between the states of a note and the logit of a code."""

    key: Tensor  # (M P, D): key projections of all heads
    key_bias: Tensor  # (M P,)
    hidden: Tensor  # (C, M D): first layer of the classifier
    hidden_bias: Tensor  # (C,)
    out: Tensor  # (C,): second layer
    out_bias: Tensor  # (1,)

    def to(self, dtype: torch.dtype) -> DualHead:
        """The same weights in another precision."""
        return DualHead(*(weight.to(dtype) for weight in self))


class _Workspace:
    """Memory for the large tensors of a chunk, allocated once: chunks of different sizes would fragment the memory."""

    def __init__(self, like: Tensor, cells: int, rows: int, features: int, hidden: int):
        self.weights, self.d_weights = like.new_empty(cells), like.new_empty(cells)
        self.features, self.d_features = like.new_empty(rows * features), like.new_empty(rows * features)
        self.hidden = like.new_empty(rows * hidden)

    @staticmethod
    def for_chunks(states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, chunk: int) -> _Workspace:
        """The workspace for the largest chunk, including gradients."""
        m, labels, _ = queries.shape
        notes = min(chunk, len(states))
        widest = max((part.stop - part.start) * width for part, width in _chunks(lengths, chunk, states.device))
        return _Workspace(states, widest * m * labels, notes * labels, m * states.shape[-1], len(head.hidden))


def _view(buffer: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """An uninitialized tensor of that shape, in the buffer or, without one, newly allocated."""
    return like.new_empty(shape) if buffer is None else buffer[: math.prod(shape)].view(shape)


@dataclass
class _ForwardResult:
    """The logits of n notes and what their gradients need."""

    keys: Tensor  # (n T, M P)
    weights: Tensor  # (L, M, n, T) attention
    features: Tensor  # (n L, M D)
    hidden: Tensor  # (n L, C)
    logits: Tensor  # (n, L) float32, or float64 for float64 states


def attention_weights(
    states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, buffer: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Equation 3: weights (L, M, n, T) of states (n, T, D) for queries (M, L, P), and the keys (n T, M P).

    With the labels first, the scores of all notes are one matrix product per head.
    """
    n, t, _ = states.shape
    m, labels, p = queries.shape
    with _without_autocast(states):
        keys = torch.addmm(head.key_bias, states.flatten(0, 1), head.key.t()).tanh_()
        weights = _view(buffer, states, labels, m, n * t)
        for i in range(m):
            torch.mm(queries[i], keys[:, i * p : (i + 1) * p].t(), out=weights[:, i])
        weights = weights.view(labels, m, n, t)
        masked_softmax_(weights, lengths)
    return weights, keys


def mean_attention(states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead) -> Tensor:
    """The weights (B, L, T), float32, of states (B, T, D), mean of the heads, for queries (M, L, P) or (M, B, L, P).

    lengths: (B,) at least 1, on the device of the states. With queries (M, B, L, P) each note has its own labels.
    """
    m, p = len(queries), queries.shape[-1]
    with _without_autocast(states):
        keys = torch.addmm(head.key_bias, states.flatten(0, 1), head.key.t()).tanh_().view(*states.shape[:2], m, p)
        padding = torch.arange(states.shape[1], device=states.device) >= lengths[:, None]
        total: Tensor | None = None
        for i in range(m):  # head by head: the weights of all heads would need M times the memory
            scores = torch.matmul(queries[i], keys[:, :, i].transpose(1, 2)).float()
            weights = scores.masked_fill_(padding[:, None], float("-inf")).softmax(-1)
            total = weights if total is None else total.add_(weights)
        assert total is not None
        return total.div_(m)


def _forward(
    states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, workspace: _Workspace | None = None
) -> _ForwardResult:
    """Logits of states (n, T, D) for queries (M, L, P), and all intermediate results."""
    buffers = (workspace.weights, workspace.features, workspace.hidden) if workspace else (None, None, None)
    weights, keys = attention_weights(states, lengths, queries, head, buffers[0])
    n, labels, rows = len(states), len(weights), weights.shape[0] * weights.shape[1]
    features = _view(buffers[1], states, n, rows, states.shape[-1])
    torch.bmm(_by_note(weights), states, out=features)  # equations 4 and 5
    features = features.view(n * labels, -1)
    hidden = _view(buffers[2], states, n * labels, len(head.hidden))
    torch.ops.aten._addmm_activation.out(head.hidden_bias, features, head.hidden.t(), out=hidden)  # with a ReLU
    logits = (hidden @ head.out + head.out_bias).view(n, labels)  # equation 6
    return _ForwardResult(keys, weights, features, hidden, logits.to(torch.promote_types(logits.dtype, torch.float32)))


def _by_note(weights: Tensor) -> Tensor:
    """Weights (L, M, n, T) as a view (n, L M, T)."""
    return weights.flatten(0, 1).transpose(0, 1)


def _chunks(lengths: Tensor, size: int, device: torch.device) -> Iterator[tuple[slice, int]]:
    """Slices of at most `size` notes, each with the length of its longest note, rounded up."""
    step = _WIDTH_MULTIPLE.get(device.type, 8)
    longest = lengths.clamp(min=1)
    for start in range(0, len(lengths), size):
        part = slice(start, min(start + size, len(lengths)))
        yield part, -(-int(longest[part].max()) // step) * step


def dual_logits(
    states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, *, notes: int = 0, labels: int = 0
) -> Tensor:
    """Logits (B, L) of states (B, T, D) for queries (M, L, P), without gradients.

    lengths: (B,) on the CPU. notes, labels: sizes of the chunks, which do not change the result; 0: what fits.
    """
    with _without_autocast(states):
        if states.device.type == "cpu":
            return _logits_by_note(states, lengths, queries, head, labels or _CPU_LABELS)
        return _logits_by_chunk(states, lengths, queries, head, notes, labels)


def _without_autocast(states: Tensor) -> torch.autocast:
    """Context in which arithmetic keeps the precision of the states."""
    return torch.autocast(states.device.type, enabled=False)


def _logits_by_chunk(
    states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, notes: int, labels: int
) -> Tensor:
    """Logits (B, L), several notes at once, for a GPU."""
    heads, total, _ = queries.shape
    notes = notes or max(1, min(len(states), _MAX_CELLS // (heads * states.shape[1] * min(total, _GPU_LABELS))))
    labels = labels or max(1, min(_MAX_CELLS // (notes * heads * states.shape[1]), _MAX_ROWS // notes))
    device_lengths = lengths.clamp(min=1).to(states.device)
    logits = states.new_empty(len(states), total, dtype=torch.promote_types(states.dtype, torch.float32))
    for part, width in _chunks(lengths, notes, states.device):
        chunk = _resize(states, part, width)
        for start in range(0, total, labels):
            chunk_queries = queries[:, start : start + labels]
            result = _forward(chunk, device_lengths[part], chunk_queries, head)
            logits[part, start : start + labels] = _output(result.hidden, head).view(len(chunk), -1)
    return logits


def _logits_by_note(states: Tensor, lengths: Tensor, queries: Tensor, head: DualHead, labels: int) -> Tensor:
    """Logits (B, L), one note and one head at a time without padding, so that weights stay in the cache of a CPU."""
    m, total, p = queries.shape
    d = states.shape[-1]
    logits = states.new_empty(len(states), total, dtype=torch.promote_types(states.dtype, torch.float32))
    buffer = states.new_empty(min(labels, total) * states.shape[1])  # allocated once: new memory costs page faults
    features, hidden = states.new_empty(min(labels, total), m * d), states.new_empty(min(labels, total), len(head.out))
    for row, length in enumerate(lengths.clamp(min=1).tolist()):
        words = states[row, :length]
        keys = torch.addmm(head.key_bias, words, head.key.t()).tanh_()
        for start in range(0, total, labels):
            chunk_queries = queries[:, start : start + labels]
            n = chunk_queries.shape[1]
            for i in range(m):
                weights = _view(buffer, states, n, length)
                torch.mm(chunk_queries[i], keys[:, i * p : (i + 1) * p].t(), out=weights)
                torch.softmax(weights, -1, out=weights)
                torch.mm(weights, words, out=features[:n, i * d : (i + 1) * d])
            torch.ops.aten._addmm_activation.out(head.hidden_bias, features[:n], head.hidden.t(), out=hidden[:n])
            logits[row, start : start + n] = _output(hidden[:n], head)
    return logits


def _output(hidden: Tensor, head: DualHead) -> Tensor:
    """Equation 6: the logits (N,) of hidden units (N, C), at least in float32.

    Rounded to bf16, a logit of a batch and that of a single note could be 0.008 apart.
    """
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    return hidden.to(dtype) @ head.out.to(dtype) + head.out_bias.to(dtype)


def _resize(states: Tensor, part: slice, width: int) -> Tensor:
    """The states (n, width, D) of some notes, cut or padded to a width."""
    chunk = states[part, :width]
    if chunk.shape[1] < width:
        chunk = torch.nn.functional.pad(chunk, (0, 0, 0, width - chunk.shape[1]))
    return chunk.contiguous()


class _DualLoss(torch.autograd.Function):
    """The mean binary cross-entropy; the forward pass also computes all gradients."""

    @staticmethod
    def forward(ctx: Any, chunk: int, lengths: Tensor, targets: Tensor, states: Tensor, queries: Tensor, *head: Tensor):
        dtype = states.dtype
        cast_head, cast_queries = DualHead(*head).to(dtype), queries.to(dtype)
        device_lengths = lengths.clamp(min=1).to(states.device)
        total = torch.zeros((), device=states.device, dtype=torch.promote_types(dtype, torch.float32))
        d_states = torch.zeros_like(states)
        d_queries = torch.zeros_like(queries, dtype=total.dtype)
        d_head = DualHead(*(torch.zeros_like(weight) for weight in head))
        workspace = _Workspace.for_chunks(states, lengths, cast_queries, cast_head, chunk)
        for part, width in _chunks(lengths, chunk, states.device):
            chunk_states = _resize(states, part, width)
            result = _forward(chunk_states, device_lengths[part], cast_queries, cast_head, workspace)
            chunk_targets = targets[part].to(result.logits.dtype)
            total += torch.nn.functional.binary_cross_entropy_with_logits(result.logits, chunk_targets, reduction="sum")
            d_logits = ((result.logits.sigmoid() - chunk_targets) / targets.numel()).to(dtype)
            gradient = _backward(result, d_logits, chunk_states, cast_queries, cast_head, d_queries, d_head, workspace)
            d_states[part, :width] = gradient[:, : states.shape[1]]
        ctx.gradients = (d_states, d_queries, *d_head)
        return total / targets.numel()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor):
        if ctx.gradients is None:
            raise RuntimeError("dual_loss supports only one backward pass")
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, None, *(gradient.mul_(grad_outputs[0]) for gradient in gradients)


def _backward(
    result: _ForwardResult,
    d_logits: Tensor,
    states: Tensor,
    queries: Tensor,
    head: DualHead,
    d_queries: Tensor,
    d_head: DualHead,
    workspace: _Workspace,
) -> Tensor:
    """Gradients by the states (n, T, D); those by queries and head are added to d_queries and d_head.

    Overwrites the tensors of `result`.
    """
    n, t, d = states.shape
    m, labels, p = queries.shape
    d_rows = d_logits.reshape(-1)
    d_head.out.add_(d_rows @ result.hidden)
    d_head.out_bias.add_(d_rows.sum())
    d_hidden = relu_backward_(result.hidden, d_rows, head.out)
    d_head.hidden_bias.add_(d_hidden.new_ones(len(d_hidden)) @ d_hidden)
    d_head.hidden.add_(d_hidden.t() @ result.features)
    d_features = torch.mm(d_hidden, head.hidden, out=_view(workspace.d_features, states, n * labels, m * d))
    d_features = d_features.view(n, labels * m, d)
    d_states = torch.bmm(_by_note(result.weights).transpose(1, 2), d_features)
    d_scores = _view(workspace.d_weights, states, labels, m, n, t)
    torch.bmm(d_features, states.transpose(1, 2), out=_by_note(d_scores))
    softmax_backward_(result.weights, d_scores)
    d_scores = d_scores.view(labels, m, n * t)
    d_keys = torch.empty_like(result.keys)
    for i in range(m):
        span = slice(i * p, (i + 1) * p)
        d_queries[i].add_(d_scores[:, i] @ result.keys[:, span])
        torch.mm(d_scores[:, i].t(), queries[i], out=d_keys[:, span])
    d_inner = torch.ops.aten.tanh_backward.grad_input(d_keys, result.keys, grad_input=d_keys)
    d_head.key.add_(d_inner.t() @ states.flatten(0, 1))
    d_head.key_bias.add_(d_inner.sum(0))
    return d_states.view(n * t, d).addmm_(d_inner, head.key).view(n, t, d)


def dual_loss(
    states: Tensor, lengths: Tensor, queries: Tensor, targets: Tensor, head: DualHead, chunk: int = 4
) -> Tensor:
    """The mean binary cross-entropy over notes x labels.

    states: (B, T, D), in the precision of the arithmetic; lengths: (B,) on the CPU; queries: (M, L, P); targets: (B, L)
    of 0 and 1; chunk: notes whose attention weights are in memory at once, which does not change the result.
    """
    with _without_autocast(states):
        return _DualLoss.apply(chunk, lengths, targets, states, queries, *head)


def _use_fused(x: Tensor) -> bool:
    return kernels.AVAILABLE and x.is_cuda and x.dtype is torch.bfloat16


def masked_softmax_(scores: Tensor, lengths: Tensor) -> None:
    """Replaces scores (..., n, T) by their softmax over the first lengths[n] tokens; 0 at padding."""
    if _use_fused(scores):
        return kernels.masked_softmax_(scores, lengths)
    padding = torch.arange(scores.shape[-1], device=scores.device) >= lengths[:, None]
    scores.masked_fill_(padding, float("-inf"))
    torch.softmax(scores, -1, out=scores)


def softmax_backward_(weights: Tensor, gradient: Tensor) -> None:
    """Replaces the gradient by the weights (..., T) by the gradient by their scores."""
    if _use_fused(weights):
        return kernels.softmax_backward_(weights, gradient)
    gradient.sub_((weights * gradient).sum(-1, keepdim=True)).mul_(weights)


def relu_backward_(hidden: Tensor, gradient: Tensor, out: Tensor) -> Tensor:
    """The gradient by z (N, C) for logits = relu(z) . out; may overwrite hidden = relu(z).

    hidden: (N, C); gradient: (N,) by the logits; out: (C,).
    """
    if _use_fused(hidden):
        return kernels.relu_backward_(hidden, gradient, out)
    return torch.where(hidden > 0, gradient[:, None] * out, 0)
