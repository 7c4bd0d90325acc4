"""LambdaRank: the loss of rank scores, and nDCG."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lambda_loss(scores: Tensor, relevance: Tensor, k: int, graded: bool = True) -> Tensor:
    """The LambdaRank loss of scores and relevance (B, N), a mean over lists.

    It is the sum over pairs with relevance_i > relevance_j of |delta nDCG@k| log(1 + exp(s_j - s_i)), where the change
    of nDCG@k by swapping i and j is treated as a constant. graded: see `ndcg`.
    """
    return _LambdaLoss.apply(scores, relevance, k, graded)


class _LambdaLoss(torch.autograd.Function):
    """The loss with its gradient by the scores, in one pass over the pairs."""

    @staticmethod
    def forward(ctx: Any, scores, relevance, k, graded):
        pairs = swap_gains(scores, relevance, k, graded, ordered=True)
        log_odds = torch.nn.functional.logsigmoid(scores[:, :, None] - scores[:, None, :])
        total = -(pairs * log_odds).sum()
        pairs *= log_odds.expm1_()  # the gradient by the margin: pairs x (sigmoid(margin) - 1)
        gradient = pairs.sum(2) - pairs.sum(1)
        ctx.save_for_backward(gradient / len(scores))
        return total / len(scores)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor):
        return ctx.saved_tensors[0] * grad_outputs[0], None, None, None


@torch.no_grad()
def swap_gains(scores: Tensor, relevance: Tensor, k: int, graded: bool = True, *, ordered: bool = False) -> Tensor:
    """The absolute change of nDCG@k if two words of a list swap places (B, N, N). graded: see `ndcg`.

    ordered: 0 for pairs whose first word is not more relevant than the second.
    """
    gains, discount = torch.exp2(relevance) - float(graded), _discounts(scores, k)
    best = (gains * _discounts(relevance, k)).sum(1).clamp(min=torch.finfo(scores.dtype).tiny)
    gains = gains / best[:, None]
    gained = gains[:, :, None] - gains[:, None, :]
    gained = gained.clamp_(min=0) if ordered else gained.abs_()
    return gained.mul_((discount[:, :, None] - discount[:, None, :]).abs_())


@torch.no_grad()
def ndcg(scores: Tensor, relevance: Tensor, k: int, graded: bool = True) -> Tensor:
    """nDCG@k (B,) with gains 2^relevance - 1; 0 for a list without a relevant word.

    graded: False for gains 2^relevance, as in the paper. A word without relevance then has the gain 1.
    """
    gains = torch.exp2(relevance) - float(graded)
    best, reached = ((gains * _discounts(values, k)).sum(1) for values in (relevance, scores))
    return reached / best.clamp(min=torch.finfo(scores.dtype).tiny)


def _discounts(scores: Tensor, k: int) -> Tensor:
    """The discount 1 / log2(rank + 1) of each word (B, N), 0 after rank k; of equal scores the first ranks higher."""
    place = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)  # ranks from 0
    return (1 / torch.log2(place.to(torch.float64) + 2)).masked_fill(place >= k, 0).to(torch.get_default_dtype())
