"""What depends on the kind of coder in a federation; rounds, strategies and messages know only this interface.

A learner reads the notes of a site, says what the site reports before the first round, builds from all reports what the
sites share (`inputs`), and makes the first weights and the final model. A site trains and evaluates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from nosology.core import Code, ConfigError
from nosology.core.label_space import LabelSpace
from nosology.core.model import Model
from nosology.corpora.corpus import Corpus
from nosology.federated.federation_settings import FederatedRecipe
from nosology.models.registry import resolve
from nosology.training.calibration import PlattScaling

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

    from nosology.federated.rounds.federation_setup import FederationSetup, SiteMetadata
    from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate

LEARNERS: dict[str, str] = {
    "heads": "nosology.federated.rounds.heads_learner:HeadsLearner",
    "caml": "nosology.federated.rounds.word_learner:WordLearner",
    "laat": "nosology.federated.rounds.word_learner:WordLearner",
    "dual_laat": "nosology.federated.rounds.word_learner:WordLearner",
    "plant": "nosology.federated.rounds.plant_learner:PlantLearner",
    "hmhan": "nosology.federated.rounds.hmhan_learner:HmhanLearner",
    "linear": "nosology.federated.rounds.linear_learner:LinearLearner",
    "lexicon": "nosology.federated.rounds.lexicon_learner:LexiconLearner",
}


@dataclass(frozen=True)
class LabelRows:
    """Which weights have one row per label."""

    names: tuple[str, ...]
    labels: int = 0  # the number of labels, if no weight has rows

    def count(self, weights: Mapping[str, np.ndarray]) -> int:
        """The number of labels."""
        return len(weights[self.names[0]]) if self.names else self.labels


HEAD_ROWS = LabelRows(("out.weight", "out.bias"))


@dataclass(frozen=True)
class SiteFiles:
    """What a site is opened from."""

    name: str
    corpora: list[Path]
    cache: Path | None  # of vectors
    code_list: frozenset[Code] | None  # codes that the site uses; None: all of the systems of its notes
    trust_remote_code: bool = False


class LocalSite(Protocol):
    """The notes of a hospital. After `configure` it can train and evaluate."""

    name: str
    labels: LabelSpace | None
    label_mask: np.ndarray  # (L,) bool: labels that the site codes with
    code_list: frozenset[Code] | None  # codes that the site uses; None: all of the systems of its notes

    @property
    def sizes(self) -> dict[str, int]:
        """The number of notes of each split."""

    def metadata(self, min_site_notes: int) -> SiteMetadata:
        """The metadata of the site, without codes of fewer than `min_site_notes` notes."""

    def configure(self, labels: LabelSpace, inputs: Any) -> None:
        """Sets the labels and the shared inputs of the federation."""

    def train(
        self, weights: dict[str, np.ndarray], recipe: Any, round_number: int, optimizer_state: Any = None
    ) -> SiteUpdate:
        """The update of one round of local training. Rounds are counted from 1."""

    def evaluate(
        self,
        weights: dict[str, np.ndarray],
        recipe: Any,
        split: str,
        calibration: PlattScaling | None = None,
        threshold: float | None = None,
    ) -> SiteCounts:
        """The counts of a split; with a threshold (of probabilities) also hits."""


SiteT = TypeVar("SiteT", bound=LocalSite)
InputsT = TypeVar("InputsT")


class FederatedLearner(ABC, Generic[SiteT, InputsT]):
    """The kind of coder of a recipe. It has no state; server and sites make their own."""

    preprocessing: ClassVar[str]  # change it when notes are processed differently before the net
    site_tables: ClassVar[set[str]]  # tables of the recipe that decide how a site is opened
    head: tuple[str, ...]  # beginnings of the names of the weights of the output layer

    def __init__(self, recipe: Any):
        self.recipe = recipe

    @property
    @abstractmethod
    def inputs_name(self) -> str:
        """What the net reads of a note, for a message."""

    @property
    def pretraining_rounds(self) -> int:
        """The number of rounds before those of the net: they train something else, and are not evaluated."""
        return 0

    @property
    def rounds(self) -> int:
        """The number of all rounds."""
        return self.pretraining_rounds + self.recipe.federation.rounds

    @property
    def reports_words(self) -> bool:
        """Whether sites report words of their notes, or counts of them; a site policy may forbid it."""
        return False

    @abstractmethod
    def check(self) -> None:
        """Raises ConfigError for settings that this kind of coder does not support in a federation."""

    @abstractmethod
    def open_site(self, files: SiteFiles) -> SiteT:
        """The site of corpus folders."""

    @abstractmethod
    def simulated_sites(self, corpora: Sequence[Corpus], site_of: Mapping[str, str], folder: Path) -> list[SiteT]:
        """One site per name; site_of: site of every note id. folder: for caches."""

    @abstractmethod
    def report(self, site: SiteT) -> RecordDict:
        """What a site reports before the first round, beside its metadata."""

    @abstractmethod
    def read_report(self, reply: Message | None, metadata: SiteMetadata) -> Any:
        """The report in a reply; a text says why it is invalid."""

    @abstractmethod
    def share_inputs(self, reports: Sequence[Any], labels: LabelSpace, metadata: Mapping[str, SiteMetadata]) -> InputsT:
        """What all sites use to turn notes into inputs of the net."""

    def facts(self) -> dict[str, Any]:
        """What the provenance of the bundle says in addition about the federation."""
        return {}

    @abstractmethod
    def pack_inputs(self, inputs: InputsT) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The inputs as arrays and JSON values."""

    @abstractmethod
    def unpack_inputs(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> InputsT:
        """The inputs of `pack_inputs`."""

    @abstractmethod
    def label_rows(self, setup: FederationSetup) -> LabelRows:
        """Which of the initial weights have one row per label."""

    @abstractmethod
    def initial_weights(self, setup: FederationSetup) -> dict[str, np.ndarray]:
        """The weights before the first round of a phase; the learned arrays in the inputs tell which."""

    def weight_names(self, setup: FederationSetup) -> list[str]:
        """The names of the weights of the net."""
        return list(self.initial_weights(setup))

    def finish_phase(
        self, setup: FederationSetup, number: int, weights: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray] | None:
        """All that was learned in pretraining up to a round, if it is the last of a phase; None for other rounds."""
        return None

    def is_pretraining(self, inputs: InputsT) -> bool:
        """Whether the phase of these inputs is one before that of the net."""
        return False

    def add_learned(self, inputs: InputsT, arrays: Mapping[str, np.ndarray]) -> InputsT:
        """The shared inputs with the arrays of `finish_phase`."""
        return inputs

    def phase_name(self, number: int) -> str:
        """What a round trains; empty: the net."""
        return ""

    @abstractmethod
    def build_model(
        self, setup: FederationSetup, weights: Mapping[str, np.ndarray], calibration: PlattScaling
    ) -> Model:
        """The model with these weights."""


def learner_of(recipe: FederatedRecipe) -> FederatedLearner:
    """The learner of a recipe."""
    if recipe.kind not in LEARNERS:
        raise ConfigError(f"kind must be one of {', '.join(LEARNERS)} in a federation; got {recipe.kind}")
    return resolve(LEARNERS[recipe.kind])(recipe)
