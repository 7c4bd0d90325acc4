"""Settings of the lexicon coder."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from nosology.core.settings import Settings
from nosology.training.recipe_settings import Recipe

CORPUS = "corpus"  # the value of settings that training infers from the codes of the notes

Policy = Literal["keep", "drop", "learn"]
History = Literal["keep", "drop", "learn", "history"]


class ContextSettings(Settings):
    """What happens to mentions in each context: coded, dropped, learned, or a history code (Z80 to Z87)."""

    negated: Policy = "drop"
    family: History = "history"
    historical: History = "history"
    uncertain: Policy = "drop"
    hypothetical: Policy = "drop"


def _year(value: Any) -> Any:
    """The release as a string: --set codes.release=2019 gives a number."""
    return str(value) if type(value) is int else value


class CodeSetSettings(Settings):
    """Which codes are suggested; "corpus": as in the training notes."""

    # of ICD-10-CM, such as 2019, or "corpus"; default: the newest
    release: Annotated[str | None, BeforeValidator(_year)] = None
    seventh: bool | Literal["corpus"] = True  # codes of injuries have a seventh character
    vague: Literal["keep", "drop"] = "drop"  # codes that mean only pain, illness, injury, infection or bleeding

    @property
    def has_seventh(self) -> bool:
        """Whether codes of injuries have a seventh character; True for "corpus" before training."""
        return self.seventh is not False


class MatchSettings(Settings):
    """How far apart the words of a term may be."""

    gap: int = Field(2, ge=0, le=10)  # content words between the words of a term
    learned_gap: int = Field(8, ge=0, le=10)  # the same for a learned phrase


class LearnSettings(Settings):
    """How the lexicon is trained on coded notes."""

    renamed: ClassVar[dict[str, str]] = {"rate": "learning_rate"}

    folds: int = Field(5, ge=2)  # of cross-validation
    terms: bool = True  # use the terms of the classification too, not only learned phrases
    tagger: bool = True  # with evidence: train a tagger that scores the words of a mention and around it
    longest: int = Field(3, ge=1, le=5)  # words of a phrase that is learned without evidence
    rounds: int = Field(200, ge=1)  # boosted trees of a classifier
    leaves: int = Field(15, ge=2)
    learning_rate: float = Field(0.06, gt=0, le=1)
    min_leaf: int = Field(20, ge=1)
    forest: int = Field(60, ge=1)  # extremely randomized trees
    forest_leaves: int = Field(2000, ge=2)
    forest_min_leaf: int = Field(5, ge=1)


class LexiconRecipe(Recipe):
    """A recipe of kind `lexicon`."""

    kind: Literal["lexicon"] = "lexicon"
    codes: CodeSetSettings = CodeSetSettings()
    context: ContextSettings = ContextSettings()
    match: MatchSettings = MatchSettings()
    learn: LearnSettings = LearnSettings()
