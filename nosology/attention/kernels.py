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
    """Turns scores (n, R, T) into weights over the first lengths[n] tokens, in place; beyond them 0."""
    if _fusable(scores):
        return fused.masked_softmax_(scores, lengths)
    after = torch.arange(scores.shape[-1], device=scores.device) >= lengths[:, None, None]
    scores.masked_fill_(after, float("-inf"))
    torch.softmax(scores, -1, out=scores)


def softmax_backward(weights: Tensor, features: Tensor, d_features: Tensor, values: Tensor) -> Tensor:
    """Derivatives by the scores (n, R, T) of features = softmax(scores) values.

    weights: (n, R, T); features, d_features: (n, R, D); values: (n, T, D).
    """
    if _fusable(weights):
        return fused.softmax_backward(weights, features, d_features, values)
    d_weights = torch.bmm(d_features, values.transpose(1, 2))
    # Row by row, the mean of d_weights under the weights is features . d_features.
    return d_weights.sub_((features * d_features).sum(-1, keepdim=True)).mul_(weights)


def relu_backward_(hidden: Tensor, given: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For logits = hidden . out with hidden = relu(z + bias): the derivatives by z (N, C), by bias (C,), by out (C,).

    hidden: (N, C), overwritten with the first; given: (N,) derivatives by the logits; out: (C,).
    """
    if _fusable(hidden):
        return fused.relu_backward_(hidden, given, out)
    d_out = given @ hidden
    d_hidden = torch.where(hidden > 0, given[:, None] * out, 0)
    return d_hidden, d_hidden.sum(0), d_out
