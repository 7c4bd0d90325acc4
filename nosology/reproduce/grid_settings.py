"""What a grid of runs may say."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from nosology.core.settings import Settings
from nosology.corpora.splits import check_skew

Setting = Literal["central", "federated", "splits"]

_OWN = (("kind",), ("seed",), ("embedder", "model"), ("model", "head"), ("vectors", "cache"))  # the grid's to say


class SiteSettings(Settings):
    """The simulated hospitals of the federated runs, and the codes that all runs learn."""

    count: int = Field(20, ge=1)
    skew: Literal["iid", "size", "dirichlet"] = "iid"
    alpha: float = Field(0.5, gt=0)  # dirichlet: the smaller, the more sites differ
    exponent: float = Field(1.0, gt=0)  # size: site i has a share of (i + 1) ** -exponent
    notes: int = Field(10, ge=0)  # a code stays if each site can get so many notes of it; 0: every code stays
    stacked: bool = False  # all sites as one program without Flower: faster on a GPU, the same weights up to rounding

    @field_validator("skew", mode="before")
    @classmethod
    def _read_old_name(cls, skew: str) -> str:
        return check_skew(skew)


class SplitSettings(Settings):
    """The random splits, by patient and stratified."""

    count: int = Field(10, ge=1)
    ratios: tuple[float, float, float] = (0.7, 0.15, 0.15)


class GridSettings(Settings):
    """Every embedder with every head, in every setting, on every corpus."""

    seed: int = Field(0, ge=0)  # of splits, sites and training
    embedders: list[str] = Field(min_length=1)  # short names, Hugging Face names or folders
    heads: list[Literal["mlp", "deep", "res"]] = Field(min_length=1)
    settings: list[Setting] = Field(["central", "federated", "splits"], min_length=1)
    corpora: list[str] = Field(default_factory=list)  # folders, where the command line names none
    top: list[int] = Field([10, 50], min_length=1)  # how many frequent codes of train the tables 5 and 6 are about
    sites: SiteSettings = SiteSettings()
    splits: SplitSettings = SplitSettings()
    recipe: dict[str, Any] = Field(default_factory=dict)  # changes to the recipes heads-mlp, heads-deep, heads-res

    @field_validator("embedders", "heads", "settings", "top")
    @classmethod
    def _once(cls, values: list) -> list:
        if len(set(values)) < len(values):
            raise ValueError("must name each once")
        return values

    @field_validator("top")
    @classmethod
    def _positive(cls, values: list[int]) -> list[int]:
        if min(values) < 1:
            raise ValueError("must be positive numbers")
        return values

    @model_validator(mode="after")
    def _own(self) -> GridSettings:
        for path in _OWN:
            table: Any = self.recipe
            for key in path:
                table = table.get(key) if isinstance(table, dict) else None
            if table is not None:
                raise ValueError(f"recipe.{'.'.join(path)} must not be set: the grid does that")
        return self
