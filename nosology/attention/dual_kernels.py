"""Fused bf16 Triton kernels of dual attention for NVIDIA GPUs; `dual_attention.py` documents what each computes."""

from __future__ import annotations

from typing import Any

import triton
import triton.language
from torch import Tensor

# Any: the annotations of triton describe neither constexpr arguments nor launch options.
jit: Any = triton.jit
tl: Any = triton.language

WARPS = 2  # per row; more rows per program, or more warps, were slower on an H200


@jit
def _masked_softmax(scores, lengths, notes, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    place = scores + row * width + column
    x = tl.load(place, mask=column < tl.load(lengths + row % notes), other=-float("inf")).to(tl.float32)
    x = tl.exp(x - tl.max(x, 0))
    x = x * (1.0 / tl.sum(x, 0))
    tl.store(place, x.to(tl.bfloat16), mask=column < width)


def masked_softmax_(scores: Tensor, lengths: Tensor) -> None:
    """One read and one write of the scores (..., n, T)."""
    notes, width = scores.shape[-2:]
    grid = (scores.numel() // width,)
    _masked_softmax[grid](scores, lengths, notes, width, triton.next_power_of_2(width), num_warps=WARPS)


@jit
def _softmax_backward(weights, gradient, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    place, inside = row * width + column, column < width
    a = tl.load(weights + place, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(gradient + place, (a * (d - tl.sum(a * d, 0))).to(tl.bfloat16), mask=inside)


def softmax_backward_(weights: Tensor, gradient: Tensor) -> None:
    """Two reads and one write of (..., T)."""
    width = weights.shape[-1]
    grid = (weights.numel() // width,)
    _softmax_backward[grid](weights, gradient, width, triton.next_power_of_2(width), num_warps=WARPS)


@jit
def _relu_backward(hidden, gradient, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = hidden + row * width + column
    h = tl.load(place, mask=inside, other=0.0)
    weight = tl.load(out + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + row).to(tl.float32)
    tl.store(place, tl.where(h > 0, g * weight, 0.0).to(tl.bfloat16), mask=inside)


def relu_backward_(hidden: Tensor, gradient: Tensor, out: Tensor) -> Tensor:
    """One read and one write of hidden (N, C)."""
    rows, width = hidden.shape
    block = min(2048, triton.next_power_of_2(width))
    _relu_backward[(rows, triton.cdiv(width, block))](hidden, gradient, out, width, block, num_warps=4)
    return hidden
