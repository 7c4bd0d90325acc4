"""Notes as embedding vectors: standardization, and the training loop of heads over vectors in memory.

A site of a federation trains with `train_epochs`. It uses the batches and learning rates of `training.trainer.fit`, but
no files, threads or processes, because a round takes seconds and a federation has thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nosology.core import Code, DataError
from nosology.core.label_space import LabelSpace
from nosology.models.heads.heads_net import HeadNet, VectorBatch
from nosology.models.heads.heads_settings import HeadShape
from nosology.training.batch_plan import BatchPlan, derive_seed
from nosology.training.cuda_graphs import CudaGraphStep, adamw, run_epochs, sgd
from nosology.training.recipe_settings import TrainerSettings

Penalty = Callable[[nn.Module], Tensor]  # added to the loss of every batch


@dataclass(frozen=True)
class CodedVectors:
    """Embeddings (N, D) of notes and the codes of each note."""

    vectors: np.ndarray
    codes: list[tuple[Code, ...]]


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Count, sum and sum of squares of vectors, float64. The statistics of several sites are added with +."""

    count: int
    total: np.ndarray  # (D,)
    squares: np.ndarray  # (D,)

    @staticmethod
    def of(vectors: np.ndarray) -> FeatureStatistics:
        """The statistics of vectors (N, D)."""
        wide = np.asarray(vectors, dtype=np.float64)
        return FeatureStatistics(len(wide), wide.sum(0), np.square(wide).sum(0))

    def __add__(self, other: FeatureStatistics) -> FeatureStatistics:
        if self.total.shape != other.total.shape:
            raise DataError(f"vectors must have the same width; got {len(self.total)} and {len(other.total)}")
        return FeatureStatistics(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def scaler(self) -> Scaler:
        """The scaler of these vectors. A constant feature has scale 1."""
        if self.count < 1:
            raise DataError("a scaler needs at least one vector; got none")
        mean = self.total / self.count
        variance = np.maximum(self.squares / self.count - mean**2, 0.0)
        epsilon = np.finfo(np.float64).eps
        constant = variance <= self.count * epsilon * np.maximum(variance, mean**2)
        return Scaler(mean, np.where(constant, 1.0, np.sqrt(variance)))


@dataclass(frozen=True, eq=False)
class Scaler:
    """(vector - mean) / scale, as scikit-learn's StandardScaler."""

    mean: np.ndarray  # (D,) float64
    scale: np.ndarray  # (D,) float64

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Standardized vectors (N, D), float32."""
        return ((vectors - self.mean) / self.scale).astype(np.float32)


@dataclass(frozen=True)
class VectorNotes:
    """N notes as tensors: vectors and targets."""

    vectors: Tensor  # (N, D) float32, standardized
    targets: Tensor  # (N, L) uint8, 0 or 1
    label_mask: Tensor | None = None  # (L,) float32, 0 or 1: labels that these notes are coded with; None: all

    def __len__(self) -> int:
        return len(self.vectors)

    def to(self, device: torch.device | str) -> VectorNotes:
        """The notes on a device."""
        label_mask = None if self.label_mask is None else self.label_mask.to(device)
        return VectorNotes(self.vectors.to(device), self.targets.to(device), label_mask)

    def batch(self, rows: Tensor, seed: Tensor) -> VectorBatch:
        """The batch of rows (B,)."""
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
