"""Which server runs a federation: rounds of all sites, asynchronous rounds, or stages of sums."""

from __future__ import annotations

from nosology.federated.federation_settings import FederatedRecipe, FederatedStatisticsRecipe
from nosology.federated.rounds.async_rounds import AsyncFederation
from nosology.federated.rounds.federation_loop import Report
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.participants import SiteGrid
from nosology.federated.rounds.statistics_server import StatisticsFederation


def make_federation(grid: SiteGrid, recipe: FederatedRecipe, report: Report = lambda line: None) -> FlowerFederation:
    """The federation of a recipe."""
    if isinstance(recipe, FederatedStatisticsRecipe):
        return StatisticsFederation(grid, recipe, report)
    return (AsyncFederation if recipe.federation.mode == "async" else FlowerFederation)(grid, recipe, report)
