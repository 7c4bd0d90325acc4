"""The registry of models: for each kind, where its model, trainer and recipe are.

Entries are strings, so that torch is imported only when a neural model is used. To add a model, add one entry
(docs/adding_a_model.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from nosology.core import ConfigError


class ModelEntry(NamedTuple):
    """The parts of one kind of model as "module:name", and the pip extra that brings its libraries."""

    model: str  # a class with the Model contract and `load(folder)`
    trainer: str  # a subclass of nosology.models.train.CoderTrainer
    recipe: str  # a subclass of nosology.training.recipe_settings.Recipe
    extra: str = ""


REGISTRY: dict[str, ModelEntry] = {
    "linear": ModelEntry(
        "nosology.models.linear.linear_model:Linear",
        "nosology.models.linear.linear_trainer:LinearTrainer",
        "nosology.models.linear.linear_trainer:LinearRecipe",
    ),
    "lexicon": ModelEntry(
        "nosology.models.lexicon.lexicon_model:Lexicon",
        "nosology.models.lexicon.lexicon_trainer:LexiconTrainer",
        "nosology.models.lexicon.lexicon_settings:LexiconRecipe",
    ),
    "caml": ModelEntry(
        "nosology.models.laat.laat_model:Caml",
        "nosology.models.laat.laat_trainer:LaatTrainer",
        "nosology.federated.federation_settings:FederatedCamlRecipe",
        "train",
    ),
    "laat": ModelEntry(
        "nosology.models.laat.laat_model:Laat",
        "nosology.models.laat.laat_trainer:LaatTrainer",
        "nosology.federated.federation_settings:FederatedLaatRecipe",
        "train",
    ),
    "plm_icd": ModelEntry(
        "nosology.models.laat.laat_model:PlmIcd",
        "nosology.models.laat.laat_trainer:PlmIcdTrainer",
        "nosology.models.laat.laat_settings:PlmIcdRecipe",
        "embed",
    ),
    "dual_laat": ModelEntry(
        "nosology.models.dual_laat.dual_laat_model:DualLaat",
        "nosology.models.dual_laat.dual_laat_trainer:DualLaatTrainer",
        "nosology.federated.federation_settings:FederatedDualLaatRecipe",
        "train",
    ),
    "heads": ModelEntry(
        "nosology.models.heads.heads_model:Heads",
        "nosology.models.heads.heads_trainer:HeadsTrainer",
        "nosology.federated.federation_settings:FederatedHeadsRecipe",
        "embed",
    ),
    "plant": ModelEntry(
        "nosology.models.plant.plant_model:Plant",
        "nosology.models.plant.plant_trainer:PlantTrainer",
        "nosology.federated.federation_settings:FederatedPlantRecipe",
        "train",
    ),
    "hmhan": ModelEntry(
        "nosology.models.hmhan.hmhan_model:Hmhan",
        "nosology.models.hmhan.hmhan_trainer:HmhanTrainer",
        "nosology.federated.federation_settings:FederatedHmhanRecipe",
        "embed",
    ),
    "reports": ModelEntry(
        "nosology.models.reports.reports_model:Reports",
        "nosology.models.reports.reports_trainer:ReportsTrainer",
        "nosology.models.reports.reports_settings:ReportsRecipe",
        "embed",
    ),
    "stacked": ModelEntry(
        "nosology.models.stacked.stacked_model:Stacked",
        "nosology.models.stacked.stacked_trainer:StackedTrainer",
        "nosology.models.stacked.stacked_settings:StackedRecipe",
        "train",
    ),
}


def resolve(path: str) -> Any:
    """The object that "module:name" stands for."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def entry_of(kind: str) -> ModelEntry:
    """The registry entry of a kind; ConfigError if there is none."""
    if kind not in REGISTRY:
        raise ConfigError(f"kind must be one of {', '.join(REGISTRY)}; got {kind!r}")
    return REGISTRY[kind]


def load_class(kind: str, part: str) -> Any:
    """The model, trainer or recipe class of a kind; ConfigError names the pip extra whose library is missing."""
    entry = entry_of(kind)
    try:
        return resolve(getattr(entry, part))
    except ImportError as error:
        if error.name and error.name.startswith("nosology"):
            raise
        raise ConfigError(f"{kind} needs {error.name}: pip install 'nosology[{entry.extra}]'") from error
