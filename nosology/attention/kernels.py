"""The steps of dual attention that are bound by memory: plain torch, and fused Triton kernels where there is a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from nosology.attention import triton_kernels as fused
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
