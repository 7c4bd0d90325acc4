"""The light loop over vectors that are in memory: what a hospital does in a round, and what heads need.

It uses the batches (`BatchPlan`) and learning rates (`LearningRateSchedule`) of `trainer.fit`, but no files, threads or
processes: a federated round lasts seconds and there are thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nosology.models.heads.heads_net import VectorBatch
from nosology.training.batch_plan import BatchPlan, derive_seed
from nosology.training.cuda_graphs import CudaGraphStep, adamw, set_learning_rate, sgd
from nosology.training.recipe_settings import LearningRateSchedule, TrainerSettings, resolve_schedule

Penalty = Callable[[nn.Module], Tensor]  # is added to the loss of every batch


@dataclass(frozen=True)
class VectorNotes:
    """N notes as vectors, with their codes."""

    vectors: Tensor  # (N, D) float32, standardised
    targets: Tensor  # (N, L) uint8, 0 or 1
    known: Tensor | None = None  # (L,) float32, 0 or 1: codes that these notes are coded with; None: all

    def __len__(self) -> int:
        return len(self.vectors)

    def to(self, device: torch.device | str) -> VectorNotes:
        """The notes on a device."""
        known = None if self.known is None else self.known.to(device)
        return VectorNotes(self.vectors.to(device), self.targets.to(device), known)

    def batch(self, rows: Tensor, seed: Tensor) -> VectorBatch:
        """The batch of some rows (B,)."""
        return VectorBatch(self.vectors[rows], self.targets[rows], seed, self.known)


def plan_of(notes: int, settings: TrainerSettings, seed: int) -> BatchPlan:
    """The batches of so many notes: all of one length, so shuffled and cut."""
    return BatchPlan(np.ones(notes, np.int64), np.zeros(notes, np.int64), settings.batch, 8 * settings.batch, seed)


def working_type(settings: TrainerSettings) -> torch.dtype:
    """The type of the numbers that are computed with."""
    return torch.float64 if settings.precision == "fp64" else torch.float32


def draw_seed(rng: np.random.Generator) -> int:
    """The seed of a step's dropout, from the step's own generator."""
    return int(rng.integers(2**62))


def dropout_seed(seed: int, epoch: int, step: int) -> int:
    """The same for a step that is known by its numbers, as the feed of `loop.fit` makes its generator."""
    return draw_seed(np.random.default_rng(derive_seed("step", seed, epoch, step)))


def optimizer_of(net: nn.Module, settings: TrainerSettings, plain: bool = False) -> torch.optim.Optimizer:
    """The optimiser of a net's parameters: AdamW, or plain descent, which keeps nothing."""
    parameters = list(net.parameters())
    if plain:
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
    """The mean loss of a note over some epochs of training, after which the net is trained; all on the net's device.

    epochs: which of the `settings.epochs` these are; the learning rate and the order of the notes follow from them.
    optimizer: goes on with its moments; None: a new AdamW.
    """
    device = notes.vectors.device
    plan = plan_of(len(notes), settings, seed)
    schedule: LearningRateSchedule = resolve_schedule(settings, len(plan))
    optimizer = optimizer or optimizer_of(net, settings)
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

    repeated = CudaGraphStep(step, len(plan) * len(epochs), device)
    for epoch in epochs:
        planned = plan.epoch(epoch)
        order = torch.from_numpy(planned.notes).to(device)
        seeds = torch.tensor([dropout_seed(seed, epoch, number) for number in range(len(plan))], device=device)
        for number in range(len(plan)):
            set_learning_rate(optimizer, settings.learning_rate * schedule.factor(epoch * len(plan) + number))
            first, last = planned.bounds[planned.order[number] : planned.order[number] + 2]
            repeated(order[first:last], seeds[number])
    return float(total) / max(1, len(notes) * len(epochs))
