"""Settings of the linear coder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from nosology.core.settings import Settings
from nosology.models.linear.tfidf import TfidfSettings
from nosology.training.recipe_settings import Recipe

Strength = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FitSettings(Settings):
    """How the linear SVMs are fitted."""

    c: list[Strength] = Field([0.3, 1.0, 10.0], min_length=1)  # inverse regularisation
    max_features: list[PositiveInt] = Field([100, 300, 1000, 4000], min_length=1)  # weights kept a code, the largest
    choice_codes: int = Field(300, ge=1)  # of several values above the best on dev is taken, over so many codes
    negatives: int = Field(2000, ge=1)  # a code with more notes without it learns from this many of them,
    negatives_per_positive: int = Field(10, ge=1)  # or from so many for each note with it, if that is more


class LinearRecipe(Recipe):
    """What a recipe of kind `linear` may say."""

    kind: Literal["linear"] = "linear"
    features: TfidfSettings = TfidfSettings()
    fit: FitSettings = FitSettings()
