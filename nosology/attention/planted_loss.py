"""The loss of planted attention, some notes at a time: computed and differentiated at once.

The weights of labels over tokens (notes x labels x tokens, three of them) never outlive their chunk of notes, and
nothing is computed twice. The result and its derivatives are those of `planted.read` and `planted.logits` with the mean
binary cross entropy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nosology.attention.planted import Decoder, Planted, kept_first


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

    states: (B, T, D); mask: (B, T), False at pads; words: (B, T), the columns of `planted`; targets: (B, L).
    """
    told = (planted.static, planted.scores, planted.k, literal_zero)
    return _Loss.apply(states, mask, words, decoder.queries, decoder.weights, decoder.bias, targets, chunk, *told)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, mask, words, queries, weights, bias, targets, chunk, static, scores, k, zero):
        work = _Work(states, queries, weights, bias, scores)
        total = torch.zeros((), device=states.device)
        cells = targets.numel()
        for first in range(0, len(states), chunk):
            part = slice(first, first + chunk)
            total += work.chunk(part, mask[part], words[part], targets[part].T, static, k, zero, cells)
        given = (work.d_states, work.d_queries, work.d_weights, work.d_bias, work.d_scores)
        ctx.save_for_backward(*(x for x in given if x is not None))
        ctx.ranked = scores is not None
        return total / cells

    @staticmethod
    def backward(ctx, slope):
        d_states, d_queries, d_weights, d_bias, *rest = (x * slope for x in ctx.saved_tensors)
        d_scores = rest[0] if ctx.ranked else None
        return d_states, None, None, d_queries, d_weights, d_bias, None, None, None, d_scores, None, None


class _Work:
    """The derivatives as they add up over chunks."""

    def __init__(self, states: Tensor, queries: Tensor, weights: Tensor, bias: Tensor, scores: Tensor | None):
        self.states, self.queries, self.weights, self.bias, self.scores = states, queries, weights, bias, scores
        self.d_states = torch.empty_like(states)
        self.d_queries, self.d_weights = torch.zeros_like(queries), torch.zeros_like(weights)
        self.d_bias = torch.zeros_like(bias)
        self.d_scores = None if scores is None else torch.zeros_like(scores)

    def chunk(self, part: slice, mask: Tensor, words: Tensor, targets: Tensor, static, k: int, zero: bool, cells: int):
        """The loss, summed, of a chunk of notes; targets: (L, n)."""
        states = self.states[part]
        notes, tokens, size = states.shape
        flat = states.reshape(-1, size)
        shape = (len(self.bias), notes, tokens)
        score = (self.queries.to(flat.dtype) @ flat.T).view(shape).float()
        value = (self.weights.to(flat.dtype) @ flat.T).view(shape).float() * mask  # (L, n, T); nothing at pads
        learned = torch.softmax(score.masked_fill(~mask, -torch.inf), dim=2).nan_to_num()
        mean = (learned * value).sum(2, keepdim=True)
        logit = self.bias.float()[:, None] + mean[..., 0]
        weight = learned.clone()
        if static is not None:
            told = static[:, words].float() * mask
            logit = logit + (told * value).sum(2)
            weight += told
        ranked = None
        if self.scores is not None:
            ranked = self._ranked(words, mask, k, zero)
            planted = (ranked * value).sum(2, keepdim=True)
            logit = logit + planted[..., 0]
            weight += ranked
        slope = (torch.sigmoid(logit) - targets) / cells  # (L, n)
        loss = (torch.nn.functional.softplus(logit) - targets * logit).sum()
        d_score = (learned * (value - mean) * slope[..., None]).view(len(self.bias), -1).to(flat.dtype)
        d_value = (weight * mask * slope[..., None]).view(len(self.bias), -1).to(flat.dtype)
        if ranked is not None:
            moved = ranked * (value - planted) * slope[..., None]
            if zero:
                moved = moved * self._kept
            self.d_scores.index_add_(1, words.flatten(), moved.view(len(self.bias), -1).to(self.d_scores.dtype))
        self.d_bias += slope.sum(1)
        self.d_queries += (d_score @ flat).to(self.queries.dtype)
        self.d_weights += (d_value @ flat).to(self.weights.dtype)
        back = d_score.T @ self.queries.to(flat.dtype) + d_value.T @ self.weights.to(flat.dtype)
        self.d_states[part] = back.view(states.shape)
        return loss

    def _ranked(self, words: Tensor, mask: Tensor, k: int, zero: bool) -> Tensor:
        """The ranker's attention (L, n, T)."""
        scores = self.scores[:, words].float()
        self._kept = kept_first(scores, mask, k)
        others = torch.zeros_like(scores) if zero else torch.full_like(scores, -torch.inf)
        chosen = torch.where(self._kept, scores, others).masked_fill(~mask, -torch.inf)
        return torch.softmax(chosen, dim=2).nan_to_num()
