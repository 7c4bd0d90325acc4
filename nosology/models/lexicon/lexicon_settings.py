"""What a recipe of kind `lexicon` may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nosology.core.settings import Settings
from nosology.training.recipe_settings import Recipe

CORPUS = "corpus"  # what training finds out from the codes of its notes

Policy = Literal["keep", "drop", "learn"]
History = Literal["keep", "drop", "learn", "history"]


class ContextSettings(Settings):
    """Whether a mention in such a context is coded; a history may have a code of its own (Z80 to Z87)."""

    negated: Policy = "drop"
    family: History = "history"
    historical: History = "history"
    uncertain: Policy = "drop"
    hypothetical: Policy = "drop"


def _year(value: Any) -> Any:
    """A release as it is named: --set codes.release=2019 gives a number."""
    return str(value) if type(value) is int else value


class CodeSetSettings(Settings):
    """Which codes come out; "corpus": as the training notes were coded."""

    # of ICD-10-CM, such as 2019, or "corpus"; by default the newest
    release: Annotated[str | None, BeforeValidator(_year)] = None
    seventh: bool | Literal["corpus"] = True  # injuries have their seventh character; some editions leave it out
    vague: Literal["keep", "drop"] = "drop"  # codes that say no more than pain, illness, injury, infection or bleeding

    @property
    def has_seventh(self) -> bool:
        """Whether injuries have their seventh character; True where the corpus decides and there is none yet."""
        return self.seventh is not False


class MatchSettings(Settings):
    """How far a mention may stray from its term."""

    gap: int = Field(2, ge=0, le=10)  # content words between the words of a term
    learned_gap: int = Field(8, ge=0, le=10)  # the same for a learned phrase


class LearnSettings(Settings):
    """How the lexicon is adapted to coded notes."""

    folds: int = Field(5, ge=2)  # parts of the notes; what is learned from the others is weighed on each
    terms: bool = True  # beside what the notes teach, the terms of the classification
    tagger: bool = True  # evidence also teaches which words around a mention speak for it
    longest: int = Field(3, ge=1, le=5)  # words of a phrase that is learned without evidence
    rounds: int = Field(200, ge=1)  # boosted trees of a weigher,
    leaves: int = Field(15, ge=2)
    rate: float = Field(0.06, gt=0, le=1)
    min_leaf: int = Field(20, ge=1)
    forest: int = Field(60, ge=1)  # and trees of the random forest beside them
    forest_leaves: int = Field(2000, ge=2)
    forest_min_leaf: int = Field(5, ge=1)


class LexiconRecipe(Recipe):
    """What a recipe of kind `lexicon` may say."""

    kind: Literal["lexicon"] = "lexicon"
    codes: CodeSetSettings = CodeSetSettings()
    context: ContextSettings = ContextSettings()
    match: MatchSettings = MatchSettings()
    learn: LearnSettings = LearnSettings()
