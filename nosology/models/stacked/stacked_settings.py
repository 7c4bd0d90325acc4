"""Settings of the stacked coder."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nosology.core import ConfigError
from nosology.core.settings import Settings
from nosology.models.registry import load_class
from nosology.training.recipe_settings import LabelSettings, Recipe


class StackingSettings(Settings):
    """How the stacker is trained: the classifier over the scores of the parts."""

    renamed: ClassVar[dict[str, str]] = {"rate": "learning_rate"}

    candidates: int = Field(50, ge=1)  # codes per note and part that it scores
    min_notes: int = Field(500, ge=1)  # dev notes that it needs; with fewer it learns from folds of the train notes
    folds: int = Field(4, ge=2)
    tuning_share: float = Field(0.3, gt=0, lt=1)  # of the dev notes on which parts are tuned; it learns from the others
    rounds: int = Field(60, ge=1)  # boosted trees
    leaves: int = Field(6, ge=2)
    learning_rate: float = Field(0.06, gt=0, le=1)
    min_leaf: int = Field(40, ge=1)


class StackedRecipe(Recipe):
    """A recipe of kind `stacked`.

    A user names the recipes of the parts and changes settings of a part in the table [recipes.NAME]. `load_recipe`
    completes these tables with the values of the named recipes.
    """

    kind: Literal["stacked"] = "stacked"
    parts: list[str] = Field(min_length=2)  # names or files of recipes
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)  # by name of the part
    stacking: StackingSettings = StackingSettings()

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        names = self.names
        if len(set(names)) < len(names):
            raise ValueError(f"parts must have distinct names; got {', '.join(names)}")
        if unknown := sorted(self.recipes.keys() - set(names)):
            raise ValueError(f"recipes must be of the parts {', '.join(names)}; got {', '.join(unknown)}")
        if nested := [name for name, values in self.recipes.items() if values.get("kind") == self.kind]:
            raise ValueError(f"a part must not be stacked itself; got {', '.join(nested)}")
        if self.labels != LabelSettings(systems=self.labels.systems):
            raise ValueError("of labels only systems can be set for all parts; set the others in recipes.NAME.labels")
        return self

    @property
    def names(self) -> list[str]:
        """The names of the parts: those of their recipes, without folder and ending."""
        return [part_name(part) for part in self.parts]

    def part_recipes(self) -> dict[str, Recipe]:
        """The recipe of each part, with the seed and the code systems of this recipe."""
        if missing := [name for name in self.names if "kind" not in self.recipes.get(name, {})]:
            raise ConfigError(
                f"recipes must have the settings of each part, as load_recipe reads them; {missing[0]} has none"
            )
        recipes = {}
        for name in self.names:
            values = self.recipes[name]
            recipe: Recipe = load_class(values["kind"], "recipe").model_validate(values)
            changes: dict[str, Any] = {"seed": self.seed}
            if self.labels.systems:
                changes["labels"] = recipe.labels.model_copy(update={"systems": self.labels.systems})
            recipes[name] = recipe.model_copy(update=changes)
        return recipes


def part_name(recipe: str) -> str:
    """The name of the part with this recipe: a built-in name, or that of a file without folder and ending."""
    return PurePath(recipe).name.removesuffix(".toml")
