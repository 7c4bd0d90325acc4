"""Hospital-level privacy: clipped updates, Gaussian noise on their sum, and what that has cost each hospital.

A site's update is what it adds to the weights. It is clipped to `site_clip` in the norm of all its tensors together;
every site then counts the same, whatever its notes, or a large one could move the mean by more than clip / sites. Noise
of standard deviation `site_noise` x `site_clip` on the sum hides whether any one site's update was the one it sent or
nothing at all.

Batch normalisation is refused: its running variances are no gradients (their size would eat the clip) and noise makes
them negative.

Which sites a round asks follows from the recipe's seed, which is no secret. So there is no privacy by sampling: a site
pays in full for each round that it takes part in, and nothing for the others; `epsilon` is the largest over sites. Who
draws sites in secret, each with the same chance, may book `Ledger.add(noise, chance)` a round instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nosology.core import ConfigError
from nosology.federated.federation_settings import FederatedHeadsRecipe, PrivacySettings
from nosology.federated.privacy.dp_sgd import Ledger, fresh_generator
from nosology.federated.rounds.records import Arrays
from nosology.federated.rounds.replies import SiteUpdate
from nosology.federated.rounds.strategy import ROBUST

_FEWEST_SECURE = 3  # of two sites each knows the other's update: the sum less its own


def check_privacy(recipe: FederatedHeadsRecipe) -> None:
    """Raises ConfigError for a recipe whose privacy cannot be had."""
    federation, privacy = recipe.federation, recipe.federation.privacy
    if privacy.site_noise and not privacy.site_clip:
        raise ConfigError("federation.privacy.site_clip must be above 0 where site_noise is set; got 0")
    if (privacy.record_noise or privacy.site_clip) and recipe.model.head != "mlp" and recipe.model.norm == "batch":
        raise ConfigError('model.norm must be "layer" where record_noise or site_clip is set; got "batch"')
    if (privacy.secure or privacy.site_clip) and federation.strategy in ROBUST:
        raise ConfigError(
            "federation.strategy must be a mean (fedavg, fedprox, fedadam, fedyogi) where secure or site_clip is set; "
            f"got {federation.strategy!r}, which compares sites"
        )
    if privacy.secure and min(federation.min_sites, federation.quorum) < _FEWEST_SECURE:
        raise ConfigError(
            f"federation.min_sites and federation.quorum must be {_FEWEST_SECURE} at least where secure is set; "
            f"got {federation.min_sites} and {federation.quorum}"
        )


def difference(after: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]) -> Arrays:
    """What was added to each tensor, in float64."""
    return {name: after[name].astype(np.float64) - before[name] for name in before}


def norm(update: Mapping[str, np.ndarray]) -> float:
    """The Euclidean norm over all tensors together."""
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in update.values()))


def clipped(update: Mapping[str, np.ndarray], clip: float) -> Arrays:
    """The update in float64, made shorter if its norm is above clip; it points where it did."""
    share = min(1.0, clip / max(norm(update), 1e-300))
    return {name: array * np.float64(share) for name, array in update.items()}


Draw = Callable[[tuple[int, ...]], np.ndarray]  # standard normal numbers of a shape


def fresh_normal() -> Draw:
    """A source of normal numbers that nobody can foretell."""
    return fresh_generator().standard_normal


def noisy_mean(updates: Sequence[Mapping[str, np.ndarray]], clip: float, noise: float, draw: Draw) -> Arrays:
    """(sum of clipped updates + N(0, (noise x clip)^2)) / number of updates, float64."""
    total: Arrays = {}
    for update in updates:
        for name, array in clipped(update, clip).items():
            total[name] = total[name] + array if name in total else array
    if noise:
        total = {name: array + noise * clip * draw(array.shape) for name, array in total.items()}
    return {name: array / len(updates) for name, array in total.items()}


@dataclass
class CentralNoise:
    """The server's part: one update out of the sites' updates, and the ledger of what each site has paid.

    Stands between the guard and the strategy (`GuardedStrategy(reduce=...)`); `to_json` and `from_json` carry the
    ledgers over a restart.
    """

    settings: PrivacySettings
    draw: Draw = field(default_factory=fresh_normal)
    ledgers: dict[str, Ledger] = field(default_factory=dict)  # by site

    def __call__(self, number: int, start: Arrays, updates: list[SiteUpdate]) -> SiteUpdate:
        """The clipped mean with noise, as one update for all sites.

        A code that only some sites know still shares the sum among all of them: it moves more slowly.
        """
        added = [difference(update.arrays, start) for update in updates]
        mean = noisy_mean(added, self.settings.site_clip, self.settings.site_noise, self.draw)
        self.book([update.site for update in updates])
        notes = sum(update.notes for update in updates)
        return SiteUpdate(
            "all sites",
            {name: (first + mean[name]).astype(first.dtype) for name, first in start.items()},
            notes,
            sum(update.notes * update.loss for update in updates) / notes,
            np.any([update.known for update in updates], axis=0),
        )

    def book(self, sites: Iterable[str]) -> None:
        """Books a round for the sites that took part in it."""
        if self.settings.site_noise:
            for site in sites:
                self.ledgers.setdefault(site, Ledger()).add(self.settings.site_noise, 1.0)

    @property
    def epsilon(self) -> float:
        """What the site that has paid most has paid, at the settings' delta; infinite without noise."""
        return largest(self.ledgers, self.settings.delta) if self.settings.site_noise else math.inf

    def to_json(self) -> dict[str, Any]:
        """The ledgers as JSON."""
        return _to_json(self.ledgers)

    @classmethod
    def from_json(cls, settings: PrivacySettings, ledgers: Mapping[str, Any]) -> CentralNoise:
        """Goes on with the ledgers that `to_json` wrote."""
        return cls(settings, ledgers=_from_json(ledgers))


class Privacy:
    """All that the server does for privacy, and both accounts: of hospitals (`central`) and of notes (`records`).

    A site's notes are paid for each time that it is asked to train with `record_noise`, whatever becomes of its reply.
    Sampling rate and steps follow from its number of notes, which it has told.
    """

    def __init__(self, recipe: FederatedHeadsRecipe, saved: Mapping[str, Any] | None = None):
        saved = saved or {}
        self.recipe, self.settings = recipe, recipe.federation.privacy
        has_clip = self.settings.site_clip > 0
        self.central = CentralNoise.from_json(self.settings, saved.get("sites", {})) if has_clip else None
        self.records = _from_json(saved.get("records", {}))

    @property
    def noisy(self) -> bool:
        """Whether there is anything to account for."""
        return bool(self.settings.record_noise or self.settings.site_noise)

    @property
    def reduce(self) -> CentralNoise | None:
        """What stands between guard and strategy; nothing in a secure round, where sites clip and add the noise."""
        return None if self.settings.secure else self.central

    def asked(self, notes: Mapping[str, int]) -> None:
        """Books a round of training for sites, given with their numbers of notes."""
        federation = self.recipe.federation
        if self.settings.record_noise:
            for site, count in notes.items():
                steps = 1 if federation.optimizer == "sgd" else math.ceil(count / self.recipe.training.batch)
                ledger = self.records.setdefault(site, Ledger())
                ledger.add(self.settings.record_noise, 1 / steps, steps * federation.local_epochs)

    def opened(self, sites: Iterable[str]) -> None:
        """Books a round whose secure sum was opened."""
        if self.central:
            self.central.book(sites)

    def row(self) -> dict[str, float | None]:
        """Both epsilons so far, of the site that has paid most; None where there is no noise."""
        spent = self.central.epsilon if self.central else math.inf
        records = largest(self.records, self.settings.delta) if self.settings.record_noise else None
        return {"epsilon": spent if math.isfinite(spent) else None, "record_epsilon": records}

    def to_json(self) -> dict[str, Any]:
        """The accounts as JSON."""
        return {"sites": self.central.to_json() if self.central else {}, "records": _to_json(self.records)}


def largest(ledgers: Mapping[str, Ledger], delta: float) -> float:
    """The largest epsilon of some ledgers."""
    distinct = {tuple(ledger.runs): ledger for ledger in ledgers.values()}
    return max((ledger.epsilon(delta) for ledger in distinct.values()), default=0.0)


def _to_json(ledgers: Mapping[str, Ledger]) -> dict[str, Any]:
    return {site: ledger.to_json() for site, ledger in sorted(ledgers.items())}


def _from_json(ledgers: Mapping[str, Any]) -> dict[str, Ledger]:
    return {site: Ledger.from_json(runs) for site, runs in ledgers.items()}
