"""LambdaRank: gradients that move telling words up a code's list (Burges 2010; paper 003, appendix A.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def lambdas(scores: Tensor, relevance: Tensor, k: int, sigma: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """The gradient (B, N) of the loss by each score, with the swaps' gains held fixed.

    scores, relevance: (B, N) of the words of B lists; mask: (B, N), False where a list has no word. For a pair with
    relevance_i > relevance_j, lambda_ij = -sigma / (1 + exp(sigma (s_i - s_j))) |delta nDCG@k|, which pulls i up and j
    down (a descent adds them with a minus). delta nDCG@k: what swapping both in the present order would change.
    """
    push = _pairs(scores, relevance, k, sigma, mask)
    return push.sum(2) - push.sum(1)


def lambda_loss(scores: Tensor, relevance: Tensor, k: int, sigma: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """The lambda-weighted pairwise loss, a mean over lists, whose gradient is that of `lambdas`.

    sum over pairs of |delta nDCG@k| log(1 + exp(-sigma (s_i - s_j))).
    """
    gain = swap_gains(scores, relevance, k, mask) * _above(relevance, mask)
    margin = scores[:, :, None] - scores[:, None, :]
    return (gain * torch.nn.functional.softplus(-sigma * margin)).sum((1, 2)).mean()


def _pairs(scores: Tensor, relevance: Tensor, k: int, sigma: float, mask: Tensor | None) -> Tensor:
    """lambda_ij (B, N, N), 0 where i is not more relevant than j."""
    gain = swap_gains(scores, relevance, k, mask) * _above(relevance, mask)
    margin = scores[:, :, None] - scores[:, None, :]
    return -sigma * torch.sigmoid(-sigma * margin) * gain


def _above(relevance: Tensor, mask: Tensor | None) -> Tensor:
    """1 (B, N, N) where both are words and the first is the more relevant one."""
    more = relevance[:, :, None] > relevance[:, None, :]
    return (more if mask is None else more & mask[:, :, None] & mask[:, None, :]).to(relevance.dtype)


@torch.no_grad()
def swap_gains(scores: Tensor, relevance: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """How much nDCG@k changes, without its sign, if two words of a list change places (B, N, N)."""
    inside = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    gains, discount = _gains(relevance, inside), _discounts(ranks(scores, inside), k)
    best = _dcg(gains, _discounts(ranks(relevance, inside), k)).clamp(min=torch.finfo(scores.dtype).tiny)
    swapped = (gains[:, :, None] - gains[:, None, :]) * (discount[:, :, None] - discount[:, None, :])
    return swapped.abs() / best[:, None, None]


@torch.no_grad()
def ndcg(scores: Tensor, relevance: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """nDCG@k (B,) with gains 2^relevance - 1; 0 for a list without a relevant word."""
    inside = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    gains = _gains(relevance, inside)
    best = _dcg(gains, _discounts(ranks(relevance, inside), k))
    found = _dcg(gains, _discounts(ranks(scores, inside), k))
    return torch.where(best > 0, found / best.clamp(min=torch.finfo(scores.dtype).tiny), torch.zeros_like(best))


def ranks(scores: Tensor, inside: Tensor) -> Tensor:
    """The place (B, N) of each word in the order of the scores, from 0; of equal ones the first comes first."""
    order = scores.masked_fill(~inside, -torch.inf).argsort(dim=1, descending=True, stable=True)
    place = torch.empty_like(order)
    return place.scatter_(1, order, torch.arange(scores.shape[1], device=scores.device).expand_as(order).contiguous())


def _gains(relevance: Tensor, inside: Tensor) -> Tensor:
    return (torch.exp2(relevance) - 1) * inside


def _discounts(place: Tensor, k: int) -> Tensor:
    """1 / log2(rank + 1), ranks from 1; nothing from rank k + 1 on."""
    return (1 / torch.log2(place.to(torch.float64) + 2)).masked_fill(place >= k, 0).to(torch.get_default_dtype())


def _dcg(gains: Tensor, discounts: Tensor) -> Tensor:
    return (gains * discounts).sum(1)
