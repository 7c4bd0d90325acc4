"""Settings of the coder of short reports: those of HMHAN and of the SVMs over words."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from nosology.core.settings import Settings
from nosology.models.hmhan.hmhan_settings import HmhanRecipe


class WordFeatureSettings(Settings):
    """Linear SVMs over words and word pairs, marked with their context (negated ...); the nets add to their scores."""

    features: int = Field(30_000, ge=1)  # at most
    min_notes: int = Field(2, ge=1)  # train reports and code descriptions with the feature
    pairs: bool = True  # pairs of neighbouring words too
    c: list[Annotated[float, Field(gt=0)]] = Field([1.0, 3.0, 10.0], min_length=1)  # of the SVMs; the best on
    # held-out reports is used
    folds: int = Field(5, ge=2)  # cross-validation folds for the held-out scores that the nets are trained with


class ReportsRecipe(HmhanRecipe):
    """A recipe of kind `reports`."""

    kind: Literal["reports"] = "reports"  # pyrefly: ignore[bad-override]  # a recipe of HMHAN otherwise
    words: WordFeatureSettings = WordFeatureSettings()
    calibration: Literal["auto", "global"] = "global"

    @model_validator(mode="after")
    def _check_descriptions(self) -> ReportsRecipe:
        if self.report.descriptions:
            raise ValueError("report.descriptions must be false: the SVMs learn from the descriptions; got true")
        return self
