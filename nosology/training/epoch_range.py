"""Training of a net for some epochs of a longer run: the local training of a federated site.

Batches, learning rates, dropout and optimizer are those of `trainer.fit` in one process, so that the epochs of all
rounds of a single site are one training run. There are no files, checkpoints or dev notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext

import torch
from torch import Tensor, nn

from nosology.core import ConfigError
from nosology.training.batch_plan import StepPlan, derive_seed
from nosology.training.cuda_graphs import set_learning_rate
from nosology.training.data_loader import BatchLoader, MakeBatch, PrepareStep, StepBatches
from nosology.training.inference import uses_bf16
from nosology.training.losses import Penalty
from nosology.training.parameter_groups import ParameterGroup, freeze, set_learning_rates, unfreeze
from nosology.training.recipe_settings import TrainerSettings, resolve_schedule
from nosology.training.trainer import seed_device


def train_epoch_range(
    net: nn.Module,
    plan: StepPlan,
    make_batch: MakeBatch,
    prepare_step: PrepareStep | None,
    settings: TrainerSettings,
    epochs: range,
    optimizer: torch.optim.Optimizer,
    penalty: Penalty | None = None,
    parameter_groups: Sequence[ParameterGroup] = (),
) -> float:
    """The mean training loss per note; trains the net in place on its device.

    epochs: which of the `settings.epochs` to run; learning rate, batches and dropout depend on them.
    make_batch, prepare_step: as of `TrainingRun`. parameter_groups: of the optimizer, if their learning rates differ.
    """
    device = next(net.parameters()).device
    schedule = resolve_schedule(settings, len(plan))
    loader = BatchLoader(plan, make_batch, prepare_step, pin_memory=device.type == "cuda")
    total = torch.zeros((), device=device)
    epoch, notes = -1, 0
    net.train()
    with closing(loader.steps(epochs.start, 0)) as steps:
        for _ in range(len(epochs) * len(plan)):
            batches = next(steps)
            learning_rate = settings.learning_rate * schedule.factor(batches.epoch * len(plan) + batches.step)
            set_learning_rate(optimizer, learning_rate)
            set_learning_rates(optimizer, parameter_groups, learning_rate)
            if batches.epoch != epoch:
                epoch = batches.epoch
                freeze(parameter_groups, epoch)
            total += _step_gradient(net, batches, plan.seed, settings.precision, device) * batches.notes
            notes += batches.notes
            if penalty is not None:
                penalty(net).backward()
            if settings.clip:
                nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    net.eval()
    unfreeze(parameter_groups)
    if not torch.isfinite(total):
        raise ConfigError(f"the loss is not finite: training.learning_rate must be lower; got {settings.learning_rate}")
    return float(total) / max(1, notes)


def _step_gradient(net: nn.Module, batches: StepBatches, seed: int, precision: str, device: torch.device) -> Tensor:
    """The mean loss of a step; adds its gradient."""
    bf16, loss_sum = uses_bf16(precision, device), torch.zeros((), device=device)
    for micro_batch in batches.micro_batches:
        seed_device(device, derive_seed("micro", seed, batches.epoch, batches.step, micro_batch.number))
        with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
            loss = net(micro_batch.batch.to(device))
        (loss * micro_batch.weight).backward()
        loss_sum += loss.detach() * micro_batch.weight
    return loss_sum
