"""The coder that is there without training: every code of ICD-10-CM, by its terms."""

from __future__ import annotations

from nosology.core import ConfigError
from nosology.core.version import __version__
from nosology.models.bundle import Bundle
from nosology.models.decision import Decision
from nosology.models.lexicon import THRESHOLD, Lexicon
from nosology.models.lexicon_settings import CORPUS, LexiconRecipe


def day_one(recipe: LexiconRecipe | None = None) -> Bundle:
    """The bundle of the untrained lexicon; it lies in no folder."""
    recipe = recipe or LexiconRecipe()
    if CORPUS in (recipe.codes.release, recipe.codes.seventh):
        raise ConfigError("codes.release and codes.seventh can be left to a corpus only in training; got corpus")
    model = Lexicon.untrained(recipe)
    threshold = recipe.decision.threshold
    decision = Decision(threshold if isinstance(threshold, float) else THRESHOLD)
    provenance = {"package": f"nosology {__version__}", "trained_on": [], "corpora": [], "tuned_on": None}
    return Bundle(model, decision, recipe.model_dump(mode="json"), provenance)
