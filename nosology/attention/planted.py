"""Planted attention: what a label has learned to look at, what mutual information and a ranker tell it to (paper 003).

With states H (T, D), equation 7 and 8 are: logit_l = sum over tokens t of (A + S + P)_lt (h_t . w_l) + b_l, where
A = softmax over t of h_t . u_l (learned), S the mutual information of the token's word with the label (static), and
P = softmax over the k tokens that the ranker puts first (planted); the others have no weight at all. S and P belong to
words, not to places, so they come as one column a different word of the notes.

A note may come in windows. Everything that is needed of those before is in `Seen`, whose size does not depend on how
many they were, so that a note of any length is read to its end; windowed and whole give the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LOWEST = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class Decoder:
    """What a label knows: where it looks, what it makes of it."""

    queries: Tensor  # (L, D) u
    weights: Tensor  # (L, D) w
    bias: Tensor  # (L,)


@dataclass(frozen=True)
class Planted:
    """What a label is told about the different words of the notes; None: nothing."""

    static: Tensor | None  # (L, W) mutual information
    scores: Tensor | None  # (L, W) of the ranker
    k: int  # tokens that the ranker's attention keeps; 0: all


@dataclass(frozen=True)
class Seen:
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
    def nothing(notes: int, labels: int, k: int, like: Tensor) -> Seen:
        """Before the first token."""
        zero = like.new_zeros(notes, labels, dtype=torch.float32)
        none = torch.full((notes, labels, k), _LOWEST, dtype=torch.int64, device=like.device)
        empty = zero[..., None].expand(-1, -1, k).clone()
        return Seen(torch.full_like(zero, -torch.inf), zero, zero, zero, none, empty, empty, zero, zero[:, :1], 0)


def read(states: Tensor, mask: Tensor, words: Tensor, decoder: Decoder, planted: Planted, seen: Seen) -> Seen:
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
    return Seen(
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


def logits(seen: Seen, decoder: Decoder, literal_zero: bool = False) -> Tensor:
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
def kept_first(scores: Tensor, mask: Tensor, k: int) -> Tensor:
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
