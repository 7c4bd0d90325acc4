"""Settings of a federation and of its privacy: the tables [federation] and [federation.privacy] of a recipe."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from nosology.core.errors import RenamedWarning
from nosology.core.settings import Settings
from nosology.models.dual_laat.dual_laat_settings import DualLaatRecipe
from nosology.models.heads.heads_settings import HeadsRecipe
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.laat.laat_settings import CamlRecipe, LaatRecipe
from nosology.models.lexicon.lexicon_settings import LexiconRecipe
from nosology.models.linear.linear_trainer import LinearRecipe
from nosology.models.plant.plant_settings import PlantRecipe

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
    word_noise: float = Field(0.0, ge=0)  # noise multiplier of reported word counts, for sqrt(word_limit); 0: none
    word_limit: int = Field(100, ge=1)  # words that a patient counts for, where word_noise is set
    secure: bool = False  # secure aggregation: the server sees only the sum of the updates
    secure_threshold: int = Field(0, ge=0)  # sites that a secure sum needs; 0: the quorum, at least 3

    @field_validator("record_noise", "site_noise", "word_noise")
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
    mode: Literal["sync", "async"] = "sync"  # async: a round does not wait for slow sites
    buffer_size: int = Field(3, ge=1)  # async: sites whose updates make a round
    staleness_exponent: float = Field(0.5, ge=0)  # async: a change s rounds late counts 1 / (1 + s)^exponent
    buffer_learning_rate: float = Field(1.0, gt=0)  # async: factor of the step of the server
    local_epochs: int = Field(1, ge=1)  # per site and round
    strategy: Literal["fedavg", "fedprox", "fedadam", "fedyogi", "trimmed_mean", "median", "krum", "multi_krum"] = (
        "fedavg"
    )
    mu: float = Field(0.01, ge=0)  # fedprox: weight of the proximal term
    server_learning_rate: float = Field(0.01, gt=0)  # of fedadam and fedyogi
    trim: float = Field(0.2, ge=0, lt=0.5)  # trimmed_mean: fraction of sites cut off at each end
    malicious: int = Field(1, ge=0)  # krum and multi_krum: number of sites that may send false updates
    norm_bound: float = Field(0.0, ge=0)  # largest norm of the update of a site; longer ones are shortened; 0: no limit
    norm_multiple: float = Field(0.0, ge=0)  # the same, as a multiple of the median norm of the round; 0: no limit
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
    compression: Literal["none", "bf16", "top_k", "low_rank"] = "none"  # of the changes of weights that sites send
    top_k: float = Field(0.05, gt=0, le=1)  # top_k: share of the changes of a matrix that is sent, the largest ones
    rank: int = Field(8, ge=1)  # low_rank: of the two matrices that are sent instead of the change of a matrix
    # caml, laat, dual_laat, plant: a public list of words on the server, one per line; empty: words that sites report
    vocabulary: str = ""
    # the same: words of fewer than min_site_notes patients of a site are trained there, or read as unknown words
    rare_words: Literal["train", "unknown"] = "train"
    vector_rounds: int = Field(10, ge=0)  # caml, laat, dual_laat: of word2vec, before those of the net; 0: random start
    language_rounds: int = Field(8, ge=1)  # plant: of the language model, before those of the net
    # weights that each site trains for itself and never sends: beginnings of their names, or "head"
    personal: list[str] = Field(default_factory=list)
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
    def _check_norms(self) -> FederationSettings:
        """Norm bounds need the update of each site, and their own bound must be the only one."""
        for name in ("norm_bound", "norm_multiple"):
            if (value := getattr(self, name)) and (self.privacy.secure or self.privacy.site_clip):
                raise ValueError(
                    f"{name} must be 0 where privacy.secure or privacy.site_clip is set: with secure sums the server "
                    f"does not see the update of a site, and site_clip is a norm bound itself; got {value:g}"
                )
        return self

    @model_validator(mode="after")
    def _check_mode(self) -> FederationSettings:
        """Asynchronous rounds have no common start."""
        if self.mode == "async" and self.privacy.secure:
            raise ValueError(
                'mode must be "sync" where privacy.secure is set: a secure sum needs all its sites at once; got "async"'
            )
        if self.mode == "async" and self.fraction_train != 1:
            raise ValueError(f'fraction_train must be 1 where mode is "async"; got {self.fraction_train:g}')
        return self

    @model_validator(mode="after")
    def _check_fedsgd(self) -> FederationSettings:
        """FedSGD sends gradients: the server must have an optimizer, and must not read note counts from them."""
        if self.optimizer == "fedsgd":
            if self.personal:
                raise ValueError("personal must be empty where optimizer is fedsgd: the server takes its steps")
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


class FederatedHmhanRecipe(HmhanRecipe):
    """A recipe of kind `hmhan`, with the table [federation]."""

    federation: FederationSettings = FederationSettings()


class FederatedPlantRecipe(PlantRecipe):
    """A recipe of kind `plant`, with the table [federation]."""

    federation: FederationSettings = FederationSettings()


class StatisticsSettings(Settings):
    """Counts of words and phrases over all sites, for the kinds `linear` and `lexicon`."""

    min_patients: int = Field(3, ge=1)  # words and phrases of fewer patients of all sites are not shared,
    min_sites: int = Field(2, ge=1)  # nor those of fewer sites
    noise: float = Field(0.0, ge=0)  # standard deviation of the noise on each number of a sum of counts; 0: none
    buckets: int = Field(2**20, ge=2**10, le=2**26)  # of a row of hashed counts
    c: float = Field(3.0, gt=0)  # linear: inverse regularisation
    features: int = Field(100, ge=1)  # linear: of each code


class StatisticsFederationSettings(FederationSettings):
    """A federation whose rounds are sums over sites."""

    rounds: int = Field(20, ge=1)  # linear: steps of L-BFGS; no effect on a lexicon
    privacy: PrivacySettings = PrivacySettings(secure=True)

    @field_validator("privacy", mode="before")
    @classmethod
    def _secure_by_default(cls, value: Any) -> Any:
        """The value; a table without `secure` has secure sums."""
        return {"secure": True} | value if isinstance(value, dict) else value


class FederatedLinearRecipe(LinearRecipe):
    """A recipe of kind `linear`, with the tables [federation] and [statistics]."""

    federation: StatisticsFederationSettings = StatisticsFederationSettings()
    statistics: StatisticsSettings = StatisticsSettings()


class FederatedLexiconRecipe(LexiconRecipe):
    """A recipe of kind `lexicon`, with the tables [federation] and [statistics]."""

    federation: StatisticsFederationSettings = StatisticsFederationSettings()
    statistics: StatisticsSettings = StatisticsSettings()


FederatedWordRecipe = FederatedCamlRecipe | FederatedLaatRecipe | FederatedDualLaatRecipe
FederatedStatisticsRecipe = FederatedLinearRecipe | FederatedLexiconRecipe
FederatedRecipe = (
    FederatedHeadsRecipe | FederatedWordRecipe | FederatedPlantRecipe | FederatedHmhanRecipe | FederatedStatisticsRecipe
)

FEDERATED_KINDS: dict[Any, type[FederatedRecipe]] = {
    "heads": FederatedHeadsRecipe,
    "caml": FederatedCamlRecipe,
    "laat": FederatedLaatRecipe,
    "dual_laat": FederatedDualLaatRecipe,
    "plant": FederatedPlantRecipe,
    "hmhan": FederatedHmhanRecipe,
    "linear": FederatedLinearRecipe,
    "lexicon": FederatedLexiconRecipe,
}


def read_federated_recipe(values: Any) -> FederatedRecipe:
    """The recipe of plain values, as `model_dump` returns them; pydantic's ValidationError for anything else."""
    kind = values.get("kind") if isinstance(values, dict) else None
    settings = FEDERATED_KINDS.get(kind) if isinstance(kind, str) else None
    return (settings or FederatedHeadsRecipe).model_validate(values)
