"""Fused kernels of planted attention for NVIDIA GPUs: what `planted_loss` and `pair_scores` compute."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 16_384  # tokens of a row that a program holds in its registers
LOWEST = tl.constexpr(-3e38)  # of a token that is not there; minus infinity less itself would be no number
_ROWS, _COLUMNS = 64, 64  # labels x words of a tile
_HALVINGS = tl.constexpr(6)  # of the range of scores: some scores are left


@triton.jit
def _key(scores):
    """The floats' bits, as whole numbers of the same order."""
    bits = scores.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@triton.jit
def _value(key):
    """The float of a key."""
    return tl.where(key < 0, (-key) | -2147483648, key).to(tl.float32, bitcast=True)


@triton.jit
def _choose(words, lengths, scores, bounds, lasts, notes, width, columns, k, BLOCK: tl.constexpr):
    """Finds which k tokens of a row have the largest scores: those above a bound, and at it those up to a last place.

    The bound is found by halving: first the range of the scores, then that of the keys, from one score that is there to
    another, since words come again and many scores are equal. These are sums over a row, one after the other, so a row
    belongs to few threads, which need not wait for each other; the kernel that has more to hold follows.
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
    for _ in tl.static_range(_HALVINGS):
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
        nearest = tl.max(near, 0).to(tl.int64)  # the score next to the middle, on the side that is left
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


@triton.jit
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
    slopes,
    half,
    labels,
    notes,
    width,
    columns,
    cells,
    STATIC: tl.constexpr,
    RANKED: tl.constexpr,
    MOVED: tl.constexpr,
    ALL: tl.constexpr,
    ZERO: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    label, note = row // notes, row % notes
    place = tl.arange(0, BLOCK)
    inside = place < tl.load(lengths + note)
    if STATIC or RANKED:
        word = tl.load(words + note * width + place, mask=inside, other=0)
    if RANKED:
        chosen = tl.load(scores + label * columns + word, mask=inside, other=LOWEST)
        if ALL:
            kept = inside
        else:
            key, bound = _key(chosen), tl.load(bounds + row)
            kept = inside & ((key > bound) | ((key == bound) & (place <= tl.load(lasts + row))))
        counted = kept
        if ZERO:
            chosen = tl.where(kept, chosen, 0.0)
            counted = inside
        chosen = tl.where(counted, chosen, LOWEST)
        planted = tl.where(counted, tl.exp(chosen - tl.max(chosen, 0)), 0.0)
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
        told = tl.load(static + label * columns + word, mask=inside, other=0.0).to(tl.float32)
        logit += tl.sum(told * value, 0)
        weight += told
    if RANKED:
        middle = tl.sum(planted * value, 0)
        logit += middle
        weight += planted
    wanted = tl.load(targets + note * labels + label)
    slope = (1.0 / (1.0 + tl.exp(-logit)) - wanted) / cells
    softplus = tl.maximum(logit, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(logit)))
    tl.store(losses + row, softplus - wanted * logit)
    tl.store(slopes + row, slope)
    whole = place < width
    tl.store(of_score, (learned * (value - mean) * slope).to(products.dtype.element_ty), mask=whole)
    tl.store(of_value, (weight * slope).to(products.dtype.element_ty), mask=whole)
    if MOVED:
        tl.atomic_add(d_scores + label * columns + word, planted * (value - middle) * slope, mask=kept)


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
    """One read and one write of the products; see `planted_loss.attend_`, whose mask is here `lengths` (n,)."""
    _, labels, notes, width = products.shape
    losses, slopes = torch.empty(2, labels, notes, device=products.device)
    nothing = losses
    block = triton.next_power_of_2(width)
    words = words.to(torch.int32).contiguous()  # half the registers
    columns = next((x.shape[1] for x in (static, scores) if x is not None), 0)
    bounds, lasts = torch.empty(2, labels * notes, dtype=torch.int32, device=products.device)
    if scores is not None and k:
        _choose[(labels * notes,)](
            words, lengths, scores, bounds, lasts, notes, width, columns, k, BLOCK=block, num_warps=_warps(block, 64)
        )
    _attend[(labels * notes,)](
        products,
        words,
        lengths,
        bias,
        targets.contiguous(),
        nothing if static is None else static,
        nothing if scores is None else scores,
        nothing if d_scores is None else d_scores,
        bounds,
        lasts,
        losses,
        slopes,
        products[0].numel(),
        labels,
        notes,
        width,
        columns,
        cells,
        STATIC=static is not None,
        RANKED=scores is not None,
        MOVED=d_scores is not None,
        ALL=k == 0,
        ZERO=literal_zero,
        BLOCK=block,
        num_warps=_warps(block, 8),
    )
    return losses.sum(), slopes


def _warps(block: int, each: int) -> int:
    """How many warps a row takes where a thread holds so many of its numbers, which its registers limit."""
    return min(32, max(1, block // (32 * each)))


@triton.jit
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


@triton.jit
def _pairs_backward(
    labels, words, slope, of_labels, of_words, high, wide, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = row[:, None].to(tl.int64) * wide + column[None, :]
    given = tl.load(slope + place, mask=(row < high)[:, None] & (column < wide)[None, :], other=0.0)
    for k in range(size):
        left = tl.load(labels + k * high + row, mask=row < high, other=0.0)
        right = tl.load(words + k * wide + column, mask=column < wide, other=0.0)
        on = tl.where(left[:, None] + right[None, :] > 0, given, 0.0)
        tl.atomic_add(of_labels + k * high + row, tl.sum(on, 1), mask=row < high)
        tl.atomic_add(of_words + k * wide + column, tl.sum(on, 0), mask=column < wide)


def pair_scores(labels: Tensor, words: Tensor, weights: Tensor) -> Tensor:
    """Scores (L, W); every one is summed in the same order, whatever else is asked for."""
    left, right = labels.T.contiguous(), words.T.contiguous()
    scores = torch.empty(len(labels), len(words), device=labels.device)
    _pairs[_grid(scores)](left, right, weights.contiguous(), scores, *scores.shape, len(weights), _ROWS, _COLUMNS)
    return scores


def pair_scores_backward(
    labels: Tensor, words: Tensor, weights: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives by labels (L, K), words (W, K) and weights (K,)."""
    left, right = labels.T.contiguous(), words.T.contiguous()
    of_left, of_right = torch.zeros_like(left), torch.zeros_like(right)
    given = slope.contiguous()
    _pairs_backward[_grid(given)](left, right, given, of_left, of_right, *given.shape, len(weights), _ROWS, _COLUMNS)
    # relu(l + w) is l + w where it is on, so the sums that are there already give the weights' derivatives too
    of_weights = (of_left * left).sum(1) + (of_right * right).sum(1)
    return of_left.T * weights, of_right.T * weights, of_weights


def _grid(scores: Tensor) -> tuple[int, int]:
    return triton.cdiv(scores.shape[0], _ROWS), triton.cdiv(scores.shape[1], _COLUMNS)
