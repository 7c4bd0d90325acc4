"""What is kept of a dataset, as a TOML file: systems, how often a code must occur, and the counts to expect."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nosology.core import SYSTEMS, ConfigError


class Expected(BaseModel):
    """Counts as published, to compare with; what is absent is not compared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    notes: int | None = None
    train: int | None = None
    dev: int | None = None
    test: int | None = None
    codes: int | None = None


class CorpusRecipe(BaseModel):
    """The filters in the order in which they apply: systems, min_count, drop_uncoded; split files come last."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    name: str = ""
    about: str = ""
    systems: tuple[str, ...] = SYSTEMS
    min_count: int = Field(default=1, ge=1)
    drop_uncoded: bool = False
    expected: Expected = Expected()

    @field_validator("systems")
    @classmethod
    def _known(cls, systems: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [system for system in systems if system not in SYSTEMS]
        if unknown or not systems:
            raise ValueError(f"must be some of {', '.join(SYSTEMS)}; got {', '.join(unknown) or 'none'}")
        return systems


def built_in() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = Path(str(files("nosology"))) / "recipes" / "corpora"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_recipe(name: str | Path) -> CorpusRecipe:
    """The built-in recipe of that name, else the one in that file."""
    path = built_in().get(str(name), Path(name))
    if not path.is_file():
        raise ConfigError(f"recipe must be a file or one of {', '.join(built_in())}; got {str(name)!r}")
    try:
        return CorpusRecipe.model_validate({"name": path.stem} | tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_fault(error)}") from error


def adjusted(
    name: str | Path | None,
    kind: str,
    *,
    min_count: int | None = None,
    systems: Sequence[str] | None = None,
    drop_uncoded: bool | None = None,
) -> CorpusRecipe:
    """The recipe of that name, or one that keeps all, with the settings that are given put in place of its own."""
    recipe = load_recipe(name) if name is not None else CorpusRecipe(kind=kind)
    given = {"min_count": min_count, "systems": systems, "drop_uncoded": drop_uncoded}
    given = {key: value for key, value in given.items() if value is not None}
    if given:
        # Other rules give other counts than the published ones.
        given["expected"] = Expected()
    try:
        return CorpusRecipe.model_validate(recipe.model_dump() | given)
    except ValidationError as error:
        raise ConfigError(f"--{_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    """One sentence on the first thing that is wrong: its key and why; a wrong key is answered with those allowed."""
    fault = error.errors(include_url=False)[0]
    key = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        model = Expected if fault["loc"][0] == "expected" else CorpusRecipe
        return f"{key} is not a key; allowed are {', '.join(model.model_fields)}"
    return f"{key}: {fault['msg'].removeprefix('Value error, ')}"
