"""Settings of recipes of kind `heads`: a light classifier (head) on frozen embeddings of notes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nosology.core.settings import Settings
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.training.recipe_settings import NeuralRecipe, TrainerSettings

# Numbers of weights are within 6% of those of Xu and Dray (2025).
WIDTHS = {"mlp": [896], "deep": [1024, 512, 512], "res": [1600, 384, 384]}


class HeadShape(Settings):
    """A head: the layers between the vector of a note and the logits of its codes, and the loss."""

    head: Literal["mlp", "deep", "res"] = "mlp"
    widths: list[int] = Field(default_factory=list)  # of the hidden layers; empty: `WIDTHS`
    dropout: float = Field(0.1, ge=0, lt=1)
    norm: Literal["batch", "layer"] = "batch"  # of deep and res; differential privacy needs "layer"
    bce: float = Field(0.5, ge=0, le=1)  # weight of binary cross-entropy in the loss; the rest is focal loss
    alpha: float = Field(0.35, ge=0, le=1)  # focal loss: weight of true codes
    gamma: float = Field(2.0, ge=0)  # focal loss: exponent that lowers the weight of correct predictions

    @model_validator(mode="after")
    def _check_widths(self) -> HeadShape:
        count = len(WIDTHS[self.head])
        if self.widths and (len(self.widths) != count or min(self.widths) < 1):
            raise ValueError(f"widths must be {count} positive numbers for {self.head}; got {self.widths}")
        return self

    @property
    def sizes(self) -> list[int]:
        """The widths of the hidden layers."""
        return self.widths or WIDTHS[self.head]


class CacheSettings(Settings):
    """Where embeddings are cached."""

    cache: str = ""  # a folder of `nosology embed`; empty: a temporary folder next to the bundle


class HeadsRecipe(NeuralRecipe):
    """A recipe of kind `heads`."""

    kind: Literal["heads"] = "heads"
    embedder: EmbedderSettings = EmbedderSettings()
    vectors: CacheSettings = CacheSettings()
    model: HeadShape = HeadShape()
    training: TrainerSettings = TrainerSettings(
        epochs=20,
        batch=64,
        learning_rate=1e-3,
        weight_decay=1e-5,
        warmup=0,
        schedule="cosine",
        precision="fp32",
        validation_notes=0,
        micro_batches=1,  # batch normalization needs the whole batch
    )
