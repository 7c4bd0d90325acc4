"""The coder that is there without training: every code of ICD-10-CM, by its terms."""

from __future__ import annotations

from nosology.core import ConfigError, __version__
from nosology.evaluation.decision import Decision
from nosology.models.bundle import Bundle
from nosology.models.lexicon.lexicon_model import THRESHOLD, Lexicon
from nosology.models.lexicon.lexicon_settings import CORPUS, LexiconRecipe


def day_one(recipe: LexiconRecipe | None = None) -> Bundle:
    """The bundle of the untrained lexicon; it lies in no folder."""
    recipe = recipe or LexiconRecipe()
    if CORPUS in (recipe.codes.release, recipe.codes.seventh):
        raise ConfigError("codes.release and codes.seventh can be left to a corpus only in training; got corpus")
    _check(recipe)
    model = Lexicon.untrained(recipe)
    threshold = recipe.decision.threshold
    decision = Decision(threshold if isinstance(threshold, float) else THRESHOLD)
    provenance = {"package": f"nosology {__version__}", "trained_on": [], "corpora": [], "tuned_on": None}
    return Bundle(model, decision, recipe.model_dump(mode="json"), provenance)


def _check(recipe: LexiconRecipe) -> None:
    """Refuses what a coder that has learned nothing would not heed."""
    for name, policy in recipe.context:
        if policy == "learn":
            raise ConfigError(f"context.{name} can be learned only in training; day one knows keep, drop, history")
    plain = LexiconRecipe()
    for section in ("labels", "learn"):
        if getattr(recipe, section) != getattr(plain, section):
            raise ConfigError(f"day one does not learn: {section} can be set only in training")
    told = recipe.decision.threshold
    if (told != "global" and not isinstance(told, float)) or recipe.decision.at_least_one:
        raise ConfigError(f"day one's decision.threshold must be a number, without at_least_one; got {told}")
