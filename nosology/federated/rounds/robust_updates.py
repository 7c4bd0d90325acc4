"""Bounds on the updates of sites, and how much of each update a robust rule has cut off.

A site that sends false updates can make them long (a norm bound shortens them), or false in every value (median,
trimmed mean and Krum do not use them). The report is a share between 0 and 1 per site, by name; it has no values of an
update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate

KRUM = ("krum", "multi_krum")
ROBUST = ("trimmed_mean", "median", *KRUM)  # strategies that compare sites
Shares = dict[str, float]  # by site: what was cut off, between 0 (nothing) and 1 (all)


def bound_norms(
    updates: list[SiteUpdate], initial: Arrays, settings: FederationSettings
) -> tuple[list[SiteUpdate], Shares]:
    """The updates with changes no longer than the bound, all of equal weight, and what was cut off of each.

    The weight of a site is its number of notes, its own claim: the bounded update of a site that claims a billion notes
    would still decide everything. So each site counts once. Without a bound: the updates as they are, and no shares.
    """
    if not (settings.norm_bound or settings.norm_multiple):
        return updates, {}
    norms = [change_norm(update.arrays, initial) for update in updates]
    bound = settings.norm_bound or math.inf
    if settings.norm_multiple:
        bound = min(bound, settings.norm_multiple * float(np.median(norms)))
    factors = [min(1.0, bound / norm) if norm else 1.0 for norm in norms]
    bounded = [
        replace(update, notes=1.0, arrays=_shorten(update.arrays, initial, factor))
        for update, factor in zip(updates, factors)
    ]
    return bounded, {update.site: 1 - factor for update, factor in zip(updates, factors)}


def change_norm(arrays: Mapping[str, np.ndarray], initial: Arrays) -> float:
    """The Euclidean norm of the change of all weights together."""
    squares = (np.square(arrays[name].astype(np.float64) - first).sum() for name, first in initial.items())
    return math.sqrt(sum(map(float, squares)))


def _shorten(arrays: Arrays, initial: Arrays, factor: float) -> Arrays:
    if factor == 1:
        return arrays
    changes = {name: factor * (arrays[name].astype(np.float64) - first) for name, first in initial.items()}
    return {name: (first + changes[name]).astype(first.dtype) for name, first in initial.items()}


def select_counts(counts: list[SiteCounts], settings: FederationSettings) -> list[SiteCounts]:
    """The dev counts that calibration and threshold are tuned on; with a robust rule, not those of all sites.

    A site may claim any counts. So the sites with the lowest and the highest best thresholds are left out, a fifth of
    the sites at each end and at least one, and no site weighs more than the median site.
    """
    counts = [each for each in counts if each.true.any()] or counts
    robust = settings.strategy in ROBUST or settings.norm_bound or settings.norm_multiple
    if len(counts) < 3 or not robust:
        return counts
    ends = max(1, len(counts) // 5)
    kept = sorted(counts, key=lambda each: each.best[0])[ends : len(counts) - ends]
    sizes = [int(each.cells.sum()) for each in kept]
    limit = float(np.median([int(each.cells.sum()) for each in counts]))
    return [_scale(each, limit / size) if size > limit else each for each, size in zip(kept, sizes)]


def _scale(counts: SiteCounts, factor: float) -> SiteCounts:
    """The counts times a factor, rounded."""
    scaled: dict[str, Any] = {}
    for name, array in counts.arrays().items():
        values = array * factor
        scaled[name] = values if array.dtype == np.float64 else np.rint(values).astype(array.dtype)
    return SiteCounts(**scaled)


def trimmed_sites(settings: FederationSettings, sites: int) -> int:
    """The number of sites that trimmed_mean cuts off at each end."""
    return int(settings.trim * sites)


def choose_updates(updates: list[SiteUpdate], initial: Arrays, settings: FederationSettings) -> list[SiteUpdate]:
    """The updates that are averaged: those that Krum or Multi-Krum chooses, with equal weights; else all.

    Krum scores an update by its squared distances to the nearest n - f - 2 others, for n sites of which f may be false
    (`malicious`). It chooses the lowest score, Multi-Krum the lowest n - f scores. Distances are those of changes in
    double precision: of whole weights in float32 they would be rounding errors.
    """
    if settings.strategy not in KRUM:
        return updates
    products = np.zeros((len(updates), len(updates)))
    for name, first in initial.items():
        changes = np.stack([(update.arrays[name].astype(np.float64) - first).ravel() for update in updates])
        products += changes @ changes.T
    squares = np.diag(products)
    distances = squares[:, None] + squares - 2 * products
    np.fill_diagonal(distances, np.inf)  # an update is no neighbour of itself
    nearest = max(1, len(updates) - settings.malicious - 2)
    order = np.argsort(np.sort(distances, axis=1)[:, :nearest].sum(1), kind="stable")
    chosen = order[: 1 if settings.strategy == "krum" else max(1, len(updates) - settings.malicious)]
    return [replace(updates[index], notes=1.0) for index in sorted(chosen)]


def cut_shares(updates: list[SiteUpdate], chosen: list[SiteUpdate], settings: FederationSettings) -> Shares:
    """How much of each update a strategy that compares sites did not use; empty for means.

    trimmed_mean: the share of its values that were cut off. median: the share that is the smallest or largest of all
    sites. krum and multi_krum: 0 for sites whose update was chosen, 1 for the others.
    """
    if settings.strategy in KRUM:
        used = {update.site for update in chosen}
        return {update.site: float(update.site not in used) for update in updates}
    if settings.strategy not in ("median", "trimmed_mean") or len(updates) < 3:
        return {}
    cut = trimmed_sites(settings, len(updates)) if settings.strategy == "trimmed_mean" else 1
    last, counts, size = len(updates) - 1 - cut, np.zeros(len(updates), np.int64), 0
    for name in updates[0].arrays if cut else ():
        values = np.stack([update.arrays[name] for update in updates]).reshape(len(updates), -1)
        ends = np.partition(values, (cut, last), axis=0)
        counts += ((values < ends[cut]) | (values > ends[last])).sum(1)
        size += values.shape[1]
    return {update.site: float(count / max(1, size)) for update, count in zip(updates, counts)}


def merge_shares(first: Shares, second: Shares) -> Shares:
    """What two rules, one after the other, have cut off."""
    sites = sorted({**first, **second})
    return {site: 1 - (1 - first.get(site, 0.0)) * (1 - second.get(site, 0.0)) for site in sites}


def format_shares(shares: Mapping[str, float], most: int = 3) -> str:
    """The sites of which most was cut off, as part of a line; empty if nothing was."""
    ranked = sorted((-share, site) for site, share in shares.items() if share >= 0.005)
    return "cut off: " + ", ".join(f"{site} {-share:.0%}" for share, site in ranked[:most]) if ranked else ""
