"""Fused Triton kernels for NVIDIA GPUs: dual attention (bf16), planted attention, and cross-entropy over a vocabulary.

`dual_attention.py`, `planted_attention.py` and `models/plant/language_model.py` document what each computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nosology.encoders.triton_language import AVAILABLE as AVAILABLE
from nosology.encoders.triton_language import jit, tl, triton

if TYPE_CHECKING:
    from nosology.attention.planted_attention import PlantedScores

MAX_TOKENS = 16_384  # of a row that a program holds in its registers
LOWEST = tl and tl.constexpr(-3e38)  # score of padding; -inf - -inf would not be a number
_BISECTIONS = tl and tl.constexpr(6)  # of the range of scores, before the bisection over keys
_ROWS, _COLUMNS = 64, 64  # labels x words of a tile
_WORDS = 4096  # of a vocabulary that are read at once
_SOFTMAX_WARPS = 2  # per row; more rows per program, or more warps, were slower on an H200


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
    """As `dual_attention.masked_softmax_`, with one read and one write of the scores (..., n, T)."""
    notes, width = scores.shape[-2:]
    grid = (scores.numel() // width,)
    _masked_softmax[grid](scores, lengths, notes, width, triton.next_power_of_2(width), num_warps=_SOFTMAX_WARPS)


@jit
def _softmax_backward(weights, gradient, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    place, inside = row * width + column, column < width
    a = tl.load(weights + place, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(gradient + place, (a * (d - tl.sum(a * d, 0))).to(tl.bfloat16), mask=inside)


def softmax_backward_(weights: Tensor, gradient: Tensor) -> None:
    """As `dual_attention.softmax_backward_`, with two reads and one write of (..., T)."""
    width = weights.shape[-1]
    grid = (weights.numel() // width,)
    _softmax_backward[grid](weights, gradient, width, triton.next_power_of_2(width), num_warps=_SOFTMAX_WARPS)


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
    """As `dual_attention.relu_backward_`, with one read and one write of hidden (N, C)."""
    rows, width = hidden.shape
    block = min(2048, triton.next_power_of_2(width))
    _relu_backward[(rows, triton.cdiv(width, block))](hidden, gradient, out, width, block, num_warps=4)
    return hidden


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
def _select(words, lengths, scores, bounds, lasts, notes, width, columns, k, scope, windows, BLOCK: tl.constexpr):
    """Selects the k tokens of a window with the highest scores: those above a bound, and at it up to a last position.

    A row has `windows` windows of `scope` tokens.

    The bound is found by bisection: first over the range of scores, then over the keys, from one existing score to the
    next, since words repeat and many scores are equal. Each step is a sum over the row. A row therefore belongs to few
    threads, which rarely wait for each other. `_attend`, which needs more registers, is a separate kernel.
    """
    window = tl.program_id(0).to(tl.int64)
    row = window // windows
    label, note = row // notes, row % notes
    place = ((window % windows) * scope).to(tl.int32) + tl.arange(0, BLOCK)
    inside = (tl.arange(0, BLOCK) < scope) & (place < tl.load(lengths + note))
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
    tl.store(bounds + window, bound)
    tl.store(lasts + window, last)


@jit
def _row_softmax(scores, inside):
    """The softmax of a row of scores, which are LOWEST outside; 0 outside, and everywhere if nothing is inside."""
    weights = tl.where(inside, tl.exp(scores - tl.max(scores, 0)), 0.0)
    return weights / tl.maximum(tl.sum(weights, 0), 1e-38)


@jit
def _planted_softmax(ranked, place, inside, bounds, lasts, row, scope, windows, ALL: tl.constexpr, ZERO: tl.constexpr):
    """Which tokens of a row are selected, and the planted attention; ranked: the scores of the ranker."""
    selected = inside
    if not ALL:
        window = row * windows + place // scope
        key, bound = _key(ranked), tl.load(bounds + window, mask=inside, other=0)
        last = tl.load(lasts + window, mask=inside, other=0)
        selected = inside & ((key > bound) | ((key == bound) & (place <= last)))
    counted = selected
    if ZERO:
        ranked = tl.where(selected, ranked, 0.0)
        counted = inside
    return selected, _row_softmax(tl.where(counted, ranked, LOWEST), counted)


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
    scope,
    windows,
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
        selected, planted = _planted_softmax(ranked, place, inside, bounds, lasts, row, scope, windows, ALL, ZERO)
    of_score = products + row * width + place
    of_value = of_score + half
    score = tl.load(of_score, mask=inside, other=LOWEST).to(tl.float32)
    value = tl.load(of_value, mask=inside, other=0.0).to(tl.float32)
    learned = _row_softmax(score, inside)
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
    mask: Tensor,
    words: Tensor,
    bias: Tensor,
    targets: Tensor,
    planted: PlantedScores,
    d_scores: Tensor | None,
    cells: int,
) -> tuple[Tensor, Tensor]:
    """As `planted_attention.attend_`, with one read and one write of the products; padding must follow the notes."""
    static, scores, k = planted.static, planted.scores, planted.k
    _, labels, notes, width = products.shape
    lengths = mask.sum(1)
    losses, d_logits = torch.empty(2, labels, notes, device=products.device)
    block = triton.next_power_of_2(width)
    words = words.to(torch.int32).contiguous()  # half the registers
    columns = next((x.shape[1] for x in (static, scores) if x is not None), 0)
    scope = min(planted.scope or width, width)
    windows = triton.cdiv(width, scope)
    bounds, lasts = torch.empty(2, labels * notes * windows, dtype=torch.int32, device=products.device)
    if scores is not None and k:
        of_window = triton.next_power_of_2(scope)
        inputs = (words, lengths, scores, bounds, lasts, notes, width, columns, k, scope, windows, of_window)
        _select[(labels * notes * windows,)](*inputs, num_warps=_warps(of_window, 64))
    by_word = (static, scores, d_scores)
    of_words = [losses if tensor is None else tensor for tensor in by_word]  # losses: an unused pointer
    tensors = (products, words, lengths, bias, targets.contiguous(), *of_words, bounds, lasts, losses, d_logits)
    sizes = (products[0].numel(), labels, notes, width, columns, cells, scope, windows)
    flags = (*(tensor is not None for tensor in by_word), k == 0, planted.literal_zero)
    _attend[(labels * notes,)](*tensors, *sizes, *flags, block, num_warps=_warps(block, 8))
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
    """Scores (L, W) as `pair_scores.pair_scores`; the order of summation does not depend on other labels and words."""
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


@jit
def _cross_entropy(logits, targets, scale, losses, size, IGNORED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * size
    target = tl.load(targets + row)
    target_logit = tl.load(start + target).to(tl.float32)  # before it is overwritten
    column = tl.arange(0, BLOCK)
    # Each thread has its own peak and sum until the end, so that threads do not wait for each other.
    peak = tl.full((BLOCK,), LOWEST, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, size, BLOCK):
        x = tl.load(start + first + column, mask=first + column < size, other=LOWEST).to(tl.float32)
        higher = tl.maximum(peak, x)
        mass = mass * tl.exp(peak - higher) + tl.where(x > LOWEST, tl.exp(x - higher), 0.0)
        peak = higher
    top = tl.max(peak, 0)
    log_sum = tl.log(tl.sum(mass * tl.exp(peak - top), 0)) + top
    weight = tl.where(target == IGNORED, 0.0, tl.load(scale))
    tl.store(losses + row, (log_sum - target_logit) * weight)
    for first in range(0, size, BLOCK):
        place, inside = first + column, first + column < size
        x = tl.load(start + place, mask=inside, other=LOWEST).to(tl.float32)
        gradient = (tl.exp(x - log_sum) - tl.where(place == target, 1.0, 0.0)) * weight
        tl.store(start + place, gradient.to(logits.dtype.element_ty), mask=inside)


def cross_entropy_(logits: Tensor, targets: Tensor, scale: Tensor, ignored: int) -> Tensor:
    """As `language_model.cross_entropy_`, with two reads and one write of the logits (n, V)."""
    losses = torch.empty(len(logits), device=logits.device)
    sizes = (logits.shape[1], ignored, _WORDS)
    _cross_entropy[(len(logits),)](logits, targets.contiguous(), scale, losses, *sizes, num_warps=8)
    return losses.sum()
