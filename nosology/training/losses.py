"""Losses per cell (note x label), and the class weights of the weighted loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def focal_loss(logits: Tensor, targets: Tensor, gamma: float, alpha: float, bce_share: float = 0.0) -> Tensor:
    """bce_share x BCE + (1 - bce_share) x focal loss of each cell (B, L); logits, targets: (B, L).

    focal loss = -alpha (1 - p)^gamma y log p - (1 - alpha) p^gamma (1 - y) log(1 - p), with p = sigmoid(logit).
    """
    bce = binary_cross_entropy_with_logits(logits, targets, reduction="none")
    if bce_share >= 1:
        return bce
    error = (torch.sigmoid(logits) - targets).abs()  # 1 - probability of the true answer
    weight = alpha * targets + (1 - alpha) * (1 - targets)
    return bce * (bce_share + (1 - bce_share) * weight * error**gamma)


def weighted_bce(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """-w y log p - (1 - y) log(1 - p) of each cell (B, L); weights: (L,)."""
    return binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="none")


def class_weights(positives: Tensor, notes: int, max_weight: float) -> Tensor:
    """Negative notes per positive note of each label (L,), clipped to [1, max_weight]; positives: (L,) counts."""
    return ((notes - positives) / positives.clamp(min=1)).clamp(1.0, max_weight).float()
