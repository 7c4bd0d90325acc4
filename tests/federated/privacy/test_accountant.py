"""Epsilon recomputed by an independent accountant: privacy loss distributions, composed numerically.

It shares nothing with the accountant of the package: no Renyi divergence, no Opacus. The privacy loss of one step is
put on a grid, rounded up for an upper and down for a lower bound of delta, and composed by fast Fourier transforms
(Koskela et al., 2020). So the true epsilon is known to lie between the two.
"""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from nosology.federated.privacy.dp_sgd import PrivacyAccountant, noise_for_epsilon
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import TRAIN
from nosology.federated.rounds.simulation import simulation_grid
from tests.federated.privacy.test_secure_round import Watched, secret
from tests.federated.small_hospitals import sites

GRID, SIZE = 4e-4, 2**17  # the privacy loss is within +-26; composed losses must be, too

History = list[tuple[float, float, int]]  # noise multiplier, sampling rate, steps


def losses(noise: float, rate: float, remove: bool, up: bool) -> tuple[np.ndarray, float]:
    """The distribution of the privacy loss of a step on the grid, and the probability of an infinite loss.

    One of two neighbors has a note more: outputs are N(0, noise^2), or with the rate N(1, noise^2). remove: outputs are
    drawn with the note, and compared to those without it; else the other way round.
    """

    def loss(x: np.ndarray) -> np.ndarray:
        ratio = np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
        return ratio if remove else -ratio

    def cdf(x: np.ndarray) -> np.ndarray:
        plain = norm.cdf(x / noise)
        return (1 - rate) * plain + rate * norm.cdf((x - 1) / noise) if remove else plain

    # the loss is monotone in x: the mass between two values of x goes to the nearest grid point on one side
    x = np.linspace(-40 * noise, 1 + 40 * noise, 400_001)
    with np.errstate(divide="ignore", over="ignore"):
        values = loss(x)
    mass = np.diff(cdf(x))
    ends = np.stack([values[:-1], values[1:]])
    chosen = ends.max(0) if up else ends.min(0)
    index = (np.ceil if up else np.floor)(np.nan_to_num(chosen, posinf=1e9, neginf=-1e9) / GRID) + SIZE // 2
    index = np.maximum(index, 0)
    infinite = float(mass[index >= SIZE].sum())
    inside = index < SIZE
    return np.bincount(index[inside].astype(np.int64), mass[inside], minlength=SIZE), infinite if up else 0.0


def composed_epsilon(history: History, delta: float, up: bool) -> float:
    """A bound of the epsilon of composed steps: the larger one of both directions."""
    results = []
    for remove in (True, False):
        spectrum, finite = np.ones(SIZE // 2 + 1, complex), 1.0
        for noise, rate, steps in history:
            mass, infinite = losses(noise, rate, remove, up)
            spectrum *= np.fft.rfft(np.fft.ifftshift(mass)) ** steps
            finite *= (1 - infinite) ** steps
        total = np.maximum(np.fft.fftshift(np.fft.irfft(spectrum, SIZE)), 0)
        grid = (np.arange(SIZE) - SIZE // 2) * GRID

        def excess(epsilon: float, total=total, grid=grid, finite=finite) -> float:
            beyond = grid > epsilon
            return float((total[beyond] * -np.expm1(epsilon - grid[beyond])).sum()) + 1 - finite - delta

        results.append(brentq(excess, 0, grid[-1]) if excess(0.0) > 0 else 0.0)
    return max(results)


def gaussian_epsilon(noise: float, steps: int, delta: float) -> float:
    """The exact epsilon of Gaussian noise without sampling (Balle and Wang, 2018): composed steps are one step."""
    size = math.sqrt(steps) / noise

    def excess(epsilon: float) -> float:
        high, low = norm.cdf(size / 2 - epsilon / size), norm.cdf(-size / 2 - epsilon / size)
        return float(high - math.exp(epsilon) * low - delta)

    return brentq(excess, 0, 100)


@pytest.mark.parametrize(("noise", "steps"), [(2.0, 1), (4.0, 10), (10.0, 100)])
def test_the_independent_accountant_is_right_where_the_exact_value_is_known(noise, steps):
    exact = gaussian_epsilon(noise, steps, 1e-5)
    low, high = (composed_epsilon([(noise, 1.0, steps)], 1e-5, up) for up in (False, True))
    assert low - 1e-6 <= exact <= high + 1e-6 and high - low < 0.05 * exact
    ours = PrivacyAccountant([(noise, 1.0, steps)]).epsilon(1e-5)
    assert exact <= ours <= 1.2 * exact


@pytest.mark.parametrize(
    ("history", "most"),
    [
        ([(1.0, 1 / 100, 100)], 1.7),  # Renyi accounting is loose where little is spent
        ([(1.0, 1 / 4, 20)], 1.25),
        ([(1.5, 1 / 8, 60)], 1.25),
        ([(2.0, 1 / 4, 8), (1.0, 1 / 2, 2)], 1.25),  # two runs with other settings, as in the ledger of a site
    ],
    ids=str,
)
def test_epsilon_is_an_upper_bound_and_not_far_above(history, most):
    low, high = (composed_epsilon(history, 1e-5, up) for up in (False, True))
    ours = PrivacyAccountant(history).epsilon(1e-5)
    assert 0 < low <= high < 1.1 * low  # the true value is between them
    assert low <= ours <= most * high


def test_noise_for_an_epsilon_keeps_it():
    noise = noise_for_epsilon(3.0, 1e-5, 1 / 20, 200)
    assert composed_epsilon([(noise, 1 / 20, 200)], 1e-5, up=True) <= 3.0


def test_epsilon_of_a_federation_follows_from_its_messages(tmp_path):
    """Steps are counted from the requests that the sites got, epsilon is composed independently."""
    settings = secret("deep", 3, {"secure": False, "record_noise": 1.5, "record_clip": 0.5}, local_epochs=2)
    hospitals = sites()
    grid = Watched(simulation_grid(hospitals))
    FlowerFederation(grid, settings).run(tmp_path / "bundle")
    smallest = min(hospitals, key=lambda hospital: hospital.sizes["train"])  # has the largest epsilon
    requests = sum(kind == TRAIN and name == smallest.name for kind, name, _ in grid.seen) // 2
    steps = math.ceil(smallest.sizes["train"] / settings.training.batch)
    low, high = (composed_epsilon([(1.5, 1 / steps, 2 * steps * requests)], 1e-5, up) for up in (False, True))
    with (tmp_path / "bundle" / "history.csv").open() as file:
        stated = float(list(csv.DictReader(file))[-1]["record_epsilon"])
    assert requests == 3 and low <= stated <= 1.25 * high
