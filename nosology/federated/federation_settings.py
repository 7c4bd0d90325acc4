"""Settings of a federation and of its privacy: the tables [federation] and [federation.privacy] of a recipe."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from nosology.core.errors import RenamedWarning
from nosology.core.settings import Settings
from nosology.models.dual_laat.dual_laat_settings import DualLaatRecipe
from nosology.models.heads.heads_settings import HeadsRecipe
from nosology.models.laat.laat_settings import CamlRecipe, LaatRecipe

_MIN_RECORD_NOISE = 0.5  # for FedSGD: less noise would reveal how many notes have a code
_MIN_NOISE = 1e-9
_RENAMED_VALUES = {"sgd": "fedsgd", "fresh": "reset", "kept": "keep"}  # of optimizer and optimizer_state


class PrivacySettings(Settings):
    """Differential privacy and secure aggregation."""

    record_noise: float = Field(0.0, ge=0)  # DP-SGD at the sites: noise multiplier, in units of record_clip; 0: none
    record_clip: float = Field(1.0, gt=0)  # largest norm of the gradient of one note
    delta: float = Field(1e-5, gt=0, lt=1)  # of both epsilons
    site_noise: float = Field(0.0, ge=0)  # noise multiplier on the sum of updates, in units of site_clip; 0: none
    site_clip: float = Field(0.0, ge=0)  # largest norm of the update of one site; 0: no limit
    secure: bool = False  # secure aggregation: the server sees only the sum of the updates
    secure_threshold: int = Field(0, ge=0)  # sites that a secure sum needs; 0: the quorum, at least 3

    @field_validator("record_noise", "site_noise")
    @classmethod
    def _check_noise(cls, value: float) -> float:
        """The value; with less noise, no epsilon can be computed."""
        if 0 < value < _MIN_NOISE:
            raise ValueError(f"should be 0 or at least {_MIN_NOISE}")
        return value

    @field_validator("secure_threshold")
    @classmethod
    def _check_threshold(cls, value: int) -> int:
        """The value; a sum over one site is its update."""
        if value == 1:
            raise ValueError("should be 0 or at least 2")
        return value

    @property
    def min_secure_sites(self) -> int:
        """The smallest number of sites of a secure sum. From a sum over two, each can compute the other's update."""
        return self.secure_threshold or 3


class FederationSettings(Settings):
    """A federation. The defaults are those of Xu and Dray (2025), section 2.5."""

    renamed: ClassVar[dict[str, str]] = {
        "moments": "optimizer_state",
        "server_rate": "server_learning_rate",
        "repeats": "max_retries",
        "wait": "timeout",
    }

    rounds: int = Field(100, ge=1)
    local_epochs: int = Field(1, ge=1)  # per site and round
    strategy: Literal["fedavg", "fedprox", "fedadam", "fedyogi", "trimmed_mean", "median", "krum"] = "fedavg"
    mu: float = Field(0.01, ge=0)  # fedprox: weight of the proximal term
    server_learning_rate: float = Field(0.01, gt=0)  # of fedadam and fedyogi
    trim: float = Field(0.2, ge=0, lt=0.5)  # trimmed_mean: fraction of sites cut off at each end
    malicious: int = Field(1, ge=0)  # krum: number of sites that may send false updates
    optimizer: Literal["adamw", "fedsgd"] = "adamw"  # of the sites; fedsgd: one gradient over all notes per round
    optimizer_state: Literal["reset", "keep"] = "reset"  # AdamW state of the sites between rounds
    fraction_train: float = Field(1.0, gt=0, le=1)
    fraction_evaluate: float = Field(0.5, ge=0, le=1)
    min_sites: int = Field(10, ge=1)  # sites that must be online at the start
    quorum: int = Field(10, ge=1)  # valid replies that a round needs, else it is repeated
    max_retries: int = Field(3, ge=0)  # of one round, before the run stops
    timeout: float = Field(300.0, gt=0)  # seconds, for sites to connect and for the replies of a round
    min_site_notes: int = Field(10, ge=1)  # a site reports only codes and statistics of at least this many notes
    min_notes: int = Field(200, ge=1)  # a code is trained if the sites that report it have this many notes in all
    evaluate_every: int = Field(10, ge=1)  # rounds; the last round is always evaluated
    compression: Literal["none", "bf16"] = "none"  # of updates: bf16 sends the changes of weights with 16 bits each
    # caml, laat, dual_laat: a public list of words on the server, one per line; empty: words that sites report
    vocabulary: str = ""
    # the same: words of fewer than min_site_notes patients of a site are trained there, or read as unknown words
    rare_words: Literal["train", "unknown"] = "train"
    rehearsal: bool = False  # with simulated notes: other sites refuse it
    privacy: PrivacySettings = PrivacySettings()

    @field_validator("optimizer", "optimizer_state", mode="before")
    @classmethod
    def _read_old_values(cls, value: Any, info: ValidationInfo) -> Any:
        """The value; an old name is replaced by the new one, with a warning."""
        if isinstance(value, str) and value in _RENAMED_VALUES:
            old, value = value, _RENAMED_VALUES[value]
            warnings.warn(f'{info.field_name} = "{old}" is now named "{value}"', RenamedWarning, stacklevel=2)
        return value

    @model_validator(mode="after")
    def _check_fedsgd(self) -> FederationSettings:
        """FedSGD sends gradients: the server must have an optimizer, and must not read note counts from them."""
        if self.optimizer == "fedsgd":
            if self.strategy not in ("fedadam", "fedyogi"):
                raise ValueError(f"strategy must be fedadam or fedyogi where optimizer is fedsgd; got {self.strategy}")
            if self.local_epochs != 1 or self.optimizer_state != "reset":
                raise ValueError("local_epochs must be 1 and optimizer_state reset where optimizer is fedsgd")
            protected = self.privacy.secure or self.privacy.record_noise >= _MIN_RECORD_NOISE
            if self.min_site_notes > 1 and not protected:  # the gradient of a bias gives the number of notes of a code
                raise ValueError(
                    f"privacy.secure must be true, or privacy.record_noise at least {_MIN_RECORD_NOISE}, where "
                    "optimizer is fedsgd and min_site_notes is more than 1"
                )
        return self


class FederatedHeadsRecipe(HeadsRecipe):
    """A recipe of kind `heads`, with the table [federation] for `nosology federate`."""

    federation: FederationSettings = FederationSettings()


class FederatedCamlRecipe(CamlRecipe):
    """A recipe of kind `caml`, with the table [federation]."""

    federation: FederationSettings = FederationSettings()


class FederatedLaatRecipe(LaatRecipe):
    """A recipe of kind `laat`, with the table [federation]."""

    federation: FederationSettings = FederationSettings()


class FederatedDualLaatRecipe(DualLaatRecipe):
    """A recipe of kind `dual_laat`, with the table [federation]."""

    federation: FederationSettings = FederationSettings()


FederatedWordRecipe = FederatedCamlRecipe | FederatedLaatRecipe | FederatedDualLaatRecipe
FederatedRecipe = FederatedHeadsRecipe | FederatedWordRecipe

FEDERATED_KINDS: dict[Any, type[FederatedRecipe]] = {
    "heads": FederatedHeadsRecipe,
    "caml": FederatedCamlRecipe,
    "laat": FederatedLaatRecipe,
    "dual_laat": FederatedDualLaatRecipe,
}


def read_federated_recipe(values: Any) -> FederatedRecipe:
    """The recipe of plain values, as `model_dump` returns them; pydantic's ValidationError for anything else."""
    kind = values.get("kind") if isinstance(values, dict) else None
    return FEDERATED_KINDS.get(kind, FederatedHeadsRecipe).model_validate(values)
