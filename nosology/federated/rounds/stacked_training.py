"""A round of training at many sites as one program: every weight has a row a site.

What a site learns is what `local.train_epochs` gives it, up to the order of additions: the same batches, learning
rates, dropout and AdamW, all of which are functions of the seed and of the site's own notes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from nosology.models.heads.heads_net import HeadNet, VectorBatch
from nosology.models.heads.vector_loop import VectorNotes, dropout_seed, plan_of
from nosology.training.batch_plan import BatchPlan
from nosology.training.cuda_graphs import CudaGraphStep, adamw, set_learning_rate
from nosology.training.recipe_settings import TrainerSettings, resolve_schedule

Stack = dict[str, Tensor]  # (S, ...) by name


class StackedSites:
    """Sites whose epochs have equally many steps, so that all take each step together."""

    def __init__(self, sites: Sequence[VectorNotes], settings: TrainerSettings, seed: int):
        self.plans = [plan_of(len(notes), settings, seed) for notes in sites]
        if len({len(plan) for plan in self.plans}) != 1:
            raise ValueError("stacked sites must have equally many steps an epoch")
        self.settings, self.seed = settings, seed
        self.steps = len(self.plans[0])
        self.schedule = resolve_schedule(settings, self.steps)
        self.first = np.cumsum([0, *map(len, sites)])[:-1]  # of each site's rows
        self.vectors = torch.cat([notes.vectors for notes in sites])
        self.targets = torch.cat([notes.targets for notes in sites])
        known = [notes.known for notes in sites]
        self.known = (
            None if all(mask is None for mask in known) else torch.stack([_all(m, n) for m, n in zip(known, sites)])
        )

    def train(self, net: HeadNet, stack: Stack, epochs: range, mu: float = 0.0) -> Tensor:
        """The mean losses (S,) of the sites' notes over some epochs, after which the stack is trained, in place.

        stack: parameters and buffers (S, ...); net says what is done with them. mu: FedProx's pull to the weights at
        the beginning.
        """
        names = [name for name, _ in net.named_parameters()]
        trained = {name: nn.Parameter(stack[name]) for name in names}
        buffers = {name: value for name, value in stack.items() if name not in trained}
        start = {name: value.clone() for name, value in stack.items() if name in trained} if mu else {}
        device = self.vectors.device
        optimizer = adamw(list(trained.values()), self.settings.learning_rate, self.settings.weight_decay)
        net.train()
        total = torch.zeros(len(self.plans), device=device, dtype=stack["out.weight"].dtype)

        def add_gradients(sites: Tensor | slice, rows: Tensor, seed: Tensor) -> None:
            losses = self._losses(net, trained, buffers, sites, rows, seed)
            pull = mu / 2 * sum(((p[sites] - start[n][sites]) ** 2).sum() for n, p in trained.items()) if mu else 0
            (losses.sum() + pull).backward()
            total[sites] += losses.detach() * rows.shape[1]

        def descend() -> None:
            if self.settings.clip:
                _clip(list(trained.values()), self.settings.clip)
            optimizer.step()

        def step(rows: Tensor, seed: Tensor) -> None:
            optimizer.zero_grad(set_to_none=True)
            add_gradients(slice(None), rows, seed)
            descend()

        together = CudaGraphStep(step, self.steps * len(epochs), device)
        for epoch in epochs:
            seeds = torch.tensor(
                [dropout_seed(self.seed, epoch, number) for number in range(self.steps)], device=device
            )
            for number, batches in enumerate(self._batches(epoch)):
                set_learning_rate(
                    optimizer, self.settings.learning_rate * self.schedule.factor(epoch * self.steps + number)
                )
                if len(batches) == 1:
                    together(batches[0][1], seeds[number])
                    continue
                optimizer.zero_grad(set_to_none=True)
                for sites, rows in batches:
                    add_gradients(sites, rows, seeds[number])
                descend()
        notes = torch.tensor([len(plan.lengths) * len(epochs) for plan in self.plans], device=device)
        return total / notes

    def _batches(self, epoch: int) -> list[list[tuple[Tensor | slice, Tensor]]]:
        """For each step, sites with batches of one size and the rows (S', B) of their notes.

        Sites of one size have the same plan, since the seed has no site in it: then all of them stand together.
        """
        planned: dict[int, list[np.ndarray]] = {}
        for plan in self.plans:
            if len(plan.lengths) not in planned:
                planned[len(plan.lengths)] = _rows(plan, epoch)
        every = []
        for step in range(self.steps):
            sizes: dict[int, list[int]] = defaultdict(list)
            for site, plan in enumerate(self.plans):
                sizes[len(planned[len(plan.lengths)][step])].append(site)
            every.append([self._together(sites, planned, step) for sites in sizes.values()])
        # in one transfer: the device would be waited for at each
        rows = np.concatenate([rows.ravel() for batches in every for _, rows in batches])
        moved = iter(torch.from_numpy(rows).to(self.vectors.device).split([r.size for b in every for _, r in b]))
        return [[(sites, next(moved).view(rows.shape)) for sites, rows in batches] for batches in every]

    def _together(self, sites: list[int], planned: dict, step: int) -> tuple[Tensor | slice, np.ndarray]:
        rows = np.stack([self.first[site] + planned[len(self.plans[site].lengths)][step] for site in sites])
        return slice(None) if len(sites) == len(self.plans) else torch.tensor(sites), rows

    def _losses(
        self, net: HeadNet, trained: Stack, buffers: Stack, sites: Tensor | slice, rows: Tensor, seed: Tensor
    ) -> Tensor:
        """The losses (S',) of one batch at each of some sites; running statistics are moved."""
        known = None if self.known is None else self.known[sites]
        weights = {name: value[sites] for name, value in trained.items()}
        moved = {name: value[sites] for name, value in buffers.items()}
        losses = vmap(partial(_loss, net), in_dims=(0, 0, 0, 0, None, None if known is None else 0))(
            weights, moved, self.vectors[rows], self.targets[rows], seed, known
        )
        if not isinstance(sites, slice):
            for name, value in moved.items():
                buffers[name][sites] = value
        return losses


def _loss(
    net: HeadNet, weights: Stack, buffers: Stack, vectors: Tensor, targets: Tensor, seed: Tensor, known: Tensor | None
) -> Tensor:
    return functional_call(net, (weights, buffers), (VectorBatch(vectors, targets, seed, known),))


def _rows(plan: BatchPlan, epoch: int) -> list[np.ndarray]:
    planned = plan.epoch(epoch)
    return [planned.notes[slice(*planned.bounds[batch : batch + 2])] for batch in planned.order]


def _all(known: Tensor | None, notes: VectorNotes) -> Tensor:
    return torch.ones(notes.targets.shape[1], device=notes.vectors.device) if known is None else known


def _clip(parameters: list[Tensor], most: float) -> None:
    """Shortens each site's gradient to a norm, as clip_grad_norm_ does for one net."""
    squares = sum(p.grad.square().flatten(1).sum(1) for p in parameters)
    factor = (most / (squares.sqrt() + 1e-6)).clamp(max=1)
    for parameter in parameters:
        parameter.grad.mul_(factor.view(-1, *[1] * (parameter.ndim - 1)))
