"""Base class of all settings: typed, frozen, unknown keys are errors."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from nosology.core.errors import RenamedWarning

_MAX_NUMBER = 2**31 - 1  # larger whole numbers overflow in C libraries


class Settings(BaseModel):
    """One table of a recipe. An unknown key is an error.

    A setting that was renamed is still read under its old name: list it in `renamed`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    renamed: ClassVar[dict[str, str]] = {}  # old name -> new name

    @field_validator("*")
    @classmethod
    def _check_whole_numbers(cls, value: Any) -> Any:
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and abs(number) > _MAX_NUMBER:
                raise ValueError(f"should be at most {_MAX_NUMBER}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, values: Any) -> Any:
        return cls.with_current_names(values) if isinstance(values, dict) else values

    @classmethod
    def with_current_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The values with old names replaced, also in nested tables; one warning per old name."""
        current: dict[str, Any] = {}
        for name, value in values.items():
            new = cls.renamed.get(name, name)
            if new != name:
                if new in values:
                    raise ValueError(f"{name} is the old name of {new}; give only {new}")
                warnings.warn(f"the setting {name} is now named {new}", RenamedWarning, stacklevel=2)
            field = cls.model_fields.get(new)
            nested = field.annotation if field is not None else None
            if isinstance(value, dict) and isinstance(nested, type) and issubclass(nested, Settings):
                value = nested.with_current_names(value)
            current[new] = value
        return current
