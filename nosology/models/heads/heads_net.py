"""The three heads of paper 000: from the vector of a note to the logits of its codes.

Everything here is a function of its inputs alone, dropout included, so that the sites of a federation can be trained
one by one or all in one program (`torch.func.vmap`) with the same result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nosology.models.heads.heads_settings import HeadShape
from nosology.training.losses import focal_loss


@dataclass(frozen=True)
class VectorBatch:
    """B notes as vectors, with what is asked about them."""

    vectors: Tensor  # (B, D) float32, standardised
    targets: Tensor  # (B, L), 0 or 1
    seed: Tensor  # (), int64: of the dropout
    known: Tensor | None = None  # (L,), 0 or 1: codes that the notes are coded with; None: all

    def to(self, device: torch.device | str) -> VectorBatch:
        """The batch on a device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


class HeadNet(nn.Module):
    """MLP, DeepMLP or DeepResMLP. All hidden layers are Linear, normalisation (not in the MLP), ReLU, dropout."""

    def __init__(self, shape: HeadShape, dim: int, labels: int):
        super().__init__()
        self.shape = shape
        sizes = [dim, *shape.sizes]
        self.hidden = nn.ModuleList(_Layer(shape, *pair, number) for number, pair in enumerate(pairwise(sizes)))
        self.out = nn.Linear(sizes[-1], labels)

    def forward(self, batch: VectorBatch) -> Tensor:
        """The loss of a batch: the mean over notes and known codes."""
        logits = self.logits(batch.vectors, batch.seed if self.training else None)
        return hybrid_loss(logits, batch.targets, self.shape, batch.known)

    def logits(self, vectors: Tensor, seed: Tensor | None = None) -> Tensor:
        """Logits (B, L) of vectors (B, D); seed: of the dropout, None for none."""
        vectors = vectors.to(self.out.weight.dtype)
        for layer in self.hidden:
            vectors = layer(vectors, seed)
        return self.out(vectors)


class _Layer(nn.Module):
    """One hidden layer; in the residual head its input is added, through a matrix where the sizes differ."""

    def __init__(self, shape: HeadShape, inputs: int, outputs: int, number: int):
        super().__init__()
        self.number, self.dropout = number, shape.dropout
        # Batch normalisation takes a bias away again; AdamW would move it all the same, by rounding errors.
        self.linear = nn.Linear(inputs, outputs, bias=shape.head == "mlp" or shape.norm != "batch")
        self.norm = None if shape.head == "mlp" else _NORMS[shape.norm](outputs)
        self.passes = shape.head == "res"
        self.shortcut = nn.Linear(inputs, outputs) if self.passes and inputs != outputs else None

    def forward(self, x: Tensor, seed: Tensor | None) -> Tensor:
        made = self.linear(x)
        made = torch.relu(made if self.norm is None else self.norm(made))
        if seed is not None and self.dropout:
            made = made * kept(made, seed, self.number, self.dropout)
        if not self.passes:
            return made
        return made + (x if self.shortcut is None else self.shortcut(x))


class BatchNorm(nn.Module):
    """Batch normalisation without torch's counter of batches, which no mean over sites makes sense of.

    A batch of one note has no variance; it is normalised by the running statistics, as in evaluation.
    """

    def __init__(self, features: int, momentum: float = 0.1, epsilon: float = 1e-5):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.momentum, self.epsilon = momentum, epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalised x (B, D)."""
        learns = self.training and len(x) > 1
        statistics = self.running_mean, self.running_var
        return F.batch_norm(x, *statistics, self.weight, self.bias, learns, self.momentum, self.epsilon)


_NORMS = {"batch": BatchNorm, "layer": nn.LayerNorm}


def kept(x: Tensor, seed: Tensor, layer: int, dropout: float) -> Tensor:
    """1 / (1 - dropout) where a value of x (B, D) is kept, 0 where it is dropped: decided by seed, layer and place.

    A generator would not do: its numbers depend on the device and on what else is drawn, and `vmap` has no generator a
    site. The numbers are mixed as in splitmix64; int64 products wrap around.
    """
    place = torch.arange(x.numel(), device=x.device).view(x.shape) + (layer << 40)
    mixed = (place + seed) * -7046029254386353131
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    chance = ((mixed >> 33) & 0x7FFFFFFF).to(x.dtype) / 2**31
    return (chance >= dropout).to(x.dtype) / (1 - dropout)


def hybrid_loss(logits: Tensor, targets: Tensor, shape: HeadShape, known: Tensor | None = None) -> Tensor:
    """bce x BCE + (1 - bce) x focal, the mean over notes and known codes; logits and targets: (B, L).

    The focal loss is that of Xu and Dray (2025), see `focal_loss`.
    """
    cells = focal_loss(logits, targets.to(logits.dtype), shape.gamma, shape.alpha, shape.bce)
    if known is None:
        return cells.mean()
    return (cells * known).sum() / (len(cells) * known.sum().clamp(min=1))
