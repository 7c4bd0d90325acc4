"""The tables that recipes of all models share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nosology.core.section import Section

__all__ = ["DecisionSettings", "HoldoutSettings", "LabelSettings", "Recipe", "Section"]


class LabelSettings(Section):
    """Which codes of the training notes a model learns."""

    # empty: all that the notes have
    systems: list[Literal["icd9cm", "icd9proc", "icd10cm", "icd10pcs"]] = Field(default_factory=list)
    min_notes: int = Field(1, ge=1)  # codes of fewer training notes are not learned,
    max_notes: int | None = Field(None, ge=1)  # nor those of more; not set: no bound
    most: int | None = Field(None, ge=1)  # of the codes that are left so many, those of most notes; not set: all

    @property
    def narrow(self) -> bool:
        """Whether the codes that are not learned are not asked for either: they are neither misses nor a matter."""
        return self.max_notes is not None or self.most is not None


class DecisionSettings(Section):
    """How probabilities become accepted codes."""

    threshold: Annotated[float, Field(ge=0, le=1)] | Literal["global", "per_code"] = (
        "global"  # a number, or how to find it on dev
    )
    min_positives: int = Field(10, ge=1)  # per_code: codes with fewer dev notes keep the global threshold
    at_least_one: bool | Literal["auto"] = False  # a note's likeliest code is accepted; auto: if all dev notes have one


class HoldoutSettings(Section):
    """What stands in for dev notes where a corpus has none."""

    share: float = Field(0.15, gt=0, lt=1)  # of the training patients


class Recipe(Section):
    """What every recipe may say; each kind of model adds its own tables."""

    kind: str
    seed: int = Field(0, ge=0)
    labels: LabelSettings = LabelSettings()
    holdout: HoldoutSettings = HoldoutSettings()
    decision: DecisionSettings = DecisionSettings()
