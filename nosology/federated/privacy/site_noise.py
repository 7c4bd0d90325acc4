"""Site-level differential privacy: clipped updates, Gaussian noise on their sum, and the privacy budget of each site.

The update of a site (weights after minus weights before) is clipped to `site_clip` in the norm over all tensors. Every
site has the same weight in the mean, else a large one could move it by more than clip / sites. Noise of standard
deviation `site_noise` x `site_clip` on the sum hides whether a site took part.

Batch normalization is refused: running variances are no gradients (they would use up the clip), and noise makes them
negative.

The sites of a round follow from the seed of the recipe, which is public. So there is no amplification by sampling: a
site pays in full for each round in which it takes part. `epsilon` is the largest over sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nosology.core import ConfigError
from nosology.federated.federation_settings import FederatedRecipe, FederatedStatisticsRecipe, PrivacySettings
from nosology.federated.privacy.dp_sgd import PrivacyAccountant, secure_generator
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.robust_updates import ROBUST
from nosology.federated.rounds.site_results import SiteUpdate
from nosology.models.heads.heads_settings import HeadsRecipe

Draw = Callable[[tuple[int, ...]], np.ndarray]  # standard normal numbers of a shape


def check_privacy(recipe: FederatedRecipe) -> None:
    """Raises ConfigError for privacy settings that contradict each other or the rest of the recipe."""
    federation, privacy = recipe.federation, recipe.federation.privacy
    if privacy.site_noise and not privacy.site_clip:
        raise ConfigError("federation.privacy.site_clip must be above 0 where site_noise is set; got 0")
    batch_norm = isinstance(recipe, HeadsRecipe) and recipe.model.head != "mlp" and recipe.model.norm == "batch"
    if (privacy.record_noise or privacy.site_clip) and batch_norm:
        raise ConfigError('model.norm must be "layer" where record_noise or site_clip is set; got "batch"')
    if privacy.secure and federation.compression != "none":
        raise ConfigError(
            f'federation.compression must be "none" where secure is set: masked sums need all bits; got '
            f'"{federation.compression}"'
        )
    if (privacy.secure or privacy.site_clip) and federation.strategy in ROBUST:
        raise ConfigError(
            "federation.strategy must be a mean (fedavg, fedprox, fedadam, fedyogi) where secure or site_clip is set; "
            f"got {federation.strategy!r}, which compares sites"
        )
    if privacy.secure_threshold and not privacy.secure:
        raise ConfigError("federation.privacy.secure must be true where secure_threshold is set; got false")
    if privacy.secure and min(federation.min_sites, federation.quorum) < (least := privacy.min_secure_sites):
        raise ConfigError(
            f"federation.min_sites and federation.quorum must be at least {least} where secure is set; "
            f"got {federation.min_sites} and {federation.quorum}"
        )


def training_steps(recipe: FederatedRecipe, notes: int) -> int:
    """The optimizer steps of an epoch at a site with so many train notes."""
    assert not isinstance(recipe, FederatedStatisticsRecipe)  # these have no record noise
    return 1 if recipe.federation.optimizer == "fedsgd" else math.ceil(notes / recipe.training.batch)


def weight_difference(after: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]) -> Arrays:
    """after - before for each tensor, float64."""
    return {name: after[name].astype(np.float64) - before[name] for name in before}


def update_norm(update: Mapping[str, np.ndarray]) -> float:
    """The Euclidean norm over all tensors together."""
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in update.values()))


def clip_update(update: Mapping[str, np.ndarray], clip: float) -> Arrays:
    """The update, float64, scaled down to norm `clip` if it is longer."""
    factor = min(1.0, clip / max(update_norm(update), 1e-300))
    return {name: array * np.float64(factor) for name, array in update.items()}


def secure_normal() -> Draw:
    """A source of normal numbers, seeded by the operating system."""
    return secure_generator().standard_normal


def noisy_mean(updates: Sequence[Mapping[str, np.ndarray]], clip: float, noise: float, draw: Draw) -> Arrays:
    """(sum of clipped updates + N(0, (noise x clip)^2)) / number of updates, float64."""
    total: Arrays = {}
    for update in updates:
        for name, array in clip_update(update, clip).items():
            total[name] = total[name] + array if name in total else array
    if noise:
        total = {name: array + noise * clip * draw(array.shape) for name, array in total.items()}
    return {name: array / len(updates) for name, array in total.items()}


@dataclass
class CentralNoise:
    """Replaces the updates of a round by their noisy mean, and accounts for it per site.

    It is the `reduce` of `ValidatingStrategy`.
    """

    settings: PrivacySettings
    draw: Draw = field(default_factory=secure_normal)
    accountants: dict[str, PrivacyAccountant] = field(default_factory=dict)  # by site

    def __call__(self, number: int, initial: Arrays, updates: list[SiteUpdate]) -> SiteUpdate:
        """The noisy mean as one update.

        The sum is divided by all sites, also for labels that only some sites use: such labels change more slowly.
        """
        differences = [weight_difference(update.arrays, initial) for update in updates]
        mean = noisy_mean(differences, self.settings.site_clip, self.settings.site_noise, self.draw)
        self.record_round([update.site for update in updates])
        notes = sum(update.notes for update in updates)
        return SiteUpdate(
            "all sites",
            {name: (first + mean[name]).astype(first.dtype) for name, first in initial.items()},
            notes,
            sum(update.notes * update.loss for update in updates) / notes,
            np.any([update.label_mask for update in updates], axis=0),
        )

    def record_round(self, sites: Iterable[str]) -> None:
        """Accounts for a round in which these sites took part."""
        if self.settings.site_noise:
            for site in sites:
                self.accountants.setdefault(site, PrivacyAccountant()).add(self.settings.site_noise, 1.0)

    @property
    def epsilon(self) -> float:
        """The largest epsilon of a site; infinite without noise."""
        return max_epsilon(self.accountants, self.settings.delta) if self.settings.site_noise else math.inf


class PrivacyBudget:
    """The privacy mechanisms of the server, and the accountants of sites (`central`) and of notes (`records`).

    With `record_noise`, each request to train counts against the notes of the site, even if its reply is
    lost. Sampling rate and steps follow from its reported number of notes.
    """

    def __init__(self, recipe: FederatedRecipe, saved: Mapping[str, Any] | None = None):
        saved = saved or {}
        self.recipe, self.settings = recipe, recipe.federation.privacy
        self.central = None
        if self.settings.site_clip:
            self.central = CentralNoise(self.settings, accountants=_from_json(saved.get("sites", {})))
        self.records = _from_json(saved.get("records", {}))

    @property
    def has_noise(self) -> bool:
        """Whether there is noise to account for."""
        return bool(self.settings.record_noise or self.settings.site_noise)

    @property
    def reduce(self) -> CentralNoise | None:
        """The `reduce` of the strategy; None with secure aggregation, where sites clip and add the noise."""
        return None if self.settings.secure else self.central

    def record_training(self, notes: Mapping[str, int]) -> None:
        """Accounts for a round of training at sites with these numbers of notes."""
        federation = self.recipe.federation
        if self.settings.record_noise and isinstance(self.recipe, HeadsRecipe):
            for site, count in notes.items():
                steps = training_steps(self.recipe, count)
                accountant = self.records.setdefault(site, PrivacyAccountant())
                accountant.add(self.settings.record_noise, 1 / steps, steps * federation.local_epochs)

    def record_secure_sum(self, sites: Iterable[str]) -> None:
        """Accounts for a round whose secure sum was unmasked."""
        if self.central:
            self.central.record_round(sites)

    def epsilons(self) -> dict[str, float | None]:
        """The largest epsilon of a site and of a note so far; None without noise."""
        spent = self.central.epsilon if self.central else math.inf
        records = max_epsilon(self.records, self.settings.delta) if self.settings.record_noise else None
        return {"epsilon": spent if math.isfinite(spent) else None, "record_epsilon": records}

    def to_json(self) -> dict[str, Any]:
        """The accountants as JSON."""
        return {"sites": _to_json(self.central.accountants) if self.central else {}, "records": _to_json(self.records)}


def max_epsilon(accountants: Mapping[str, PrivacyAccountant], delta: float) -> float:
    """The largest epsilon of the accountants."""
    distinct = {tuple(accountant.history): accountant for accountant in accountants.values()}
    return max((accountant.epsilon(delta) for accountant in distinct.values()), default=0.0)


def _to_json(accountants: Mapping[str, PrivacyAccountant]) -> dict[str, Any]:
    return {site: accountant.to_json() for site, accountant in sorted(accountants.items())}


def _from_json(accountants: Mapping[str, Any]) -> dict[str, PrivacyAccountant]:
    return {site: PrivacyAccountant.from_json(history) for site, history in accountants.items()}
