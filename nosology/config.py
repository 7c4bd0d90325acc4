"""What a recipe may say: TOML tables, checked before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nosology.core import ConfigError
from nosology.models.registry import REGISTRY, load_class
from nosology.training.recipe_settings import Recipe

S = TypeVar("S", bound=BaseModel)


def built_in(kind: str = "") -> list[str]:
    """The names of the recipes that come with the package; kind: those in a folder of their own, such as grid."""
    folder = files("nosology") / "recipes" / kind
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of a built-in name or a TOML file, with `section.key=value` overrides applied, checked."""
    return check(override(read_values(name), overrides), name)


def read_values(name: str, kind: str = "") -> dict[str, Any]:
    """The values of a built-in name (see `built_in`) or a TOML file."""
    path = Path(name)
    if name in built_in(kind):
        text = (files("nosology") / "recipes" / kind / f"{name}.toml").read_text(encoding="utf-8")
    elif path.is_file():
        text = _read(path)
    else:
        raise ConfigError(f"{kind or 'recipe'} must be a file or one of {', '.join(built_in(kind))}; got {name!r}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}") from error


def override(values: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of recipe values with each `section.key=value` set; a value is TOML or a plain word."""
    changed = _with_current_names(values, deepcopy(values))
    for setting in settings:
        path, equals, raw = setting.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set takes section.key=value; got {setting!r}")
        nested = _value(raw.strip())
        for key in reversed(keys):
            nested = {key: nested}
        _merge(changed, _with_current_names(values, nested), path)
    return changed


def _with_current_names(recipe: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Values of a recipe with old setting names replaced by new ones."""
    kind = recipe.get("kind")
    return load_class(kind, "recipe").with_current_names(values) if kind in REGISTRY else values


def _merge(table: dict[str, Any], changes: dict[str, Any], path: str) -> None:
    for key, value in changes.items():
        if not isinstance(value, dict):
            table[key] = value
            continue
        section = table.setdefault(key, {})
        if not isinstance(section, dict):
            raise ConfigError(f"--set {path}: {key} is a value, not a section")
        _merge(section, value, path)


def check(values: dict[str, Any], source: str) -> Recipe:
    """The recipe of plain values; ConfigError names the place, what is allowed and what was given."""
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in REGISTRY:
        raise ConfigError(f"{source}: kind must be one of {', '.join(REGISTRY)}; got {kind!r}")
    return checked(load_class(kind, "recipe"), values, source)


def checked(settings: type[S], values: dict[str, Any], source: str) -> S:
    """The settings of plain values; ConfigError as in `check`."""
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error, settings, source)) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path}") from error


def _value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _sentence(error: ValidationError, recipe: type[BaseModel], source: str) -> str:
    """The first complaint as one sentence: source, place, what is allowed, what was given."""
    first, *others = error.errors()
    keys = _place(first["loc"])
    if first["type"] == "extra_forbidden":
        allowed = ", ".join(_section(recipe, keys[:-1]).model_fields)
        where = f"[{'.'.join(keys[:-1])}]" if len(keys) > 1 else "a recipe"
        return f"{source}: {where} has no key {keys[-1]!r}; allowed: {allowed}"
    # A value may be of one kind or another: each kind that it is not complains about the same place.
    same = [first, *(other for other in others if _place(other["loc"]) == keys)]
    wanted = ", or ".join(
        dict.fromkeys(item["msg"].removeprefix("Input ").removeprefix("Value error, ") for item in same)
    )
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # of a section's keys together
        return f"{source}: [{'.'.join(keys)}] {wanted}"
    return f"{source}: {'.'.join(keys)} {wanted}; got {first['input']!r}"


def _place(loc: tuple[int | str, ...]) -> list[str]:
    """Section, key and position in a list, without the names that pydantic gives to kinds of values."""
    return [str(key) for depth, key in enumerate(loc) if depth < 2 or isinstance(key, int)]


def _section(recipe: type[BaseModel], keys: list[str]) -> type[BaseModel]:
    for key in keys:
        recipe = recipe.model_fields[key].annotation  # type: ignore[assignment]
    return recipe
