"""What all settings have in common: typed, frozen, and deaf to keys they do not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One table of a recipe; an unknown key is an error, not a silent nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
