"""Settings of DualLAAT."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from nosology.core.settings import Settings
from nosology.training.recipe_settings import FULL_SIZE_NOTES, WordRecipe


class DualLaatSettings(Settings):
    """DualLAAT: notes and code descriptions are both read; each code attends with several heads."""

    renamed: ClassVar[dict[str, str]] = {"alike": "tie_initialization", "literal": "reference_padding"}

    encoder: Literal["gru", "conv"] = "gru"
    width: int = Field(0, ge=0, le=100_000)  # gru: hidden units per direction; conv: filters; 0: by the number of notes
    kernel: int = Field(10, ge=1, le=1000)  # of conv
    heads: int = Field(4, ge=1)
    dropout: float = Field(0.3, ge=0, lt=1)  # of word vectors
    max_description: int = Field(48, ge=1)  # words
    labels: int = Field(0, ge=0)  # codes per batch: gold codes and sampled negatives; 0: by the number of notes
    chunk: int = Field(8, ge=1)  # notes whose attention is in memory at once; changes only memory and speed
    tie_initialization: bool = False  # both encoders start with equal weights; better with few notes
    output_bias: Literal["prior", "default"] = "prior"  # initial: the mean rate of codes, or torch's (the paper)
    reference_padding: bool = False  # as the authors' program: padding takes part

    def resolved(self, notes: int) -> DualLaatSettings:
        """These settings with the sizes for this number of train notes in place of 0."""
        full = 512 if self.encoder == "gru" else 256
        small = notes < FULL_SIZE_NOTES
        sizes = {"width": self.width or (64 if small else full), "labels": self.labels or (512 if small else 8192)}
        return self.model_copy(update=sizes)


class TwoStageSettings(Settings):
    """Two-stage inference: a cheap scorer retrieves candidate codes, and the net scores only those."""

    candidates: int = Field(0, ge=0)  # codes per note; 0: the net scores all codes


class DualLaatRecipe(WordRecipe):
    """A recipe of kind `dual_laat`."""

    kind: Literal["dual_laat"] = "dual_laat"
    model: DualLaatSettings = DualLaatSettings()
    two_stage: TwoStageSettings = TwoStageSettings()
