"""Planted attention: what a label has learned to look at, what mutual information and a ranker tell it to (paper 003).

With states H (T, D), equation 7 and 8 are: logit_l = sum over tokens t of (A + S + P)_lt (h_t . w_l) + b_l, where
A = softmax over t of h_t . u_l (learned), S the mutual information of the token's word with the label (static), and
P = softmax over the k tokens that the ranker puts first (planted); the others have no weight at all. S and P belong to
words, not to places, so they come as one column a different word of the notes.

A note may come in windows. Everything that is needed of those before is in `Seen`, whose size does not depend on how
many they were, so that a note of any length is read to its end; windowed and whole give the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_LOWEST = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class LabelDecoder:
    """What a label knows: where it looks, what it makes of it."""

    queries: Tensor  # (L, D) u
    weights: Tensor  # (L, D) w
    bias: Tensor  # (L,)


@dataclass(frozen=True)
class PlantedScores:
    """What a label is told about the different words of the notes; None: nothing."""

    static: Tensor | None  # (L, W) mutual information
    scores: Tensor | None  # (L, W) of the ranker
    k: int  # tokens that the ranker's attention keeps; 0: all


@dataclass(frozen=True)
class AttentionState:
    """What is left of the tokens read so far: B notes, L labels."""

    peak: Tensor  # (B, L) the largest learned score
    mass: Tensor  # (B, L) sum of exp(score - peak)
    value: Tensor  # (B, L) the same with each token's h . w
    static: Tensor  # (B, L) sum of mutual information times h . w
    keys: Tensor  # (B, L, k) the ranker's best tokens: score and place as one number; the least number: none
    scores: Tensor  # (B, L, k) their scores
    values: Tensor  # (B, L, k) their h . w; where all tokens are kept they stand together as one
    total: Tensor  # (B, L) sum of h . w of all tokens
    count: Tensor  # (B, 1) tokens without pads
    tokens: int  # read so far, pads included
    every: bool = False  # whether the ranker keeps all tokens

    @staticmethod
    def empty(notes: int, labels: int, k: int, like: Tensor) -> AttentionState:
        """Before the first token."""
        zero = like.new_zeros(notes, labels, dtype=torch.float32)
        none = torch.full((notes, labels, k), _LOWEST, dtype=torch.int64, device=like.device)
        empty = zero[..., None].expand(-1, -1, k).clone()
        return AttentionState(
            torch.full_like(zero, -torch.inf), zero, zero, zero, none, empty, empty, zero, zero[:, :1], 0
        )


def accumulate(
    states: Tensor, mask: Tensor, words: Tensor, decoder: LabelDecoder, planted: PlantedScores, seen: AttentionState
) -> AttentionState:
    """What is left after some more tokens.

    states: (B, T, D); mask: (B, T), False at pads; words: (B, T), the columns of `planted` that the tokens have.
    """
    score = torch.einsum("btd,ld->blt", states, decoder.queries).float().masked_fill(~mask[:, None], -torch.inf)
    value = torch.einsum("btd,ld->blt", states, decoder.weights).float()
    peak = torch.maximum(seen.peak, score.amax(2))
    safe = peak.masked_fill(peak == -torch.inf, 0)  # a note without a token so far
    part = torch.exp(score - safe[..., None])
    shrink = torch.exp(seen.peak - safe)
    told = seen.static
    if planted.static is not None:
        told = told + (_of_tokens(planted.static, words) * value * mask[:, None]).sum(2)
    keys, scores, values = seen.keys, seen.scores, seen.values
    if planted.scores is not None:
        new = _of_tokens(planted.scores, words)
        keys = torch.cat([keys, _keys(new, mask[:, None], seen.tokens)], 2)
        scores, values = torch.cat([scores, new], 2), torch.cat([values, value], 2)
        if planted.k:
            keys, order = keys.topk(min(planted.k, keys.shape[2]), dim=2)
            scores, values = scores.gather(2, order), values.gather(2, order)
        else:
            keys, scores, values = _together(keys, scores, values)
    return AttentionState(
        peak,
        seen.mass * shrink + part.sum(2),
        seen.value * shrink + (part * value).sum(2),
        told,
        keys,
        scores,
        values,
        seen.total + (value * mask[:, None]).sum(2),
        seen.count + mask.sum(1, keepdim=True),
        seen.tokens + states.shape[1],
        not planted.k,
    )


def _together(keys: Tensor, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, L, T) as one (B, L, 1) that has the same part in a softmax with any others."""
    inside = keys > _LOWEST
    scores = scores.masked_fill(~inside, -torch.inf)
    peak = scores.amax(2, keepdim=True).nan_to_num(neginf=0)
    part = torch.exp(scores - peak)
    mass = part.sum(2, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return keys.amax(2, keepdim=True), peak + torch.log(mass), (part * values).sum(2, keepdim=True) / mass


def accumulated_logits(seen: AttentionState, decoder: LabelDecoder, literal_zero: bool = False) -> Tensor:
    """Logits (B, L) of what was read; the bias alone for a note without a token.

    literal_zero: as the paper writes it, tokens that the ranker does not keep have the score 0 before the softmax, and
    so some weight after it.
    """
    learned = seen.value / seen.mass.clamp(min=torch.finfo(torch.float32).tiny)
    total = decoder.bias.float() + learned + seen.static
    if not seen.keys.shape[2]:
        return total
    literal_zero = literal_zero and not seen.every
    inside = seen.keys > _LOWEST
    scores = seen.scores.float().masked_fill(~inside, -torch.inf)
    peak = scores.amax(2).clamp(min=0) if literal_zero else scores.amax(2).nan_to_num(neginf=0)
    part = torch.exp(scores - peak[..., None])
    mass, value = part.sum(2), (part * seen.values).sum(2)
    if literal_zero:
        others = torch.exp(-peak)
        mass = mass + others * (seen.count - inside.sum(2))
        value = value + others * (seen.total - (seen.values * inside).sum(2))
    return total + value / mass.clamp(min=torch.finfo(torch.float32).tiny)


def _of_tokens(told: Tensor, words: Tensor) -> Tensor:
    """What labels are told (L, W) about the words of tokens (B, T): (B, L, T)."""
    return told[:, words].movedim(0, 1).float()


@torch.no_grad()
def top_k_mask(scores: Tensor, mask: Tensor, k: int) -> Tensor:
    """True (..., T) at the k tokens with the highest scores, of equal ones at the first; k 0: at all; never at pads.

    scores: (..., T); mask: as wide, or one that is broadcast to it.
    """
    inside = mask.expand_as(scores)
    if not k or k >= scores.shape[-1]:
        return inside.clone()
    scores = scores.masked_fill(~inside, -torch.inf)
    last = scores.topk(k, dim=-1).values[..., -1:]
    above, same = scores > last, (scores == last) & inside
    return above | (same & (same.cumsum(-1, dtype=torch.int32) <= k - above.sum(-1, keepdim=True)))


@torch.no_grad()
def _keys(scores: Tensor, mask: Tensor, first: int) -> Tensor:
    """One whole number a token (..., T), larger for a higher score, and for the earlier of two equal ones."""
    bits = scores.detach().float().contiguous().view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # the order of floats as that of whole numbers
    place = torch.arange(scores.shape[-1], device=scores.device) + first
    keys = (ordered << 31) - place
    return keys.masked_fill(~mask, _LOWEST)


def planted_loss(
    states: Tensor,
    mask: Tensor,
    words: Tensor,
    decoder: LabelDecoder,
    planted: PlantedScores,
    targets: Tensor,
    *,
    chunk: int,
    literal_zero: bool = False,
) -> Tensor:
    """The mean binary cross entropy over notes x labels.

    states: (B, T, D); mask: (B, T), False at pads, which stand behind a note; words: (B, T), the columns of `planted`;
    targets: (B, L); chunk: notes whose attention is in memory at once.
    """
    told = (planted.static, planted.scores, planted.k, literal_zero)
    return _PlantedLoss.apply(
        states, mask, words, decoder.queries, decoder.weights, decoder.bias, targets, chunk, *told
    )


class _PlantedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, mask, words, queries, weights, bias, targets, chunk, static, scores, k, zero):
        wide, cells = states.shape[1], targets.numel()
        both = torch.cat([queries, weights]).to(states.dtype)  # (2L, D)
        # what a frozen part would not learn from is not computed
        d_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        d_scores = torch.zeros_like(scores) if scores is not None and ctx.needs_input_grad[9] else None
        d_both = torch.zeros(both.shape, device=both.device)
        d_bias = torch.zeros(len(bias), device=both.device)
        total = torch.zeros((), device=both.device)
        for first in range(0, len(states), chunk):
            part = slice(first, first + chunk)
            flat = states[part].reshape(-1, states.shape[2])
            products = (both @ flat.T).view(2, len(bias), -1, wide)
            told = (mask[part], words[part], bias, targets[part], static, scores, d_scores)
            loss, slopes = attend_(products, *told, k, zero, cells)
            total += loss
            d_bias += slopes.sum(1)
            given = products.view(len(both), -1)
            d_both += given @ flat
            if d_states is not None:
                d_states[part] = (given.T @ both).view(-1, *states.shape[1:])
        ctx.labels = len(bias)
        ctx.kinds = queries.dtype, weights.dtype, bias.dtype
        ctx.save_for_backward(d_states, d_both, d_bias, d_scores)
        return total / cells

    @staticmethod
    def backward(ctx, slope):
        d_states, d_both, d_bias, d_scores = (None if x is None else x * slope for x in ctx.saved_tensors)
        of_decoder = (d_both[: ctx.labels], d_both[ctx.labels :], d_bias)
        of_decoder = (x.to(kind) for x, kind in zip(of_decoder, ctx.kinds))
        return d_states, None, None, *of_decoder, None, None, None, d_scores, None, None


def attend_(
    products: Tensor,
    mask: Tensor,
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
    """The loss of a chunk, summed, and its derivatives by the logits (L, n), which are those of the loss over `cells`.

    products: (2, L, n, T) learned scores h . u and values h . w, in whose place their derivatives are put; d_scores:
    (L, W), to which those of the ranker's scores are added, None where they are not wanted.
    """
    told = (words, bias, targets, static, scores, d_scores, k, literal_zero, cells)
    if fused is not None and products.is_cuda and products.shape[3] <= fused.WIDEST:
        return fused.attend_(products, mask.sum(1), *told)
    return _attend_(products, mask, *told)


def _attend_(
    products, mask, words, bias, targets, static, scores, d_scores, k, literal_zero, cells
) -> tuple[Tensor, Tensor]:
    score, value = products[0].float(), products[1].float() * mask  # (L, n, T); nothing at pads
    learned = torch.softmax(score.masked_fill(~mask, -torch.inf), dim=2).nan_to_num()
    mean = (learned * value).sum(2, keepdim=True)
    logit = bias.float()[:, None] + mean[..., 0]
    weight = learned.clone()
    if static is not None:
        told = static[:, words].float() * mask
        logit = logit + (told * value).sum(2)
        weight += told
    if scores is not None:
        found = scores[:, words].float()
        kept = top_k_mask(found, mask, k)
        others = torch.zeros_like(found) if literal_zero else torch.full_like(found, -torch.inf)
        planted = torch.softmax(torch.where(kept, found, others).masked_fill(~mask, -torch.inf), dim=2).nan_to_num()
        middle = (planted * value).sum(2, keepdim=True)
        logit = logit + middle[..., 0]
        weight += planted
    wanted = targets.T
    slope = (torch.sigmoid(logit) - wanted) / cells  # (L, n)
    loss = (torch.nn.functional.softplus(logit) - wanted * logit).sum()
    products[0] = learned * (value - mean) * slope[..., None]
    products[1] = weight * slope[..., None]
    if d_scores is not None:
        moved = planted * (value - middle) * slope[..., None] * kept
        d_scores.index_add_(1, words.flatten(), moved.view(len(bias), -1).to(d_scores.dtype))
    return loss, slope


try:
    from nosology.attention import planted_kernels as fused
except ImportError:  # triton comes with the CUDA builds of torch alone
    fused = None  # type: ignore[assignment]

_TILE = 1 << 24  # numbers of a tile


def pair_scores(labels: Tensor, words: Tensor, weights: Tensor) -> Tensor:
    """Scores (L, W), the sums over k of weights_k relu(labels_lk + words_wk).

    labels: (L, K), words: (W, K), weights: (K,).
    """
    return _PairScores.apply(labels, words, weights)


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, labels: Tensor, words: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(labels, words, weights)
        if _fusable(labels):
            return fused.pair_scores(labels, words, weights)
        scores = labels.new_empty(len(labels), len(words))
        for rows, columns in _tiles(labels, words):
            hidden = (labels[rows, None] + words[None, columns]).relu_()
            scores[rows, columns] = hidden @ weights
        return scores

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        labels, words, weights = ctx.saved_tensors
        if _fusable(labels):
            return fused.pair_scores_backward(labels, words, weights, slope)
        # sums over many tiles, in full precision
        of_labels, of_words, of_weights = (torch.zeros_like(x, dtype=torch.float32) for x in (labels, words, weights))
        for rows, columns in _tiles(labels, words):
            hidden = labels[rows, None] + words[None, columns]
            here = slope[rows, columns].to(hidden.dtype)
            on = hidden > 0
            of_weights += torch.einsum("lw,lwk->k", here, hidden.relu_()).float()
            gate = on.to(hidden.dtype)
            of_labels[rows] += (torch.einsum("lw,lwk->lk", here, gate) * weights).float()
            of_words[columns] += (torch.einsum("lw,lwk->wk", here, gate) * weights).float()
        return of_labels.to(labels.dtype), of_words.to(words.dtype), of_weights.to(weights.dtype)


def _fusable(x: Tensor) -> bool:
    return fused is not None and x.is_cuda and x.dtype is torch.float32


def _tiles(labels: Tensor, words: Tensor) -> Iterator[tuple[slice, slice]]:
    """Parts of (L, W) whose sums (l, w, K) are no larger than a tile."""
    cells = max(1, _TILE // labels.shape[1])
    wide = max(1, min(len(words), cells // min(64, max(1, len(labels)))))
    high = max(1, cells // wide)
    for row in range(0, len(labels), high):
        for column in range(0, len(words), wide):
            yield slice(row, row + high), slice(column, column + wide)
