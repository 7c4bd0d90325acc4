"""Local training of a round, the same for all sites that train a net."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.federated.federation_settings import FederatedRecipe, FederatedStatisticsRecipe, FederationSettings
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.learner import LabelRows
from nosology.training.batch_plan import StepPlan
from nosology.training.checkpoint import load_optimizer_tensors, optimizer_tensors
from nosology.training.data_loader import MakeBatch, PrepareStep
from nosology.training.epoch_range import train_epoch_range
from nosology.training.losses import Penalty
from nosology.training.parameter_groups import ParameterGroup, make_adamw
from nosology.training.recipe_settings import TrainerSettings


def loop_settings(recipe: FederatedRecipe) -> TrainerSettings:
    """The training settings of a site. The learning-rate schedule runs over all rounds."""
    assert not isinstance(recipe, FederatedStatisticsRecipe)
    epochs = recipe.federation.rounds * recipe.federation.local_epochs
    return recipe.training.model_copy(update={"epochs": epochs})


def round_epochs(federation: FederationSettings, round_number: int) -> range:
    """The epochs of a round, counted from 0 over all rounds."""
    return range((round_number - 1) * federation.local_epochs, round_number * federation.local_epochs)


def train_net(
    net: nn.Module,
    plan: StepPlan,
    batches: tuple[MakeBatch, PrepareStep | None],
    settings: TrainerSettings,
    epochs: range,
    federation: FederationSettings,
    state: Arrays | None,
    parameter_groups: Sequence[ParameterGroup] = (),
) -> tuple[float, Arrays]:
    """The mean loss of a net over the epochs of a round, and its optimizer state, see `kept_optimizer_state`.

    state: of the round before. parameter_groups: with learning rates of their own; empty: one of all parameters that
    are trained.
    """
    trained = [group.parameters for group in parameter_groups]
    optimizer = make_adamw(trained or [[each for each in net.parameters() if each.requires_grad]], settings)
    load_optimizer_state(net, optimizer, state)
    penalty = proximal_term(net, federation)
    loss = train_epoch_range(net, plan, *batches, settings, epochs, optimizer, penalty, parameter_groups)
    return loss, kept_optimizer_state(net, optimizer, federation)


def proximal_term(net: nn.Module, federation: FederationSettings) -> Penalty | None:
    """FedProx: mu / 2 times the squared distance from the weights of now, as a function of the net; else None."""
    if federation.strategy != "fedprox" or not federation.mu:
        return None
    initial = {name: value.detach().clone() for name, value in net.named_parameters() if value.requires_grad}

    def penalty(net: nn.Module) -> Tensor:
        terms = [((value - initial[name]) ** 2).sum() for name, value in net.named_parameters() if name in initial]
        return federation.mu / 2 * sum(terms[1:], terms[0])

    return penalty


def load_optimizer_state(net: nn.Module, optimizer: torch.optim.Optimizer, state: Arrays | None) -> None:
    """Continues with the state of `kept_optimizer_state`, if there is any."""
    if state:
        load_optimizer_tensors(net, optimizer, {name: torch.from_numpy(array) for name, array in state.items()})


def kept_optimizer_state(net: nn.Module, optimizer: torch.optim.Optimizer, federation: FederationSettings) -> Arrays:
    """The state of an optimizer that stays at the site until the next round; empty with `reset`."""
    if federation.optimizer_state == "reset":
        return {}
    return {f"{key}.{name}": value.cpu().numpy() for name, key, value in optimizer_tensors(net, optimizer)}


def used_labels(labels: LabelSpace, codes: Sequence[Collection[Code]], code_list: frozenset[Code] | None) -> np.ndarray:
    """The labels (L,) bool that a site codes with: those of its list, else all of the systems of its notes."""
    systems = {code.system for note in codes for code in note}
    used = (code.system in systems and (code_list is None or code in code_list) for code in labels.codes)
    return np.fromiter(used, dtype=bool, count=len(labels))


def restore_unused_labels(trained: Arrays, weights: Arrays, rows: LabelRows, label_mask: np.ndarray) -> None:
    """Resets the rows of labels that a site does not use: weight decay has moved them."""
    for name in rows.names:
        mask = label_mask.reshape(-1, *[1] * (trained[name].ndim - 1))
        trained[name] = np.where(mask, trained[name], weights[name])
