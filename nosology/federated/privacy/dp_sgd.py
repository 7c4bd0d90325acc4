"""Record-level differential privacy: DP-SGD for a head, and the privacy accountant.

The gradient of each note is clipped and Gaussian noise is added to the sum. Steps and learning rates are those of
`train_epochs`, but the notes of a step are drawn by Poisson sampling, because the accounting holds only for that. The
draws must be secret. So notes, noise and dropout use the randomness of the operating system, not the seed of the
recipe: the server knows the seed and could subtract the noise.

The accountant covers only the weights. The training loss and everything else that a site reports is exact.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from nosology.core import ConfigError
from nosology.models.heads.heads_net import (
    BatchNorm,
    HeadNet,
    VectorBatch,
    VectorNotes,
    hybrid_loss,
    make_optimizer,
    make_plan,
)
from nosology.training.cuda_graphs import run_epochs
from nosology.training.losses import Penalty
from nosology.training.recipe_settings import TrainerSettings

_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64)) + [64, 128, 256, 512]


@dataclass
class PrivacyAccountant:
    """The steps taken so far, as (noise multiplier, sampling rate, number of steps); JSON, also over restarts."""

    history: list[tuple[float, float, int]] = field(default_factory=list)

    def add(self, noise_multiplier: float, rate: float, steps: int = 1) -> None:
        """Records steps with Gaussian noise on a Poisson sample of a rate."""
        if not noise_multiplier > 0 or not 0 < rate <= 1 or steps < 0:
            raise ValueError(f"noise must be above 0 and rate in (0, 1]; got {noise_multiplier}, {rate}, {steps} steps")
        if self.history and self.history[-1][:2] == (noise_multiplier, rate):
            steps += self.history.pop()[2]
        if steps:
            self.history.append((noise_multiplier, rate, steps))

    def epsilon(self, delta: float) -> float:
        """Epsilon at a delta: an upper bound by Renyi accounting, with the divergences and conversion of Opacus.

        The function of Opacus warns if the best order is the largest, which happens where little was spent.
        """
        if not self.history:
            return 0.0
        spent = sum(_renyi_divergences(noise, rate) * steps for noise, rate, steps in self.history)
        orders = np.array(_ORDERS)
        bounds = spent - (math.log(delta) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
        return max(0.0, float(np.nanmin(bounds)))

    def to_json(self) -> list[list[float]]:
        """The history as JSON."""
        return [list(entry) for entry in self.history]

    @classmethod
    def from_json(cls, history: Sequence[Sequence[float]]) -> PrivacyAccountant:
        """The accountant of `to_json`."""
        accountant = cls()
        for noise_multiplier, rate, steps in history:
            accountant.add(float(noise_multiplier), float(rate), int(steps))
        return accountant


@lru_cache(4096)
def _renyi_divergences(noise_multiplier: float, rate: float) -> np.ndarray:
    """The Renyi divergence of one step for each order."""
    from opacus.accountants.analysis import rdp  # slow to import, and not needed without privacy

    return np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=noise_multiplier, steps=1, orders=_ORDERS))


def noise_for_epsilon(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The smallest noise multiplier, to 0.1%, with which the steps stay within epsilon."""
    low, high = 1e-2, 1e4
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        within = PrivacyAccountant([(middle, rate, steps)]).epsilon(delta) <= epsilon
        low, high = (low, middle) if within else (middle, high)
    return high


def check_no_batch_norm(net: nn.Module) -> None:
    """Raises ConfigError for batch normalization, where the gradient of a note depends on the rest of its batch."""
    if any(isinstance(part, BatchNorm) for part in net.modules()):
        raise ConfigError('model.norm must be "layer" where record_noise or site_clip is set; got "batch"')


def clipped_gradient(net: HeadNet, batch: VectorBatch, clip: float) -> tuple[Tensor, Tensor]:
    """Losses (B,) and gradient norms (B,) per note; the sum of clipped gradients is in the `grad` of the parameters.

    Norms are computed from layer inputs and output gradients (formulas of Opacus). Per-note gradients are never
    materialized: for 1.5 million weights and 64 notes they would need 400 MB.
    """
    layers: list[nn.Module] = []
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def record(layer: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        layers.append(layer)
        inputs.append(arguments[0].detach())
        outputs.append(output)

    hooks = [part.register_forward_hook(record) for part in net.modules() if any(True for _ in part.parameters(False))]
    try:
        logits = net.logits(batch.vectors, batch.seed if net.training else None)
    finally:
        for hook in hooks:
            hook.remove()
    note_loss = torch.vmap(lambda row, target: hybrid_loss(row[None], target[None], net.shape, batch.label_mask))
    losses = note_loss(logits, batch.targets)
    gradients = torch.autograd.grad(losses.sum(), outputs, retain_graph=True)
    parts = [_gradient_norms(layer, x, gradient) for layer, x, gradient in zip(layers, inputs, gradients)]
    norms = torch.stack([norm for part in parts for norm in part]).norm(dim=0)
    (losses * (clip / norms.clamp(min=clip))).sum().backward()
    return losses.detach(), norms


def _gradient_norms(layer: nn.Module, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """The gradient norm (B,) per note for each parameter of a layer; gradient: of the layer's output."""
    from opacus.grad_sample.layer_norm import compute_layer_norm_grad_sample
    from opacus.grad_sample.linear import compute_linear_norm_sample

    if isinstance(layer, nn.Linear):
        return list(compute_linear_norm_sample(layer, [x], gradient).values())
    if isinstance(layer, nn.LayerNorm):
        return [full.flatten(1).norm(dim=1) for full in compute_layer_norm_grad_sample(layer, [x], gradient).values()]
    raise TypeError(f"layers must be Linear or LayerNorm; got {type(layer).__name__}")


def secure_generator() -> np.random.Generator:
    """A generator with a seed of the operating system.

    Not a generator of torch: on a CPU it uses only 32 bits of its seed, which a server could try one by one.
    """
    return np.random.Generator(np.random.PCG64(secrets.randbits(256)))


def add_noise(parameters: Sequence[nn.Parameter], scale: float, factor: float, generator: np.random.Generator) -> None:
    """Replaces every `grad` by factor x (grad + Gaussian noise of standard deviation `scale`); a missing grad is 0."""
    for parameter in parameters:
        noise = torch.from_numpy(generator.standard_normal(tuple(parameter.shape), dtype=np.float32))
        noise = noise.to(parameter.device) * scale
        parameter.grad = (noise if parameter.grad is None else parameter.grad + noise) * factor


def train_epochs_private(
    net: HeadNet,
    notes: VectorNotes,
    settings: TrainerSettings,
    epochs: range,
    *,
    accountant: PrivacyAccountant,
    noise_multiplier: float,
    clip: float,
    optimizer: torch.optim.Optimizer | None = None,
    penalty: Penalty | None = None,
    seed: int | None = None,
) -> float:
    """The mean training loss per drawn note; trains the net in place with DP-SGD.

    noise_multiplier: standard deviation of the noise on the sum of gradients, in units of clip. clip: largest gradient
    norm of a note; `settings.clip` is ignored. seed: only for tests; None: randomness of the operating system.
    penalty: depends only on the weights, so it is not clipped and costs no privacy.
    """
    check_no_batch_norm(net)
    device = notes.vectors.device
    generator = secure_generator() if seed is None else np.random.default_rng(seed)
    steps = len(make_plan(len(notes), settings, 0))
    optimizer = optimizer or make_optimizer(net, settings)
    parameters = list(net.parameters())
    total, drawn = 0.0, 0
    net.train()

    def sample_epoch(_: int) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(steps):
            rows = torch.from_numpy(np.flatnonzero(generator.random(len(notes)) < 1 / steps)).to(device)
            yield rows, torch.tensor(int(generator.integers(2**62)), device=device)

    def step(batch: tuple[Tensor, Tensor]) -> None:
        nonlocal total, drawn
        rows, dropout = batch
        optimizer.zero_grad(set_to_none=True)
        if len(rows):
            losses, _ = clipped_gradient(net, notes.batch(rows, dropout), clip)
            total, drawn = total + float(losses.sum()), drawn + len(rows)
        add_noise(parameters, noise_multiplier * clip, steps / len(notes), generator)
        if penalty is not None:
            penalty(net).backward()
        accountant.add(noise_multiplier, 1 / steps)
        optimizer.step()

    run_epochs(optimizer, settings, epochs, steps, sample_epoch, step)
    return total / max(1, drawn)
