"""Losses per cell (note x label), the class weights of the weighted loss, and the bias that a loss gives to logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

_RANGE = 60.0  # of the logits that `LossBias.add` finds
_MAX_LOGIT = 30.0  # beyond it the bias is constant; exp(-logit) stays finite in float32

Penalty = Callable[[nn.Module], Tensor]  # of a net, added to the loss of every batch


def focal_loss(logits: Tensor, targets: Tensor, gamma: float, alpha: float, bce_share: float = 0.0) -> Tensor:
    """bce_share x BCE + (1 - bce_share) x focal loss of each cell (B, L); logits, targets: (B, L).

    focal loss = -alpha (1 - p)^gamma y log p - (1 - alpha) p^gamma (1 - y) log(1 - p), with p = sigmoid(logit).
    """
    bce = binary_cross_entropy_with_logits(logits, targets, reduction="none")
    if bce_share >= 1:
        return bce
    error = (torch.sigmoid(logits) - targets).abs()  # 1 - probability of the true answer
    error = error.clamp(min=torch.finfo(error.dtype).tiny)  # for gamma < 1 the gradient at 0 is infinite
    weight = alpha * targets + (1 - alpha) * (1 - targets)
    return bce * (bce_share + (1 - bce_share) * weight * error**gamma)


def weighted_bce(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """-w y log p - (1 - y) log(1 - p) of each cell (B, L); weights: (L,)."""
    return binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="none")


def class_weights(positives: Tensor, notes: int | Tensor, max_weight: float) -> Tensor:
    """Negative notes per positive note of each label (L,), clipped to [1, max_weight].

    positives: (L,) notes with the label. notes: the number of notes, or (L,) of those whose codes are known.
    """
    return ((notes - positives) / positives.clamp(min=1)).clamp(1.0, max_weight).float()


@dataclass(frozen=True)
class LossBias:
    """The bias of logits that were trained with focal x focal loss + bce x weighted cross-entropy.

    Such a net does not return the logit of P(y = 1 | x). At the minimum of the expected loss, q l1'(z) + (1 - q) l0'(z)
    = 0, where q is that probability and l1', l0' are the derivatives of the loss of a positive and of a negative cell.
    So logit(q) = log l0'(z) - log -l1'(z) is known for each logit z. For cross-entropy with class weight w it is
    z - log w. If train notes were resampled, q is the probability in the resampled notes; `shift` is the difference
    between the log odds of a label there and in the original notes.
    """

    bce: float
    weights: Tensor  # (L,) class weights
    focal: float = 0.0
    gamma: float = 2.0
    alpha: float = 0.25
    shift: Tensor | float = 0.0  # (L,) of resampled notes

    def remove(self, logits: Tensor) -> Tensor:
        """The logits of probabilities, for logits (..., L) of a net; increasing in each logit."""
        bounded = logits.clamp(-_MAX_LOGIT, _MAX_LOGIT)
        yes, no = logsigmoid(bounded), logsigmoid(-bounded)
        # l0' = p x negative, -l1' = (1 - p) x positive; logit(p) is the logit itself
        negative, positive = torch.full_like(logits, self.bce), self.bce * self.weights.to(logits.dtype)
        if self.focal:
            scale = self.focal * (1 - self.alpha), self.focal * self.alpha
            negative = negative + scale[0] * (self.gamma * yes).exp() * (1 - self.gamma * (no - yes).exp() * no)
            positive = positive + scale[1] * (self.gamma * no).exp() * (1 - self.gamma * (yes - no).exp() * yes)
        return logits + negative.log() - positive.log() - self.shift

    def add(self, logits: Tensor, steps: int = 60) -> Tensor:
        """The inverse of `remove`, by bisection: the logits of a net for logits (..., L) of probabilities."""
        wide = logits.double()
        low, high = torch.full_like(wide, -_RANGE), torch.full_like(wide, _RANGE)
        for _ in range(steps):
            middle = (low + high) / 2
            is_below = self.remove(middle) < wide
            low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
        return ((low + high) / 2).to(logits.dtype)


def log_odds_shift(counts: Tensor, notes: int | Tensor, added_counts: Tensor, added_notes: int | Tensor) -> Tensor:
    """The change of the log odds (L,) of labels by notes that were added to the train notes.

    counts, added_counts: (L,) notes with each label. notes, added_notes: as in `class_weights`. Half a note is added to
    each count, so that labels of no note or of all notes have odds.
    """
    before = torch.log((counts + 0.5) / (notes - counts + 0.5))
    counts, notes = counts + added_counts, notes + added_notes
    return torch.log((counts + 0.5) / (notes - counts + 0.5)) - before
