"""Settings of CAML and LAAT."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nosology.core.settings import Settings
from nosology.training.recipe_settings import Recipe, TrainerSettings, WordVectorSettings

_MANY = 5000  # train notes from which a model of full size is better


class CamlSettings(Settings):
    """CAML: a convolution, tanh, one attention vector per code."""

    renamed: ClassVar[dict[str, str]] = {"alike": "tie_initialization"}

    filters: int = Field(0, ge=0)  # 0: by the number of notes
    kernel: int = Field(3, ge=1)
    dropout: float = Field(0.2, ge=0, lt=1)  # of word vectors
    tie_initialization: bool = True  # attention and classifier weights start equal; False: as in the papers

    def resolved(self, notes: int) -> CamlSettings:
        """These settings with the sizes for this number of train notes in place of 0."""
        return self.model_copy(update={"filters": self.filters or (64 if notes < _MANY else 256)})


class LaatSettings(Settings):
    """LAAT: a bidirectional LSTM, a projection and one attention vector per code."""

    renamed: ClassVar[dict[str, str]] = {"alike": "tie_initialization"}

    hidden: int = Field(0, ge=0)  # per direction; 0: by the number of notes
    projection: int = Field(0, ge=0)  # 0: 2 hidden, as wide as the states
    dropout: float = Field(0.2, ge=0, lt=1)  # of word vectors
    tie_initialization: bool = True  # as above

    def resolved(self, notes: int) -> LaatSettings:
        """These settings with the sizes for this number of train notes in place of 0."""
        hidden = self.hidden or (64 if notes < _MANY else 512)
        return self.model_copy(update={"hidden": hidden, "projection": self.projection or 2 * hidden})


class CamlRecipe(Recipe):
    """A recipe of kind `caml`."""

    kind: Literal["caml"] = "caml"
    vectors: WordVectorSettings = WordVectorSettings()
    model: CamlSettings = CamlSettings()
    training: TrainerSettings = TrainerSettings()


class LaatRecipe(Recipe):
    """A recipe of kind `laat`."""

    kind: Literal["laat"] = "laat"
    vectors: WordVectorSettings = WordVectorSettings()
    model: LaatSettings = LaatSettings()
    training: TrainerSettings = TrainerSettings()
