"""Focal and class-weighted losses of paper 002, cell by cell."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def focal_cells(logits: Tensor, targets: Tensor, gamma: float, alpha: float) -> Tensor:
    """-alpha (1 - p)^gamma y log p - (1 - alpha) p^gamma (1 - y) log(1 - p) of each cell; logits, targets: (B, L)."""
    entropy = binary_cross_entropy_with_logits(logits, targets, reduction="none")
    wrong = (torch.sigmoid(logits) - targets).abs()  # 1 - p of the true answer
    return (alpha * targets + (1 - alpha) * (1 - targets)) * wrong**gamma * entropy


def weighted_cells(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """-w y log p - (1 - y) log(1 - p) of each cell; weights: (L,)."""
    return binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="none")


def class_weights(positives: Tensor, notes: int, most: float) -> Tensor:
    """Notes without the code for each note with it (L,), at least 1 and at most `most`; positives: (L,) of train."""
    return ((notes - positives) / positives.clamp(min=1)).clamp(1.0, most).float()
