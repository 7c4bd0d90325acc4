"""Settings of a federation and of its privacy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nosology.core.settings import Settings
from nosology.models.heads.heads_settings import HeadsRecipe

_HIDES = 0.5  # of record_noise, times the largest slope of a note: less would tell counts of notes


class PrivacySettings(Settings):
    """What a federation does so that its weights say less about single patients or hospitals."""

    record_noise: float = Field(0.0, ge=0)  # DP-SGD at the sites: noise, in units of record_clip; 0: none
    record_clip: float = Field(1.0, gt=0)  # largest norm of one note's gradient
    delta: float = Field(1e-5, gt=0, lt=1)  # of both epsilons
    site_noise: float = Field(0.0, ge=0)  # central noise on the sum of updates, in units of site_clip; 0: none
    site_clip: float = Field(0.0, ge=0)  # largest norm of one site's update; 0: any
    secure: bool = False  # the server sees only the sum of the sites' updates


class FederationSettings(Settings):
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


class FederatedHeadsRecipe(HeadsRecipe):
    """What a recipe of kind `heads` may say, with the table [federation] for `nosology federate`."""

    federation: FederationSettings = FederationSettings()
