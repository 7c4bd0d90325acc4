"""Parameter groups: parts of a net with their own learning rate, which may be frozen at first; their optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from nosology.training.recipe_settings import TrainerSettings


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with their own learning rate."""

    parameters: list[nn.Parameter]
    learning_rate_factor: float = 1.0  # times the learning rate of the settings
    start_epoch: int = 0  # counted from 0; the parameters are frozen before it


def trained_groups(groups: Sequence[ParameterGroup], epoch: int) -> list[bool]:
    """Whether each group is trained in an epoch, counted from 0."""
    return [epoch >= group.start_epoch for group in groups]


def freeze(groups: Sequence[ParameterGroup], epoch: int) -> None:
    """Freezes the groups that start after an epoch, so that no gradient is computed for them; unfreezes the others."""
    for group, is_trained in zip(groups, trained_groups(groups, epoch)):
        for parameter in group.parameters:
            parameter.requires_grad_(is_trained)


def unfreeze(groups: Sequence[ParameterGroup]) -> None:
    """Makes the parameters of all groups trainable."""
    for group in groups:
        for parameter in group.parameters:
            parameter.requires_grad_(True)


def set_learning_rates(optimizer: torch.optim.Optimizer, groups: Sequence[ParameterGroup], rate: float) -> None:
    """Sets the learning rate of each group of the optimizer: `rate` times the factor of the group."""
    for options, group in zip(optimizer.param_groups, groups):
        options["lr"] = group.learning_rate_factor * rate


def make_adamw(groups: Sequence[Sequence[nn.Parameter]], settings: TrainerSettings) -> torch.optim.AdamW:
    """The optimizer of groups of parameters, all on one device."""
    return torch.optim.AdamW(
        [{"params": list(parameters)} for parameters in groups],
        lr=settings.learning_rate,
        betas=(0.9, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=next(chain.from_iterable(groups)).device.type in ("cpu", "cuda"),
    )
