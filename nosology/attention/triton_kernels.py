"""Fused bf16 kernels of dual attention for NVIDIA GPUs; nosology/attention/kernels.py says what each computes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _masked_softmax(scores, lengths, width, rows, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row // rows)
    column = tl.arange(0, BLOCK)
    place = scores + row * width + column
    x = tl.load(place, mask=column < length, other=-float("inf")).to(tl.float32)
    x = tl.exp(x - tl.max(x, 0))
    x = x * (1.0 / tl.sum(x, 0))
    tl.store(place, x.to(tl.bfloat16), mask=column < width)


def masked_softmax_(scores: Tensor, lengths: Tensor) -> None:
    """One read and one write of the scores (n, R, T)."""
    n, rows, width = scores.shape
    block = triton.next_power_of_2(width)
    warps = 4 if block <= 2048 else 8
    _masked_softmax[(n * rows,)](scores, lengths, width, rows, block, num_warps=warps)


@triton.jit
def _softmax_backward(
    weights, mean, d_features, values, out, rows, width, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    note = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    left = d_features + note * rows * depth + row[:, None] * depth + inner[None, :]
    right = values + note * width * depth + column[None, :] * depth + inner[:, None]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for _ in range(0, depth, DEPTH):
        a = tl.load(left, mask=row[:, None] < rows, other=0.0)
        b = tl.load(right, mask=column[None, :] < width, other=0.0)
        total = tl.dot(a, b, total)
        left += DEPTH
        right += DEPTH
    inside = (row[:, None] < rows) & (column[None, :] < width)
    place = note * rows * width + row[:, None].to(tl.int64) * width + column[None, :]
    weight = tl.load(weights + place, mask=inside, other=0.0).to(tl.float32)
    centre = tl.load(mean + note * rows + row, mask=row < rows, other=0.0)
    tl.store(out + place, (weight * (total - centre[:, None])).to(tl.bfloat16), mask=inside)


@triton.jit
def _row_products(left, right, out, depth, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    a = tl.load(left + row * depth + column, mask=column < depth, other=0.0).to(tl.float32)
    b = tl.load(right + row * depth + column, mask=column < depth, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(a * b, 0))


@triton.jit
def _softmax_backward_rows(weights, d_weights, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    a = tl.load(weights + row * width + column, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(d_weights + row * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(d_weights + row * width + column, (a * (d - tl.sum(a * d, 0))).to(tl.bfloat16), mask=inside)


def softmax_backward(weights: Tensor, features: Tensor, d_features: Tensor, values: Tensor) -> Tensor:
    """(n, R, T): narrow values in one matrix product whose tiles are finished before they are written, wide ones in two
    steps, since there cuBLAS gains more than the second pass costs."""
    n, rows, width = weights.shape
    depth = values.shape[-1]
    if depth > 256 or depth % 64:
        d_weights = torch.bmm(d_features, values.transpose(1, 2))
        block = triton.next_power_of_2(width)
        warps = 4 if block <= 2048 else 8
        _softmax_backward_rows[(n * rows,)](weights, d_weights, width, block, num_warps=warps)
        return d_weights
    mean = features.new_empty(n * rows, dtype=torch.float32)
    _row_products[(n * rows,)](features, d_features, mean, depth, triton.next_power_of_2(depth), num_warps=1)
    out = torch.empty_like(weights)
    grid = (triton.cdiv(width, 128), triton.cdiv(rows, 128), n)
    _softmax_backward[grid](
        weights, mean, d_features, values, out, rows, width, depth, 128, 128, 64, num_warps=8, num_stages=3
    )
    return out


@triton.jit
def _relu_backward(hidden, given, out, d_bias, d_out, rows, width, STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip  # noqa: E501
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    weight = tl.load(out + column, mask=inside, other=0.0).to(tl.float32)
    bias_sum = tl.zeros((COLUMNS,), dtype=tl.float32)
    out_sum = tl.zeros((COLUMNS,), dtype=tl.float32)
    for step in range(STEPS):
        row = (tl.program_id(1) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        kept = (row[:, None] < rows) & inside[None, :]
        place = hidden + row[:, None].to(tl.int64) * width + column[None, :]
        h = tl.load(place, mask=kept, other=0.0).to(tl.float32)
        g = tl.load(given + row, mask=row < rows, other=0.0).to(tl.float32)
        d = tl.where(h > 0, g[:, None] * weight[None, :], 0.0)
        tl.store(place, d.to(tl.bfloat16), mask=kept)
        bias_sum += tl.sum(d, 0)
        out_sum += tl.sum(h * g[:, None], 0)
    tl.store(d_bias + tl.program_id(1) * width + column, bias_sum, mask=inside)
    tl.store(d_out + tl.program_id(1) * width + column, out_sum, mask=inside)


def relu_backward_(hidden: Tensor, given: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One read and one write of hidden (N, C); the two sums over N come with it."""
    rows, width = hidden.shape
    rows_a_step, columns, steps = 16, 256, 16
    parts = triton.cdiv(rows, rows_a_step * steps)
    sums = hidden.new_empty(2, parts, width, dtype=torch.float32)
    grid = (triton.cdiv(width, columns), parts)
    _relu_backward[grid](hidden, given, out, sums[0], sums[1], rows, width, steps, rows_a_step, columns, num_warps=4)
    d_bias, d_out = sums.sum(1)
    return hidden, d_bias, d_out
