"""The three heads of Xu and Dray (2025): MLP, DeepMLP, DeepResMLP. Note vector in, logits of codes out.

The forward pass is a pure function of its inputs, dropout included. So the sites of a federation can be trained one by
one or all at once with `torch.func.vmap`, with the same result.

A site of a federation trains with `train_epochs`. It uses the batches and learning rates of `training.trainer.fit`, but
no files, threads or processes, because a round takes seconds and a federation has thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.models.heads.feature_statistics import Scaler
from nosology.models.heads.heads_settings import HeadShape
from nosology.training.batch_plan import BatchPlan, derive_seed
from nosology.training.cuda_graphs import CudaGraphStep, adamw, run_epochs, sgd
from nosology.training.losses import Penalty, focal_loss
from nosology.training.recipe_settings import TrainerSettings


@dataclass(frozen=True)
class VectorBatch:
    """B notes as vectors, with their targets."""

    vectors: Tensor  # (B, D) float32, standardized
    targets: Tensor  # (B, L), 0 or 1
    seed: Tensor  # (), int64: of the dropout
    label_mask: Tensor | None = None  # (L,), 0 or 1: labels that the notes are coded with; None: all

    def to(self, device: torch.device | str) -> VectorBatch:
        """The batch on a device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


class HeadNet(nn.Module):
    """MLP, DeepMLP or DeepResMLP. A hidden layer is Linear, normalization (not in the MLP), ReLU, dropout."""

    def __init__(self, shape: HeadShape, dim: int, labels: int):
        super().__init__()
        self.shape = shape
        sizes = [dim, *shape.sizes]
        self.hidden = nn.ModuleList(_Layer(shape, *pair, number) for number, pair in enumerate(pairwise(sizes)))
        self.out = nn.Linear(sizes[-1], labels)

    def forward(self, batch: VectorBatch) -> Tensor:
        """The loss of a batch: the mean over notes and labels in the label mask."""
        logits = self.logits(batch.vectors, batch.seed if self.training else None)
        return hybrid_loss(logits, batch.targets, self.shape, batch.label_mask)

    def logits(self, vectors: Tensor, seed: Tensor | None = None) -> Tensor:
        """Logits (B, L) of vectors (B, D). seed: of the dropout; None: no dropout."""
        vectors = vectors.to(self.out.weight.dtype)
        for layer in self.hidden:
            vectors = layer(vectors, seed)
        return self.out(vectors)


class _Layer(nn.Module):
    """One hidden layer. The residual head adds its input, projected where the widths differ."""

    def __init__(self, shape: HeadShape, inputs: int, outputs: int, number: int):
        super().__init__()
        self.number, self.dropout = number, shape.dropout
        # Batch normalization cancels a bias. AdamW would still move it, by rounding errors.
        self.linear = nn.Linear(inputs, outputs, bias=shape.head == "mlp" or shape.norm != "batch")
        self.norm = None if shape.head == "mlp" else _NORMS[shape.norm](outputs)
        self.residual = shape.head == "res"
        self.shortcut = nn.Linear(inputs, outputs) if self.residual and inputs != outputs else None

    def forward(self, x: Tensor, seed: Tensor | None) -> Tensor:
        hidden = self.linear(x)
        hidden = torch.relu(hidden if self.norm is None else self.norm(hidden))
        if seed is not None and self.dropout:
            hidden = hidden * dropout_mask(hidden, seed, self.number, self.dropout)
        if not self.residual:
            return hidden
        return hidden + (x if self.shortcut is None else self.shortcut(x))


class BatchNorm(nn.Module):
    """Batch normalization without torch's batch counter, which cannot be averaged over sites.

    A batch of one note has no variance. It is normalized with the running statistics, as in evaluation.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, momentum: float = 0.1, epsilon: float = 1e-5):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.momentum, self.epsilon = momentum, epsilon

    def forward(self, x: Tensor) -> Tensor:
        use_batch = self.training and len(x) > 1
        statistics = self.running_mean, self.running_var
        return F.batch_norm(x, *statistics, self.weight, self.bias, use_batch, self.momentum, self.epsilon)


_NORMS = {"batch": BatchNorm, "layer": nn.LayerNorm}


def dropout_mask(x: Tensor, seed: Tensor, layer: int, dropout: float) -> Tensor:
    """The dropout mask of x (B, D), 0 or 1 / (1 - dropout): a function of seed, layer and position.

    A torch generator is no alternative: its numbers depend on the device and on earlier draws, and `vmap` has no
    generator per site. The hash is splitmix64; int64 products wrap around.
    """
    position = torch.arange(x.numel(), device=x.device).view(x.shape) + (layer << 40)
    mixed = (position + seed) * -7046029254386353131
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    uniform = ((mixed >> 33) & 0x7FFFFFFF).to(x.dtype) / 2**31
    return (uniform >= dropout).to(x.dtype) / (1 - dropout)


def hybrid_loss(logits: Tensor, targets: Tensor, shape: HeadShape, label_mask: Tensor | None = None) -> Tensor:
    """bce x BCE + (1 - bce) x focal, the mean over notes and labels in the mask; logits and targets (B, L).

    The focal loss is that of Xu and Dray (2025), see `focal_loss`.
    """
    cells = focal_loss(logits, targets.to(logits.dtype), shape.gamma, shape.alpha, shape.bce)
    if label_mask is None:
        return cells.mean()
    return (cells * label_mask).sum() / (len(cells) * label_mask.sum().clamp(min=1))


@dataclass(frozen=True)
class CodedVectors:
    """Embeddings (N, D) of notes and the codes of each note."""

    vectors: np.ndarray
    codes: list[tuple[Code, ...]]

    def subset(self, rows: np.ndarray) -> CodedVectors:
        """Those of the notes at `rows`."""
        return CodedVectors(self.vectors[rows], [self.codes[row] for row in rows])


@dataclass(frozen=True)
class VectorNotes:
    """N notes as tensors: vectors and targets."""

    vectors: Tensor  # (N, D) float32, standardized
    targets: Tensor  # (N, L) uint8, 0 or 1
    label_mask: Tensor | None = None  # (L,) float32, 0 or 1: labels that these notes are coded with; None: all

    def __len__(self) -> int:
        return len(self.vectors)

    def to(self, device: torch.device | str) -> VectorNotes:
        label_mask = None if self.label_mask is None else self.label_mask.to(device)
        return VectorNotes(self.vectors.to(device), self.targets.to(device), label_mask)

    def batch(self, rows: Tensor, seed: Tensor) -> VectorBatch:
        return VectorBatch(self.vectors[rows], self.targets[rows], seed, self.label_mask)


def make_vector_notes(
    vectors: np.ndarray, codes: Sequence[tuple[Code, ...]], scaler: Scaler, labels: LabelSpace
) -> VectorNotes:
    """Standardized vectors and targets of notes."""
    targets = labels.encode(codes).toarray().astype(np.uint8)
    return VectorNotes(torch.from_numpy(scaler(vectors)), torch.from_numpy(targets))


def build_head(shape: HeadShape, dim: int, labels: int, seed: int) -> HeadNet:
    """A head whose initial weights depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HeadNet(shape, dim, labels)


def make_plan(notes: int, settings: TrainerSettings, seed: int) -> BatchPlan:
    """The shuffled batches of a number of notes, all of one length."""
    return BatchPlan(np.ones(notes, np.int64), np.zeros(notes, np.int64), settings.batch, 8 * settings.batch, seed)


def compute_dtype(settings: TrainerSettings) -> torch.dtype:
    """The dtype of weights and gradients."""
    return torch.float64 if settings.precision == "fp64" else torch.float32


def draw_dropout_seed(rng: np.random.Generator) -> int:
    """The seed of the dropout of one step."""
    return int(rng.integers(2**62))


def dropout_seed(seed: int, epoch: int, step: int) -> int:
    """The dropout seed of a step, the same as in `training.trainer.fit`."""
    return draw_dropout_seed(np.random.default_rng(derive_seed("step", seed, epoch, step)))


def make_optimizer(net: nn.Module, settings: TrainerSettings, plain_sgd: bool = False) -> torch.optim.Optimizer:
    """AdamW, or SGD without momentum and weight decay."""
    parameters: list[Tensor] = list(net.parameters())
    if plain_sgd:
        return sgd(parameters, settings.learning_rate)
    return adamw(parameters, settings.learning_rate, settings.weight_decay)


def train_epochs(
    net: nn.Module,
    notes: VectorNotes,
    settings: TrainerSettings,
    epochs: range,
    *,
    seed: int,
    optimizer: torch.optim.Optimizer | None = None,
    penalty: Penalty | None = None,
) -> float:
    """The mean training loss per note; trains the net in place on the device of the notes.

    epochs: which of the `settings.epochs` to run; learning rate and batch order depend on them.
    optimizer: continues with its state; None: a new AdamW.
    """
    device = notes.vectors.device
    plan = make_plan(len(notes), settings, seed)
    optimizer = optimizer or make_optimizer(net, settings)
    total = torch.zeros((), device=device)
    net.train()

    def step(rows: Tensor, seed: Tensor) -> None:
        loss = net(notes.batch(rows, seed))
        optimizer.zero_grad(set_to_none=True)
        (loss if penalty is None else loss + penalty(net)).backward()
        if settings.clip:
            nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
        optimizer.step()
        total.add_(loss.detach() * len(rows))

    graphed_step = CudaGraphStep(step, len(plan) * len(epochs), device)

    def load_epoch(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        planned = plan.epoch(epoch)
        order = torch.from_numpy(planned.notes).to(device)
        seeds = torch.tensor([dropout_seed(seed, epoch, number) for number in range(len(plan))], device=device)
        for number in range(len(plan)):
            first, last = planned.bounds[planned.order[number] : planned.order[number] + 2]
            yield order[first:last], seeds[number]

    run_epochs(optimizer, settings, epochs, len(plan), load_epoch, lambda batch: graphed_step(*batch))
    return float(total) / max(1, len(notes) * len(epochs))
