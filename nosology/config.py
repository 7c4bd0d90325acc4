"""Recipes: built-in or TOML files, with overrides, validated before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError

from nosology.core import ConfigError
from nosology.models.registry import REGISTRY, load_class
from nosology.models.stacked.stacked_settings import part_name
from nosology.training.recipe_settings import Recipe

S = TypeVar("S", bound=BaseModel)
_MAX_SHOWN = 200  # characters of a value in a message


def built_in() -> list[str]:
    """The names of the recipes in the package."""
    folder = files("nosology") / "recipes"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of a built-in name or a TOML file, with `section.key=value` overrides, validated."""
    return parse_recipe(_with_part_recipes(override(read_values(name), overrides), name), name)


def load_federated_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """As `load_recipe`; a recipe of a kind that can be federated has the table [federation]."""
    from nosology.federated.federation_settings import FEDERATED_KINDS

    values = override(read_values(name), overrides)
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in FEDERATED_KINDS:
        return load_recipe(name, overrides)
    return parse_settings(FEDERATED_KINDS[kind], values, name)


def read_values(name: str) -> dict[str, Any]:
    """The values of a built-in recipe or a TOML file."""
    path = files("nosology") / "recipes" / f"{name}.toml" if name in built_in() else Path(name)
    if not path.is_file():
        raise ConfigError(f"recipe must be a file or one of {', '.join(built_in())}; got {name!r}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError(f"cannot read the recipe {path}: {reason}") from error
    except (ValueError, RecursionError) as error:  # ValueError: also a number with thousands of digits
        raise ConfigError(f"{name} is not TOML: {error}") from error


def _with_part_recipes(values: dict[str, Any], source: str) -> dict[str, Any]:
    """Recipe values in which the table [recipes.NAME] of each part is complete: its recipe with the given changes."""
    parts, changes = values.get("parts"), values.get("recipes", {})
    if values.get("kind") != "stacked" or not isinstance(parts, list) or not isinstance(changes, dict):
        return values  # `parse_recipe` says what is wrong
    recipes = dict(changes)
    for part in filter(lambda part: isinstance(part, str), parts):
        try:
            name, recipe = part_name(part), read_values(part)
        except ConfigError as error:
            raise ConfigError(f"{source}, parts: {error}") from error
        changed = changes.get(name, {})
        if not isinstance(changed, dict):
            raise ConfigError(f"{source}: recipes.{name} must be a table; got {changed!r}")
        _merge(recipe, _with_current_names(recipe, changed), f"recipes.{name}")
        recipes[name] = parse_recipe(recipe, f"{source}, part {name}").model_dump(mode="json")
    return values | {"recipes": recipes}


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
    if not isinstance(kind, str) or kind not in REGISTRY:
        return values
    return load_class(kind, "recipe").with_current_names(values)


def _merge(table: dict[str, Any], changes: dict[str, Any], path: str) -> None:
    for key, value in changes.items():
        if not isinstance(value, dict):
            table[key] = value
            continue
        section = table.setdefault(key, {})
        if not isinstance(section, dict):
            raise ConfigError(f"--set {path}: {key} is a value, not a section")
        _merge(section, value, path)


def parse_recipe(values: dict[str, Any], source: str) -> Recipe:
    """The recipe of plain values; ConfigError has the setting, what is allowed and what was given."""
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in REGISTRY:
        raise ConfigError(f"{source}: kind must be one of {', '.join(REGISTRY)}; got {kind!r}")
    return parse_settings(load_class(kind, "recipe"), values, source)


def parse_settings(settings: type[S], values: dict[str, Any], source: str) -> S:
    """The settings of plain values; ConfigError as in `parse_recipe`."""
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_message(error, settings, source)) from error


def _value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return raw


def _message(error: ValidationError, recipe: type[BaseModel], source: str) -> str:
    """The first error as one sentence: source, setting, what is allowed, what was given."""
    first, *others = error.errors()
    keys = _location(recipe, first["loc"])
    if first["type"] == "extra_forbidden":
        allowed = ", ".join(_section(recipe, keys[:-1]).model_fields)
        whole = "a recipe" if issubclass(recipe, Recipe) else "a study"
        where = f"[{'.'.join(keys[:-1])}]" if len(keys) > 1 else whole
        return f"{source}: {where} has no key {keys[-1]!r}; allowed: {allowed}"
    # If several types are allowed, there is one error per type at the same location.
    same = [first, *(other for other in others if _location(recipe, other["loc"]) == keys)]
    allowed = ", or ".join(
        dict.fromkeys(item["msg"].removeprefix("Input ").removeprefix("Value error, ") for item in same)
    )
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # an error of a whole section
        return f"{source}: [{'.'.join(keys)}] {allowed}"
    return f"{source}: {'.'.join(keys)} {allowed}; got {_shown(first['input'])}"


def _shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _location(recipe: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Sections, key and position in a list, without the names of types that pydantic adds."""
    keys: list[str] = []
    table: Any = recipe
    for key in loc:
        fields = table.model_fields if isinstance(table, type) and issubclass(table, BaseModel) else None
        if fields is not None or get_origin(table) is dict or isinstance(key, int):
            keys.append(str(key))
        table = fields[str(key)].annotation if fields and key in fields else None
    return keys


def _section(recipe: type[BaseModel], keys: list[str]) -> type[BaseModel]:
    for key in keys:
        # A key on the way to an error is a section: its annotation is a class, which pydantic does not state.
        recipe = recipe.model_fields[key].annotation  # type: ignore[assignment]  # nested tables are Settings
    return recipe
