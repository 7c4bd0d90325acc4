"""A federation on one machine as one program: all sites train at once (`training.stacked`), without Flower.

It gives the weights of the same federation through Flower up to rounding, some times faster on a GPU. There is nobody
to wait for and nobody to distrust here, so it has plain means alone: FedAvg and FedProx, every site in every round.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nosology.core import ConfigError, FederationError
from nosology.core.files import check_output_folder
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds import saved_rounds as saved
from nosology.federated.rounds.agreement import agreed_labels, refusals
from nosology.federated.rounds.hospital_site import Arrays, Site, epochs_of, loop_settings
from nosology.federated.rounds.outcome import Row, add_test, bundle_of, check_recipe, line_of, write_history
from nosology.federated.rounds.saved_rounds import Agreement, SavedRound
from nosology.federated.rounds.site_counts import SiteCounts
from nosology.federated.rounds.stacked_training import StackedSites
from nosology.models.bundle import MANIFEST, Bundle
from nosology.models.heads.vector_loop import plan_of
from nosology.training.calibration import PlattScaling
from nosology.training.run_folder import run_folder

Say = Callable[[str], None]


def run_stacked(
    sites: Sequence[Site],
    recipe: FederatedHeadsRecipe,
    out: str | Path,
    *,
    corpora: list[dict[str, Any]] | None = None,
    notes: str = "",
    say: Say = lambda line: None,
) -> Bundle:
    """The coder that the sites train together, saved in `out`; a run that was killed goes on after its last round.

    notes: a hash of the sites' notes; a run with others does not go on.
    """
    _check(recipe)
    check_output_folder(out, marker=MANIFEST)
    folder = run_folder(out)
    with saved.locked(folder):
        bundle, history = _trained(sites, recipe, folder, corpora or [], notes, say)
        bundle.save(out, also=write_history(history, folder))
        saved.clear(folder)
    return bundle


def _trained(
    sites: Sequence[Site],
    recipe: FederatedHeadsRecipe,
    folder: Path,
    corpora: list[dict[str, Any]],
    notes: str,
    say: Say,
) -> tuple[Bundle, list[Row]]:
    refused = _too_small(sites, recipe)
    agreement = Agreement.of_run(folder, recipe, notes)
    if agreement is None:
        agreement = _agree([site for site in sites if site.name not in refused], recipe, notes)
        agreement.save(folder)
    sites = sorted((site for site in sites if site.name in agreement.facts), key=lambda site: site.name)
    for site in sites:
        site.prepare(agreement.labels, agreement.scaler)
    for name, why in sorted(refused.items()):
        say(f"{name} is left out: {why}")
    state = SavedRound.load(folder, agreement.hash)
    say(f"{len(sites)} sites, {len(agreement.labels)} codes{f', goes on after round {state.number}' if state else ''}")
    rounds = _Rounds(sites, recipe, agreement)
    state = state or SavedRound(agreement.hash, 0, agreement.first_weights())
    while state.number < recipe.federation.rounds:
        weights, row = rounds.round(state.weights, state.number + 1)
        state = replace(state, number=state.number + 1, weights=weights, history=[*state.history, row])
        state.save(folder)
        say(line_of(row, recipe.federation.rounds))
    bundle = bundle_of(agreement, state, _summed(sites, state.weights, recipe, "dev"), corpora, refused)
    test = _summed(sites, state.weights, recipe, "test", bundle.model.calibration, bundle.decision.threshold)
    add_test(bundle, test)
    return bundle, state.history


def _check(recipe: FederatedHeadsRecipe) -> None:
    settings = recipe.federation
    for name, value, allowed in (
        ("strategy", settings.strategy, ("fedavg", "fedprox")),
        ("moments", settings.moments, ("fresh",)),
        ("fraction_train", settings.fraction_train, (1.0,)),
        ("privacy", settings.privacy, (type(settings.privacy)(),)),
    ):
        if value not in allowed:
            wanted = " or ".join(map(str, allowed)) if name != "privacy" else "as it comes"
            raise ConfigError(f"federation.{name} must be {wanted} where all sites are one program; got {value}")
    check_recipe(recipe)


def _too_small(sites: Sequence[Site], recipe: FederatedHeadsRecipe) -> dict[str, str]:
    """Why sites are left out."""
    fewest, sizes = recipe.federation.min_site_notes, {site.name: len(site.notes["train"].codes) for site in sites}
    return {
        name: f"it has {size} train notes; {fewest} are needed (federation.min_site_notes)"
        for name, size in sizes.items()
        if size < fewest
    }


def _agree(sites: Sequence[Site], recipe: FederatedHeadsRecipe, notes: str) -> Agreement:
    settings = recipe.federation
    if not sites:
        raise FederationError(
            f"no site has {settings.min_site_notes} train notes; that many are needed (federation.min_site_notes)"
        )
    facts = {site.name: site.facts(settings.min_site_notes) for site in sites}
    if refused := refusals(facts):
        site, why = next(iter(refused.items()))
        raise FederationError(f"{site} cannot take part: {why}")
    told = [site.statistics(settings.min_site_notes) for site in sorted(sites, key=lambda site: site.name)]
    facts = dict(sorted(facts.items()))
    return Agreement(recipe, agreed_labels(facts, settings), sum(told[1:], told[0]).scaler(), facts, notes)


class _Rounds:
    """The rounds of some sites; those with equally many steps an epoch are trained together."""

    def __init__(self, sites: Sequence[Site], recipe: FederatedHeadsRecipe, agreement: Agreement):
        self.sites, self.recipe, self.device = sites, recipe, sites[0].device
        self.net = agreement.head()
        settings = loop_settings(recipe)
        groups: dict[int, list[Site]] = defaultdict(list)
        for site in sites:
            groups[len(plan_of(len(site.ready("train")), settings, recipe.seed))].append(site)
        self.groups = [
            (group, StackedSites([site.ready("train") for site in group], settings, recipe.seed))
            for group in groups.values()
        ]

    def round(self, weights: Arrays, number: int) -> tuple[Arrays, Row]:
        """The weights after a round, and what is told of it."""
        started = time.monotonic()
        federation = self.recipe.federation
        before = {name: torch.from_numpy(value).to(self.device) for name, value in weights.items()}
        net, total = self.net.to(self.device), sum(len(site.ready("train")) for site in self.sites)
        mu = federation.mu if federation.strategy == "fedprox" else 0.0
        sums, shares, loss = {n: torch.zeros_like(v) for n, v in before.items()}, 0.0, 0.0
        for group, stacked in self.groups:
            stack = {name: value.expand(len(group), *value.shape).clone() for name, value in before.items()}
            losses = stacked.train(net, stack, epochs_of(federation, number), mu)
            share = losses.new_tensor([len(site.ready("train")) / total for site in group])
            known = torch.from_numpy(np.stack([site.known for site in group])).to(self.device)
            knowing = known * share[:, None]  # (S, L): a code's rows are the mean of the sites that know it
            shares = shares + knowing.sum(0)
            for name, value in stack.items():
                weight = knowing if name.startswith("out.") else share
                sums[name] += (value * _broadcast(weight, value)).sum(0)
            loss += float(losses @ share)
        after = {
            name: _row_mean(value, shares, before[name]) if name.startswith("out.") else value
            for name, value in sums.items()
        }
        made = {name: value.detach().cpu().numpy() for name, value in after.items()}
        row: Row = {"round": number, "loss": loss, "sites": len(self.sites), "refused": 0, "micro_f1": None}
        row["epsilon"] = None
        if number % federation.evaluate_every == 0 or number == federation.rounds:
            counts = _summed(self.sites, made, self.recipe, "dev")
            row["micro_f1"] = counts.best[1] if counts is not None and counts.true.any() else None
        row["seconds"] = round(time.monotonic() - started, 3)
        return made, row


def _broadcast(weight: Tensor, value: Tensor) -> Tensor:
    """Weights (S,) or (S, L) as wide as a value (S, ...)."""
    return weight.view(*weight.shape, *[1] * (value.ndim - weight.ndim))


def _row_mean(total: Tensor, shares: Tensor, before: Tensor) -> Tensor:
    """Sums (L, ...) over their shares (L,); rows that nobody knows stay."""
    shares = shares.view(-1, *[1] * (total.ndim - 1))
    return torch.where(shares > 0, total / shares.clamp(min=1e-12), before)


def _summed(
    sites: Sequence[Site],
    weights: Arrays,
    recipe: FederatedHeadsRecipe,
    split: str,
    calibration: PlattScaling | None = None,
    threshold: float | None = None,
) -> SiteCounts | None:
    """The sites' counts added up."""
    total: SiteCounts | None = None
    for site in sites:
        counts = site.evaluate(weights, recipe, split, calibration, threshold)
        total = counts if total is None else total + counts
    return total
