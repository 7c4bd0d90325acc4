"""The vectorized engine of a simulation: all sites train at once in one program (`torch.func.vmap`), without Flower.

It gives the same weights as the Flower engine up to rounding, and is several times faster on a GPU. It supports only
FedAvg and FedProx with every site in every round. It has no privacy mechanism and refuses recipes with one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from nosology.core import ConfigError, FederationError
from nosology.federated.federation_settings import FederatedHeadsRecipe, FederatedRecipe, PrivacySettings
from nosology.federated.rounds import outcome
from nosology.federated.rounds.federation_loop import FederationLoop, Report
from nosology.federated.rounds.federation_setup import (
    Arrays,
    FederationSetup,
    incompatible_sites,
    shared_labels,
    too_few_notes,
)
from nosology.federated.rounds.heads_learner import initial_head
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.learner import HEAD_ROWS
from nosology.federated.rounds.local_training import loop_settings, round_epochs
from nosology.federated.rounds.outcome import HistoryRow
from nosology.federated.rounds.site_results import SiteCounts
from nosology.models.bundle import Bundle
from nosology.models.heads.heads_net import HeadNet, VectorBatch, VectorNotes, dropout_seed, make_plan
from nosology.training.batch_plan import BatchPlan
from nosology.training.cuda_graphs import CudaGraphStep, adamw, run_epochs
from nosology.training.recipe_settings import TrainerSettings

Stack = dict[str, Tensor]  # weights of S sites (S, ...), by name


def check_vectorized(recipe: FederatedRecipe) -> None:
    """Raises ConfigError for settings that the vectorized engine does not support."""
    settings = recipe.federation
    if not isinstance(recipe, FederatedHeadsRecipe):
        raise ConfigError(f"the vectorized engine trains coders of kind heads; got {recipe.kind}: use --engine flower")
    for name, value, allowed in (
        ("mode", settings.mode, ("sync",)),
        ("strategy", settings.strategy, ("fedavg", "fedprox")),
        ("optimizer_state", settings.optimizer_state, ("reset",)),
        ("fraction_train", settings.fraction_train, (1.0,)),
        ("compression", settings.compression, ("none",)),
        ("personal", settings.personal, ([],)),
        ("norm_bound", settings.norm_bound, (0,)),
        ("norm_multiple", settings.norm_multiple, (0,)),
    ):
        if value not in allowed:
            choices = " or ".join(map(str, allowed))
            raise ConfigError(f"federation.{name} must be {choices} with the vectorized engine; got {value}")
    for name, value in settings.privacy:
        if name not in ("record_clip", "delta") and value != PrivacySettings.model_fields[name].default:
            raise ConfigError(
                f"federation.privacy.{name} must not be set with the vectorized engine, which has no privacy "
                f"mechanism: use --engine flower; got {value}"
            )


class VectorizedFederation(FederationLoop):
    """A federation of sites in this process. Sites with equally many steps per epoch are trained together."""

    def __init__(self, sites: Sequence[HeadsSite], recipe: FederatedHeadsRecipe, report: Report = lambda line: None):
        super().__init__(recipe, report)
        self.heads_recipe = recipe
        minimum, sizes = self.settings.min_site_notes, {site.name: len(site.notes["train"].codes) for site in sites}
        self.refused = {name: too_few_notes(size, minimum) for name, size in sizes.items() if size < minimum}
        self.sites = sorted((site for site in sites if site.name not in self.refused), key=lambda site: site.name)

    @classmethod
    def check(cls, recipe: FederatedRecipe) -> None:
        """ConfigError for settings that this federation does not support."""
        check_vectorized(recipe)
        super().check(recipe)

    def make_setup(self, resumed: FederationSetup | None, notes: str) -> FederationSetup:
        """The setup with all sites that have enough notes."""
        if resumed is not None:
            return resumed
        minimum = self.settings.min_site_notes
        if not self.sites:
            raise FederationError(f"no site has {minimum} train notes, the minimum (federation.min_site_notes)")
        metadata = {site.name: site.metadata(minimum) for site in self.sites}
        for site, reason in incompatible_sites(metadata).items():
            raise FederationError(f"{site} cannot take part: {reason}")
        statistics = [site.statistics(minimum) for site in self.sites]
        scaler = sum(statistics[1:], statistics[0]).scaler()
        return FederationSetup(self.recipe, shared_labels(metadata, self.settings), scaler, metadata, notes)

    def prepare(self) -> int:
        """The number of sites; stacks their notes."""
        self.sites = [site for site in self.sites if site.name in self.setup.metadata]
        self.device, self.net = self.sites[0].device, initial_head(self.setup).to(self.sites[0].device)
        settings, seed = loop_settings(self.recipe), self.recipe.seed
        groups: dict[int, list[HeadsSite]] = defaultdict(list)
        for site in self.sites:
            site.configure(self.setup.labels, self.setup.inputs)
            groups[len(make_plan(len(site.tensors("train")), settings, seed))].append(site)
        self.groups = [
            (group, VectorizedSites([site.tensors("train") for site in group], settings, seed))
            for group in groups.values()
        ]
        return len(self.sites)

    def train(self, number: int) -> tuple[Arrays, HistoryRow]:
        """The mean of the sites' weights after a round, and its history."""
        federation = self.settings
        initial = {name: torch.from_numpy(value).to(self.device) for name, value in self.checkpoint.weights.items()}
        notes = sum(len(site.tensors("train")) for site in self.sites)
        mu = federation.mu if federation.strategy == "fedprox" else 0.0
        sums = {name: torch.zeros_like(value) for name, value in initial.items()}
        label_weights, loss = torch.zeros(len(self.setup.labels), device=self.device), 0.0
        for group, vectorized in self.groups:
            stack = {name: value.expand(len(group), *value.shape).clone() for name, value in initial.items()}
            losses = vectorized.train(self.net, stack, round_epochs(federation, number), mu)
            weight = losses.new_tensor([len(site.tensors("train")) / notes for site in group])
            masks = torch.from_numpy(np.stack([site.label_mask for site in group])).to(self.device)
            row_weight = masks * weight[:, None]  # (S, L): rows of a label are averaged over the sites that use it
            label_weights = label_weights + row_weight.sum(0)
            for name, value in stack.items():
                factor = row_weight if name in HEAD_ROWS.names else weight
                sums[name] += (value * factor.view(*factor.shape, *[1] * (value.ndim - factor.ndim))).sum(0)
            loss += float(losses @ weight)
        for name in HEAD_ROWS.names:
            total = label_weights.view(-1, *[1] * (sums[name].ndim - 1))
            sums[name] = torch.where(total > 0, sums[name] / total.clamp(min=1e-12), initial[name])
        weights = {name: value.detach().cpu().numpy() for name, value in sums.items()}
        return weights, {"loss": loss, "sites": len(self.sites), "refused": 0}

    def evaluate(
        self, number: int, weights: Arrays, split: str, fraction: float, tuned: Bundle | None = None
    ) -> SiteCounts | None:
        """The summed counts of all sites; `fraction` is ignored."""
        threshold, calibration = (tuned.decision.threshold, outcome.calibration(tuned)) if tuned else (None, None)
        counts = [site.evaluate(weights, self.heads_recipe, split, calibration, threshold) for site in self.sites]
        return sum(counts[1:], counts[0])


class VectorizedSites:
    """Training of sites with equally many steps per epoch, all in one program: every weight has one row per site.

    A site gets what `train_epochs` gives it, up to the order of additions: the same batches, learning rates, dropout
    and AdamW, which all depend only on the seed and the notes of the site.
    """

    def __init__(self, sites: Sequence[VectorNotes], settings: TrainerSettings, seed: int):
        self.plans = [make_plan(len(notes), settings, seed) for notes in sites]
        if len({len(plan) for plan in self.plans}) != 1:
            raise ValueError("sites must have equally many steps per epoch")
        self.settings, self.seed = settings, seed
        self.steps = len(self.plans[0])
        self.first_row = np.cumsum([0, *map(len, sites)])[:-1]  # of each site
        self.vectors = torch.cat([notes.vectors for notes in sites])
        self.targets = torch.cat([notes.targets for notes in sites])
        self.label_masks: Tensor | None = None
        if any(notes.label_mask is not None for notes in sites):
            full = torch.ones(self.targets.shape[1], device=self.vectors.device)
            self.label_masks = torch.stack([full if n.label_mask is None else n.label_mask for n in sites])

    def train(self, net: HeadNet, stack: Stack, epochs: range, mu: float = 0.0) -> Tensor:
        """The mean losses (S,) per note; trains the stack in place.

        stack: parameters and buffers (S, ...) of the net. mu: weight of the proximal term of FedProx.
        """
        parameters = {name: nn.Parameter(stack[name]) for name, _ in net.named_parameters()}
        buffers = {name: value for name, value in stack.items() if name not in parameters}
        initial = {name: stack[name].clone() for name in parameters} if mu else {}
        device = self.vectors.device
        optimizer = adamw([*parameters.values()], self.settings.learning_rate, self.settings.weight_decay)
        net.train()
        total = torch.zeros(len(self.plans), device=device, dtype=stack["out.weight"].dtype)

        def add_gradients(sites: Tensor | slice, rows: Tensor, seed: Tensor) -> None:
            losses = self._losses(net, parameters, buffers, sites, rows, seed)
            loss = losses.sum()
            if mu:
                terms = [((value[sites] - initial[name][sites]) ** 2).sum() for name, value in parameters.items()]
                loss = loss + mu / 2 * sum(terms[1:], terms[0])
            loss.backward()
            total[sites] += losses.detach() * rows.shape[1]

        def update() -> None:
            if self.settings.clip:
                _clip_gradients(list(parameters.values()), self.settings.clip)
            optimizer.step()

        def step(rows: Tensor, seed: Tensor) -> None:
            optimizer.zero_grad(set_to_none=True)
            add_gradients(slice(None), rows, seed)
            update()

        graphed_step = CudaGraphStep(step, self.steps * len(epochs), device)

        def load_epoch(epoch: int) -> Iterator[tuple[list[tuple[Tensor | slice, Tensor]], Tensor]]:
            seeds = torch.tensor([dropout_seed(self.seed, epoch, index) for index in range(self.steps)], device=device)
            return zip(self._batches(epoch), seeds)

        def take_step(step_batches: tuple[list[tuple[Tensor | slice, Tensor]], Tensor]) -> None:
            batches, seed = step_batches
            if len(batches) == 1:
                graphed_step(batches[0][1], seed)
                return
            optimizer.zero_grad(set_to_none=True)
            for sites, rows in batches:
                add_gradients(sites, rows, seed)
            update()

        run_epochs(optimizer, self.settings, epochs, self.steps, load_epoch, take_step)
        return total / torch.tensor([len(plan.lengths) * len(epochs) for plan in self.plans], device=device)

    def _batches(self, epoch: int) -> list[list[tuple[Tensor | slice, Tensor]]]:
        """For each step, the sites with batches of one size and the rows (S', B) of their notes.

        Sites of equal size have the same plan, because the seed does not depend on the site.
        """
        planned: dict[int, list[np.ndarray]] = {}
        for plan in self.plans:
            if len(plan.lengths) not in planned:
                planned[len(plan.lengths)] = _batch_rows(plan, epoch)
        steps: list[list[tuple[Tensor | slice, np.ndarray]]] = []
        for step in range(self.steps):
            by_size: dict[int, list[int]] = defaultdict(list)
            for site, plan in enumerate(self.plans):
                by_size[len(planned[len(plan.lengths)][step])].append(site)
            steps.append([])
            for sites in by_size.values():
                rows = np.stack([self.first_row[site] + planned[len(self.plans[site].lengths)][step] for site in sites])
                steps[-1].append((slice(None) if len(sites) == len(self.plans) else torch.tensor(sites), rows))
        # one transfer for all steps: each transfer waits for the device
        flat = np.concatenate([rows.ravel() for batches in steps for _, rows in batches])
        sizes = [rows.size for batches in steps for _, rows in batches]
        moved = iter(torch.from_numpy(flat).to(self.vectors.device).split(sizes))
        return [[(sites, next(moved).view(rows.shape)) for sites, rows in batches] for batches in steps]

    def _losses(
        self,
        net: HeadNet,
        parameters: dict[str, nn.Parameter],
        buffers: Stack,
        sites: Tensor | slice,
        rows: Tensor,
        seed: Tensor,
    ) -> Tensor:
        """The losses (S',) of one batch per site; updates the running statistics."""
        label_masks = None if self.label_masks is None else self.label_masks[sites]
        weights = {name: value[sites] for name, value in parameters.items()}
        statistics = {name: value[sites] for name, value in buffers.items()}
        losses = vmap(partial(_loss, net), in_dims=(0, 0, 0, 0, None, None if label_masks is None else 0))(
            weights, statistics, self.vectors[rows], self.targets[rows], seed, label_masks
        )
        if not isinstance(sites, slice):
            for name, value in statistics.items():
                buffers[name][sites] = value
        return losses


def _loss(
    net: HeadNet, weights: Stack, buffers: Stack, vectors: Tensor, targets: Tensor, seed: Tensor, mask: Tensor | None
) -> Tensor:
    return functional_call(net, (weights, buffers), (VectorBatch(vectors, targets, seed, mask),))


def _batch_rows(plan: BatchPlan, epoch: int) -> list[np.ndarray]:
    planned = plan.epoch(epoch)
    return [planned.notes[slice(*planned.bounds[batch : batch + 2])] for batch in planned.order]


def _clip_gradients(parameters: list[nn.Parameter], max_norm: float) -> None:
    """Clips the gradient of each site, as clip_grad_norm_ does for one net."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = torch.stack([gradient.square().flatten(1).sum(1) for gradient in gradients]).sum(0).sqrt()
    factor = (max_norm / (norms + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))
