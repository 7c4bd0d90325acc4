"""DP-SGD for a head: what a hospital does in a round so that no single note can be read off its weights.

Each note's gradient is clipped, Gaussian noise is added to their sum, and a ledger keeps what that has cost. As many
steps are taken at the same learning rates as in `local.train_epochs`, but a step's notes are drawn anew, each with the
same chance (Poisson sampling): the accounting holds for nothing else, and it wants that nobody knows who was drawn.
So notes, noise and dropout come from the operating system's randomness, not from the recipe's seed, which the server
knows: with it the server could subtract the noise.

The ledger is about the weights alone. The loss that comes back is exact, and so is whatever else a site tells.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from nosology.core import ConfigError
from nosology.models.heads.heads_net import BatchNorm, HeadNet, VectorBatch, hybrid_loss
from nosology.models.heads.vector_loop import Penalty, VectorNotes, optimizer_of, plan_of
from nosology.training.cuda_graphs import set_learning_rate
from nosology.training.recipe_settings import TrainerSettings, resolve_schedule

_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64)) + [64, 128, 256, 512]


@dataclass
class Ledger:
    """What was given away so far: runs of steps that were alike. It is JSON, and adds up over rounds and restarts."""

    runs: list[tuple[float, float, int]] = field(default_factory=list)  # noise, sampling rate, steps

    def add(self, noise: float, rate: float, steps: int = 1) -> None:
        """Books some steps with Gaussian noise (in units of the clip) on a Poisson sample of that rate."""
        if not noise > 0 or not 0 < rate <= 1 or steps < 0:
            raise ValueError(f"noise must be above 0 and rate in (0, 1]; got {noise}, {rate}, {steps} steps")
        if self.runs and self.runs[-1][:2] == (noise, rate):
            steps += self.runs.pop()[2]
        if steps:
            self.runs.append((noise, rate, steps))

    def epsilon(self, delta: float) -> float:
        """Epsilon at a delta, an upper bound by Renyi accounting: Opacus' divergences, converted as it converts them.

        Opacus' own conversion warns where the best order is the largest, as it is where next to nothing was spent.
        """
        if not self.runs:
            return 0.0
        spent = sum(_step(noise, rate) * steps for noise, rate, steps in self.runs)
        orders = np.array(_ORDERS)
        bounds = spent - (math.log(delta) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
        return max(0.0, float(np.nanmin(bounds)))

    def to_json(self) -> list[list[float]]:
        """The ledger as JSON."""
        return [list(run) for run in self.runs]

    @classmethod
    def from_json(cls, runs: Sequence[Sequence[float]]) -> Ledger:
        """The ledger that `to_json` wrote."""
        ledger = cls()
        for noise, rate, steps in runs:
            ledger.add(float(noise), float(rate), int(steps))
        return ledger


@lru_cache(4096)
def _step(noise: float, rate: float) -> np.ndarray:
    """The Renyi divergences of one step, of each order."""
    from opacus.accountants.analysis import rdp  # here: slow to import, and not needed where nothing is private

    return np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=_ORDERS))


def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The least noise, to 1 in 1,000, with which so many steps at a sampling rate stay within epsilon."""
    low, high = 1e-2, 1e4
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if Ledger([(middle, rate, steps)]).epsilon(delta) <= epsilon else (middle, high)
    return high


def refuse_batch_norm(net: nn.Module) -> None:
    """Raises for a net with batch normalisation: there a note's gradient depends on the other notes of its batch."""
    if any(isinstance(part, BatchNorm) for part in net.modules()):
        raise ConfigError('model.norm must be "layer" where record_noise or site_clip is set; got "batch"')


def clipped_gradient(net: HeadNet, batch: VectorBatch, clip: float) -> tuple[Tensor, Tensor]:
    """Losses (B,) and norms (B,) of the notes' gradients; their clipped sum lies in the parameters' `grad`.

    Norms come from the layers' inputs and the gradients of their outputs (Opacus' formulas); no note's gradient is ever
    written out, which for a head of 1.5 million weights and 64 notes would be 400 MB.
    """
    layers, inputs, outputs = [], [], []

    def seen(layer: nn.Module, given: tuple[Tensor], made: Tensor) -> None:
        layers.append(layer)
        inputs.append(given[0].detach())
        outputs.append(made)

    hooks = [part.register_forward_hook(seen) for part in net.modules() if any(True for _ in part.parameters(False))]
    try:
        logits = net.logits(batch.vectors, batch.seed if net.training else None)
    finally:
        for hook in hooks:
            hook.remove()
    each = torch.vmap(lambda row, target: hybrid_loss(row[None], target[None], net.shape, batch.known))
    losses = each(logits, batch.targets)
    slopes = torch.autograd.grad(losses.sum(), outputs, retain_graph=True)
    parts = [_norms(layer, x, slope) for layer, x, slope in zip(layers, inputs, slopes)]
    norms = torch.stack([norm for part in parts for norm in part]).norm(dim=0)
    (losses * (clip / norms.clamp(min=clip))).sum().backward()
    return losses.detach(), norms


def _norms(layer: nn.Module, x: Tensor, slope: Tensor) -> list[Tensor]:
    """The norm (B,) of each note's gradient for each parameter of a layer."""
    from opacus.grad_sample.layer_norm import compute_layer_norm_grad_sample
    from opacus.grad_sample.linear import compute_linear_norm_sample

    if isinstance(layer, nn.Linear):
        return list(compute_linear_norm_sample(layer, [x], slope).values())
    if isinstance(layer, nn.LayerNorm):
        return [full.flatten(1).norm(dim=1) for full in compute_layer_norm_grad_sample(layer, [x], slope).values()]
    raise TypeError(f"layers must be Linear or LayerNorm; got {type(layer).__name__}")


def fresh_generator() -> np.random.Generator:
    """A source of random numbers that nobody can foretell: its seed is the operating system's.

    Not torch's: on a CPU that one keeps 32 bits of its seed, which a server can try one by one.
    """
    return np.random.Generator(np.random.PCG64(secrets.randbits(256)))


def add_noise(parameters: Sequence[nn.Parameter], scale: float, share: float, generator: np.random.Generator) -> None:
    """Makes every `grad` share x (itself + Gaussian noise of a standard deviation); no grad counts as 0."""
    for parameter in parameters:
        drawn = torch.from_numpy(generator.standard_normal(tuple(parameter.shape), dtype=np.float32))
        drawn = drawn.to(parameter.device) * scale
        parameter.grad = (drawn if parameter.grad is None else parameter.grad + drawn) * share


def private_epochs(
    net: HeadNet,
    notes: VectorNotes,
    settings: TrainerSettings,
    epochs: range,
    *,
    ledger: Ledger,
    noise: float,
    clip: float,
    optimizer: torch.optim.Optimizer | None = None,
    penalty: Penalty | None = None,
    seed: int | None = None,
) -> float:
    """The mean loss of a drawn note over some epochs of private training, after which the net is trained.

    noise: standard deviation of the noise on the sum of gradients, in units of clip; clip: largest norm of a note's
    gradient (`settings.clip` is not looked at). seed: for tests alone; None: the operating system's randomness.
    penalty: is a function of the weights, so it is neither clipped nor paid for.
    """
    refuse_batch_norm(net)
    device = notes.vectors.device
    drawing = fresh_generator() if seed is None else np.random.default_rng(seed)
    steps = len(plan_of(len(notes), settings, 0))
    schedule = resolve_schedule(settings, steps)
    optimizer = optimizer or optimizer_of(net, settings)
    parameters = list(net.parameters())
    total, passed = 0.0, 0
    net.train()
    for step in range(epochs.start * steps, epochs.stop * steps):
        rows = torch.from_numpy(np.flatnonzero(drawing.random(len(notes)) < 1 / steps)).to(device)
        dropout = torch.tensor(int(drawing.integers(2**62)), device=device)
        optimizer.zero_grad(set_to_none=True)
        if len(rows):
            losses, _ = clipped_gradient(net, notes.batch(rows, dropout), clip)
            total, passed = total + float(losses.sum()), passed + len(rows)
        add_noise(parameters, noise * clip, steps / len(notes), drawing)
        if penalty is not None:
            penalty(net).backward()
        set_learning_rate(optimizer, settings.learning_rate * schedule.factor(step))
        ledger.add(noise, 1 / steps)
        optimizer.step()
    return total / max(1, passed)
