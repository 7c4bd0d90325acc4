"""Scores of all pairs of labels and words by a network with two layers: the ranker of PLANT (Saha Roy et al. 2024).

Shapes: L labels, W different words, K features of the ranker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nosology.attention import kernels

_TILE = 1 << 24  # values of a tile of pair features


def pair_scores(labels: Tensor, words: Tensor, weights: Tensor) -> Tensor:
    """Scores (L, W) of all pairs of labels and words: the sums over k of weights_k relu(labels_lk + words_wk).

    This is a network with two layers, v . relu(M [label ; word] + c): its first layer is the sum of a label's part (L,
    K) and a word's part (W, K). The features (L, W, K) of pairs are formed tile by tile, again in the backward pass.
    """
    return _PairScores.apply(labels, words, weights)


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, labels: Tensor, words: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(labels, words, weights)
        if _use_fused(labels):
            return kernels.pair_scores(labels, words, weights)
        scores = labels.new_empty(len(labels), len(words))
        for rows, columns in _tiles(labels, words):
            hidden = (labels[rows, None] + words[None, columns]).relu_()
            scores[rows, columns] = hidden @ weights
        return scores

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        labels, words, weights = ctx.saved_tensors
        gradient = grad_outputs[0]
        if _use_fused(labels):
            return kernels.pair_scores_backward(labels, words, weights, gradient)
        # Sums over many tiles, in float32.
        d_labels, d_words, d_weights = (torch.zeros_like(x, dtype=torch.float32) for x in (labels, words, weights))
        for rows, columns in _tiles(labels, words):
            hidden = labels[rows, None] + words[None, columns]
            tile = gradient[rows, columns].to(hidden.dtype)
            active = (hidden > 0).to(hidden.dtype)
            d_weights += torch.einsum("lw,lwk->k", tile, hidden.relu_()).float()
            d_labels[rows] += (torch.einsum("lw,lwk->lk", tile, active) * weights).float()
            d_words[columns] += (torch.einsum("lw,lwk->wk", tile, active) * weights).float()
        return d_labels.to(labels.dtype), d_words.to(words.dtype), d_weights.to(weights.dtype)


def _use_fused(x: Tensor) -> bool:
    return kernels.AVAILABLE and x.is_cuda and x.dtype is torch.float32


def _tiles(labels: Tensor, words: Tensor) -> Iterator[tuple[slice, slice]]:
    """Tiles of (L, W) whose features (l, w, K) have at most _TILE values."""
    cells = max(1, _TILE // labels.shape[1])
    width = max(1, min(len(words), cells // min(64, max(1, len(labels)))))
    height = max(1, cells // width)
    for row in range(0, len(labels), height):
        for column in range(0, len(words), width):
            yield slice(row, row + height), slice(column, column + width)
