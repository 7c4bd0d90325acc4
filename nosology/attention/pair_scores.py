"""Scores of every label with every word by a net of two layers, without its features ever being in memory.

f(l, t) = v . relu(M [label_l ; word_t] + c). The first layer is a sum of a label's part and a word's part, so that only
(L, K) and (W, K) are kept; their sums (L, W, K) are formed tile by tile, and formed again for the derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

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
