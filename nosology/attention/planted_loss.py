"""The loss of planted attention, some notes at a time: computed and differentiated at once.

The weights of labels over tokens (labels x notes x tokens) never outlive their chunk of notes, and nothing is computed
twice: three matrix products a chunk, and one pass between the first and the others. The result and its derivatives are
those of `planted.read` and `planted.logits` with the mean binary cross entropy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nosology.attention.planted import Decoder, Planted, kept_first

try:
    from nosology.attention import planted_kernels as fused
except ImportError:  # triton comes with the CUDA builds of torch alone
    fused = None  # type: ignore[assignment]


def planted_loss(
    states: Tensor,
    mask: Tensor,
    words: Tensor,
    decoder: Decoder,
    planted: Planted,
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
    return _Loss.apply(states, mask, words, decoder.queries, decoder.weights, decoder.bias, targets, chunk, *told)


class _Loss(torch.autograd.Function):
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
        kept = kept_first(found, mask, k)
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
