"""What the recipes of heads on frozen embeddings may say, the federation's table among it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nosology.encoders.embedder_settings import EmbedderSettings
from nosology.models.neural_settings import LoopSettings
from nosology.models.settings import Recipe, Section

WIDTHS = {"mlp": [896], "deep": [1024, 512, 512], "res": [1600, 384, 384]}  # within 6% of paper 000's Table 2

_HIDES = 0.5  # of record_noise, times the largest slope of a note: less would tell counts of notes


class HeadShape(Section):
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


class CacheSettings(Section):
    """Where the vectors of notes are kept."""

    cache: str = ""  # a folder, as `nosology embed` writes it; empty: beside the bundle, for the time of the training


class PrivacySettings(Section):
    """What a federation does so that its weights say less about single patients or hospitals."""

    record_noise: float = Field(0.0, ge=0)  # DP-SGD at the sites: noise, in units of record_clip; 0: none
    record_clip: float = Field(1.0, gt=0)  # largest norm of one note's gradient
    delta: float = Field(1e-5, gt=0, lt=1)  # of both epsilons
    site_noise: float = Field(0.0, ge=0)  # central noise on the sum of updates, in units of site_clip; 0: none
    site_clip: float = Field(0.0, ge=0)  # largest norm of one site's update; 0: any
    secure: bool = False  # the server sees only the sum of the sites' updates


class FederationSettings(Section):
    """A federation: paper 000, section 2.5."""

    rounds: int = Field(100, ge=1)
    local_epochs: int = Field(1, ge=1)  # at a site in a round
    strategy: Literal["fedavg", "fedprox", "fedadam", "fedyogi", "trimmed_mean", "median", "krum"] = "fedavg"
    mu: float = Field(0.01, ge=0)  # fedprox: pull towards the round's first weights
    server_rate: float = Field(0.01, gt=0)  # fedadam, fedyogi
    trim: float = Field(0.2, ge=0, lt=0.5)  # trimmed_mean: share of sites left out at each end
    malicious: int = Field(1, ge=0)  # krum: sites that may lie
    optimizer: Literal["adamw", "sgd"] = "adamw"  # at the sites; sgd: one plain step a round, over all their notes
    moments: Literal["fresh", "kept"] = "fresh"  # AdamW's at the sites, from round to round
    fraction_train: float = Field(1.0, gt=0, le=1)
    fraction_evaluate: float = Field(0.5, ge=0, le=1)
    min_sites: int = Field(10, ge=1)  # that must be there to begin; never more than are asked for
    quorum: int = Field(10, ge=1)  # good replies without which a round is repeated
    repeats: int = Field(3, ge=0)  # of one round, before the run stops
    wait: float = Field(300.0, gt=0)  # seconds for sites to come, and for replies of a round
    min_site_notes: int = Field(10, ge=1)  # a site names only codes, and gives statistics only over notes, so many
    min_notes: int = Field(200, ge=1)  # a code is learned if the sites that name it have so many notes of it in all
    evaluate_every: int = Field(10, ge=1)  # rounds; after the last in any case
    privacy: PrivacySettings = PrivacySettings()

    @model_validator(mode="after")
    def _slopes(self) -> FederationSettings:
        """With plain steps the sites send slopes, whose size says nothing: the server must weigh them."""
        if self.optimizer == "sgd":
            if self.strategy not in ("fedadam", "fedyogi"):
                raise ValueError(f"strategy must be fedadam or fedyogi where optimizer is sgd; got {self.strategy}")
            if self.local_epochs != 1 or self.moments != "fresh":
                raise ValueError("local_epochs must be 1 and moments fresh where optimizer is sgd")
            hidden = self.privacy.secure or self.privacy.record_noise >= _HIDES
            if self.min_site_notes > 1 and not hidden:  # the slope of a code's bias is its share of the notes
                raise ValueError(
                    f"privacy.secure must be true, or privacy.record_noise {_HIDES} at least, where optimizer is sgd "
                    "and min_site_notes more than 1"
                )
        return self


class HeadsRecipe(Recipe):
    """What a recipe of kind `heads` may say."""

    kind: Literal["heads"] = "heads"
    embedder: EmbedderSettings = EmbedderSettings()
    vectors: CacheSettings = CacheSettings()
    model: HeadShape = HeadShape()
    training: LoopSettings = LoopSettings(
        epochs=20,
        batch=64,
        learning_rate=1e-3,
        weight_decay=1e-5,
        warmup=0,
        schedule="cosine",
        precision="fp32",
        micro_batches=1,  # batch normalisation looks at the whole batch
    )
    federation: FederationSettings = FederationSettings()
