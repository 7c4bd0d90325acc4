"""Fused Triton kernels of planted attention for NVIDIA GPUs; `planted_attention.py` documents what they compute."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language
from torch import Tensor

# Any: the annotations of triton describe neither constexpr arguments nor launch options.
jit: Any = triton.jit
tl: Any = triton.language

MAX_TOKENS = 16_384  # of a row that a program holds in its registers
LOWEST = tl.constexpr(-3e38)  # score of padding; -inf - -inf would not be a number
_ROWS, _COLUMNS = 64, 64  # labels x words of a tile
_BISECTIONS = tl.constexpr(6)  # of the range of scores, before the bisection over keys


@jit
def _key(scores):
    """The bits of floats as integers in the same order."""
    bits = scores.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@jit
def _value(key):
    """The float of a key."""
    return tl.where(key < 0, (-key) | -2147483648, key).to(tl.float32, bitcast=True)


@jit
def _select(words, lengths, scores, bounds, lasts, notes, width, columns, k, BLOCK: tl.constexpr):
    """Selects the k tokens of a row with the highest scores: those above a bound, and at it up to a last position.

    The bound is found by bisection: first over the range of scores, then over the keys, from one existing score to the
    next, since words repeat and many scores are equal. Each step is a sum over the row. A row therefore belongs to few
    threads, which rarely wait for each other. `_attend`, which needs more registers, is a separate kernel.
    """
    row = tl.program_id(0).to(tl.int64)
    label, note = row // notes, row % notes
    place = tl.arange(0, BLOCK)
    inside = place < tl.load(lengths + note)
    word = tl.load(words + note * width + place, mask=inside, other=0)
    key = _key(tl.load(scores + label * columns + word, mask=inside, other=0.0))
    key = tl.where(inside, key, -2147483648)
    least = tl.min(tl.where(inside, key, 2147483647), 0)
    most = tl.max(key, 0)
    for _ in tl.static_range(_BISECTIONS):
        middle = _key(0.5 * _value(least) + 0.5 * _value(most))
        enough = tl.sum((key >= middle).to(tl.int32), 0) >= k
        least = tl.where(enough, middle, least)
        most = tl.where(enough, most, middle - 1)
    low, high = least.to(tl.int64), most.to(tl.int64)
    while low < high:
        middle = ((low + high + 1) >> 1).to(tl.int32)
        above = key >= middle
        count = tl.sum(above.to(tl.int32), 0)
        enough = count >= k
        near = tl.where(above, tl.where(enough, -key, -2147483648), tl.where(enough, -2147483648, key))
        nearest = tl.max(near, 0).to(tl.int64)  # the score next to the middle, on the remaining side
        low = tl.where(enough, -nearest, low)
        high = tl.where(count == k, low, tl.where(enough, high, nearest))
    bound = low.to(tl.int32)
    left = k - tl.sum((key > bound).to(tl.int32), 0)
    equal = (key == bound).to(tl.int32)
    last = width - 1
    if tl.sum(equal, 0) > left:
        last = tl.max(tl.where((equal > 0) & (tl.cumsum(equal, 0) <= left), place, -1), 0)
    tl.store(bounds + row, bound)
    tl.store(lasts + row, last)


@jit
def _attend(
    products,
    words,
    lengths,
    bias,
    targets,
    static,
    scores,
    d_scores,
    bounds,
    lasts,
    losses,
    d_logits,
    half,
    labels,
    notes,
    width,
    columns,
    cells,
    STATIC: tl.constexpr,
    RANKED: tl.constexpr,
    RANKER_GRADIENT: tl.constexpr,
    ALL: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    label, note = row // notes, row % notes
    place = tl.arange(0, BLOCK)
    inside = place < tl.load(lengths + note)
    word = tl.load(words + note * width + place, mask=inside, other=0)
    selected, planted, planted_mean = inside, inside, 0.0  # replaced if RANKED
    if RANKED:
        ranked = tl.load(scores + label * columns + word, mask=inside, other=LOWEST)
        if not ALL:
            key, bound = _key(ranked), tl.load(bounds + row)
            selected = inside & ((key > bound) | ((key == bound) & (place <= tl.load(lasts + row))))
        counted = selected
        if ZERO:
            ranked = tl.where(selected, ranked, 0.0)
            counted = inside
        ranked = tl.where(counted, ranked, LOWEST)
        planted = tl.where(counted, tl.exp(ranked - tl.max(ranked, 0)), 0.0)
        planted = planted / tl.maximum(tl.sum(planted, 0), 1e-38)
    of_score = products + row * width + place
    of_value = of_score + half
    score = tl.load(of_score, mask=inside, other=LOWEST).to(tl.float32)
    value = tl.load(of_value, mask=inside, other=0.0).to(tl.float32)
    learned = tl.where(inside, tl.exp(score - tl.max(score, 0)), 0.0)
    learned = learned / tl.maximum(tl.sum(learned, 0), 1e-38)
    mean = tl.sum(learned * value, 0)
    logit = tl.load(bias + label).to(tl.float32) + mean
    weight = learned
    if STATIC:
        prior = tl.load(static + label * columns + word, mask=inside, other=0.0).to(tl.float32)
        logit += tl.sum(prior * value, 0)
        weight += prior
    if RANKED:
        planted_mean = tl.sum(planted * value, 0)
        logit += planted_mean
        weight += planted
    target = tl.load(targets + note * labels + label)
    d_logit = (1.0 / (1.0 + tl.exp(-logit)) - target) / cells
    softplus = tl.maximum(logit, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(logit)))
    tl.store(losses + row, softplus - target * logit)
    tl.store(d_logits + row, d_logit)
    whole = place < width
    tl.store(of_score, (learned * (value - mean) * d_logit).to(products.dtype.element_ty), mask=whole)
    tl.store(of_value, (weight * d_logit).to(products.dtype.element_ty), mask=whole)
    if RANKER_GRADIENT:
        d_planted = planted * (value - planted_mean) * d_logit
        tl.atomic_add(d_scores + label * columns + word, d_planted, mask=selected)


def attend_(
    products: Tensor,
    lengths: Tensor,
    words: Tensor,
    bias: Tensor,
    targets: Tensor,
    static: Tensor | None,
    scores: Tensor | None,
    d_scores: Tensor | None,
    k: int,
    literal_zero: bool,
    cells: int,
) -> tuple[Tensor, Tensor]:
    """As `planted_attention.attend_` with lengths (n,) instead of a mask; one read and one write of the products."""
    _, labels, notes, width = products.shape
    losses, d_logits = torch.empty(2, labels, notes, device=products.device)
    unused = losses
    block = triton.next_power_of_2(width)
    words = words.to(torch.int32).contiguous()  # half the registers
    columns = next((x.shape[1] for x in (static, scores) if x is not None), 0)
    bounds, lasts = torch.empty(2, labels * notes, dtype=torch.int32, device=products.device)
    if scores is not None and k:
        _select[(labels * notes,)](
            words, lengths, scores, bounds, lasts, notes, width, columns, k, BLOCK=block, num_warps=_warps(block, 64)
        )
    _attend[(labels * notes,)](
        products,
        words,
        lengths,
        bias,
        targets.contiguous(),
        unused if static is None else static,
        unused if scores is None else scores,
        unused if d_scores is None else d_scores,
        bounds,
        lasts,
        losses,
        d_logits,
        products[0].numel(),
        labels,
        notes,
        width,
        columns,
        cells,
        STATIC=static is not None,
        RANKED=scores is not None,
        RANKER_GRADIENT=d_scores is not None,
        ALL=k == 0,
        ZERO=literal_zero,
        BLOCK=block,
        num_warps=_warps(block, 8),
    )
    return losses.sum(), d_logits


def _warps(block: int, per_thread: int) -> int:
    """Warps per row for this number of values per thread, which the registers limit."""
    return min(32, max(1, block // (32 * per_thread)))


@jit
def _pairs(labels, words, weights, scores, high, wide, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(size):
        left = tl.load(labels + k * high + row, mask=row < high, other=0.0)
        right = tl.load(words + k * wide + column, mask=column < wide, other=0.0)
        total += tl.load(weights + k) * tl.maximum(left[:, None] + right[None, :], 0.0)
    place = row[:, None].to(tl.int64) * wide + column[None, :]
    tl.store(scores + place, total, mask=(row < high)[:, None] & (column < wide)[None, :])


@jit
def _pairs_backward(
    labels, words, gradient, d_labels, d_words, high, wide, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = row[:, None].to(tl.int64) * wide + column[None, :]
    tile = tl.load(gradient + place, mask=(row < high)[:, None] & (column < wide)[None, :], other=0.0)
    for k in range(size):
        left = tl.load(labels + k * high + row, mask=row < high, other=0.0)
        right = tl.load(words + k * wide + column, mask=column < wide, other=0.0)
        active = tl.where(left[:, None] + right[None, :] > 0, tile, 0.0)
        tl.atomic_add(d_labels + k * high + row, tl.sum(active, 1), mask=row < high)
        tl.atomic_add(d_words + k * wide + column, tl.sum(active, 0), mask=column < wide)


def pair_scores(labels: Tensor, words: Tensor, weights: Tensor) -> Tensor:
    """Scores (L, W). The order of summation does not depend on the other labels and words."""
    left, right = labels.T.contiguous(), words.T.contiguous()
    scores = torch.empty(len(labels), len(words), device=labels.device)
    _pairs[_grid(scores)](left, right, weights.contiguous(), scores, *scores.shape, len(weights), _ROWS, _COLUMNS)
    return scores


def pair_scores_backward(
    labels: Tensor, words: Tensor, weights: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by labels (L, K), words (W, K) and weights (K,)."""
    left, right = labels.T.contiguous(), words.T.contiguous()
    d_left, d_right = torch.zeros_like(left), torch.zeros_like(right)
    gradient = gradient.contiguous()
    sizes = (*gradient.shape, len(weights), _ROWS, _COLUMNS)
    _pairs_backward[_grid(gradient)](left, right, gradient, d_left, d_right, *sizes)
    # Where the ReLU is active, relu(l + w) = l + w: the same sums give the gradient by the weights.
    d_weights = (d_left * left).sum(1) + (d_right * right).sum(1)
    return d_left.T * weights, d_right.T * weights, d_weights


def _grid(scores: Tensor) -> tuple[int, int]:
    return triton.cdiv(scores.shape[0], _ROWS), triton.cdiv(scores.shape[1], _COLUMNS)
