"""Base class of all settings: typed, frozen, unknown keys are errors."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Settings(BaseModel):
    """One table of a recipe. An unknown key is an error.

    A setting that was renamed is still read under its old name: list it in `renamed`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    renamed: ClassVar[dict[str, str]] = {}  # old name -> new name

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, values: Any) -> Any:
        """The values with old names replaced by new ones; one warning per old name."""
        if not isinstance(values, dict):
            return values
        old = [name for name in cls.renamed if name in values]
        if not old:
            return values
        values = dict(values)
        for name in old:
            new = cls.renamed[name]
            if new in values:
                raise ValueError(f"{name} is the old name of {new}; give only {new}")
            warnings.warn(f"the setting {name} is now named {new}", FutureWarning, stacklevel=2)
            values[new] = values.pop(name)
        return values
