"""What the recipes of heads on frozen embeddings may say, ."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nosology.core.settings import Settings
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.training.recipe_settings import Recipe, TrainerSettings

WIDTHS = {"mlp": [896], "deep": [1024, 512, 512], "res": [1600, 384, 384]}  # within 6% of paper 000's Table 2


class HeadShape(Settings):
    """A head: what is between a note's vector and the logits of its codes."""

    head: Literal["mlp", "deep", "res"] = "mlp"
    widths: list[int] = Field(default_factory=list)  # of the hidden layers; empty: the paper's
    dropout: float = Field(0.1, ge=0, lt=1)
    norm: Literal["batch", "layer"] = "batch"  # of deep and res; differential privacy needs layer
    bce: float = Field(0.5, ge=0, le=1)  # the share of binary cross entropy in the loss; the rest is focal
    alpha: float = Field(0.35, ge=0, le=1)  # focal: the weight of true codes
    gamma: float = Field(2.0, ge=0)  # focal: how much less a cell counts that is right already

    @model_validator(mode="after")
    def _widths(self) -> HeadShape:
        wanted = len(WIDTHS[self.head])
        if self.widths and (len(self.widths) != wanted or min(self.widths) < 1):
            raise ValueError(f"widths must be {wanted} positive numbers for {self.head}")
        return self

    @property
    def sizes(self) -> list[int]:
        """The widths of the hidden layers."""
        return self.widths or WIDTHS[self.head]


class CacheSettings(Settings):
    """Where the vectors of notes are kept."""

    cache: str = ""  # a folder, as `nosology embed` writes it; empty: beside the bundle, for the time of the training


class HeadsRecipe(Recipe):
    """What a recipe of kind `heads` may say."""

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
        micro_batches=1,  # batch normalisation looks at the whole batch
    )
