"""The cross entropy over a vocabulary as one kernel for NVIDIA GPUs: `next_word.cross_entropy_`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nosology.encoders.tokenizers import PAD

_BLOCK = 4096  # words at once
_WARPS = 8


@triton.jit
def _cross_entropy(logits, targets, share, losses, size, NONE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * size
    target = tl.load(targets + row)
    said = tl.load(own + target).to(tl.float32)  # before anything is written in its place
    column = tl.arange(0, BLOCK)
    # each thread has a peak and a sum of its own until the end: no waiting for others in between
    peak = tl.full((BLOCK,), -3e38, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, size, BLOCK):
        x = tl.load(own + first + column, mask=first + column < size, other=-3e38).to(tl.float32)
        higher = tl.maximum(peak, x)
        mass = mass * tl.exp(peak - higher) + tl.where(x > -3e38, tl.exp(x - higher), 0.0)
        peak = higher
    top = tl.max(peak, 0)
    log = tl.log(tl.sum(mass * tl.exp(peak - top), 0)) + top
    part = tl.where(target == NONE, 0.0, tl.load(share))
    tl.store(losses + row, (log - said) * part)
    for first in range(0, size, BLOCK):
        place, inside = first + column, first + column < size
        x = tl.load(own + place, mask=inside, other=-3e38).to(tl.float32)
        given = (tl.exp(x - log) - tl.where(place == target, 1.0, 0.0)) * part
        tl.store(own + place, given.to(logits.dtype.element_ty), mask=inside)


def cross_entropy_(logits: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """Two reads and one write of the logits (n, V)."""
    losses = torch.empty(len(logits), device=logits.device)
    _cross_entropy[(len(logits),)](
        logits, targets.contiguous(), share, losses, logits.shape[1], PAD, _BLOCK, num_warps=_WARPS
    )
    return losses.sum()
