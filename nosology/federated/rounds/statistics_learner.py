"""What the federated linear coder and lexicon share: rounds that are stages, and counts that sites add up.

A stage is either a sum of vectors, one per site, or a collection of arrays. Sums can be secure. The first stages agree
on items (words or phrases) without a list to start from: `find` adds hashed numbers of patients, `names` collects the
texts of items that have enough patients at enough sites, and `counts` adds exact counts of these.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from scipy import sparse

from nosology.core import Code, ConfigError, DataError, Note, __version__
from nosology.core.label_space import LabelSpace, column_sums
from nosology.federated.federation_settings import FederatedStatisticsRecipe, StatisticsSettings
from nosology.federated.privacy.dp_sgd import secure_generator
from nosology.federated.rounds import messages
from nosology.federated.rounds.corpus_learner import CorpusLearner
from nosology.federated.rounds.federation_setup import (
    Arrays,
    FederationSetup,
    SiteMetadata,
    embedder_key,
    reported_codes,
)
from nosology.federated.rounds.hashed_counts import (
    ROWS,
    hash_items,
    hashed_sum,
    pack_names,
    passing,
    read_names,
    unpack_names,
)
from nosology.federated.rounds.learner import LabelRows
from nosology.federated.rounds.local_training import used_labels
from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate
from nosology.training.calibration import PlattScaling
from nosology.training.examples import Examples, codes_in_systems
from nosology.training.recipe_settings import LabelSettings

Limits = tuple[np.ndarray | float, np.ndarray | float]  # of all numbers of a sum, or of each

FIND, NAMES, COUNTS = "find", "names", "counts"  # the first stages
_LOWEST_LOGIT = -30.0
_ROUNDING = 0.5  # tolerance of a sum
_NOISE = 12.0  # times statistics.noise: 8 deviations of the sum of up to twice as many sites as are needed


@dataclass(frozen=True)
class ItemCounts:
    """Counts of the shared items over all sites, of the stage `counts`."""

    patients: np.ndarray  # (P,)
    sites: np.ndarray  # (P,)
    notes: np.ndarray  # (P,)
    coded: np.ndarray  # (L,) notes with each label
    total: int  # notes

    @staticmethod
    def size(items: int, labels: int) -> int:
        """The length of the vector."""
        return 3 * items + labels + 1

    @classmethod
    def of(cls, vector: np.ndarray, items: int) -> ItemCounts:
        """The counts in a summed vector; noise may have made them fractions or negative."""
        whole = np.maximum(np.rint(vector), 0).astype(np.int64)
        patients, sites, notes = whole[: 3 * items].reshape(3, items)
        return cls(patients, sites, notes, whole[3 * items : -1], int(whole[-1]))

    def frequent(self, settings: StatisticsSettings) -> np.ndarray:
        """Which items (P,) have enough patients at enough sites."""
        return (self.patients >= settings.min_patients) & (self.sites >= settings.min_sites)


@dataclass
class StatisticsSite:
    """The notes of a hospital, and the items of each. After `configure` it can compute its part of each stage."""

    name: str
    examples: dict[str, Examples]  # by split
    identity: dict[str, Any]  # of the reader of notes
    preprocessing: str
    label_settings: LabelSettings
    code_list: frozenset[Code] | None = None  # codes that the site uses; None: all of the systems of its notes

    counted: ClassVar[frozenset[str]] = frozenset({FIND, COUNTS})  # stages that add counts
    collected: ClassVar[frozenset[str]] = frozenset({NAMES})  # stages that are no sums
    labels: LabelSpace | None = None
    label_mask: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    _items: tuple[str, list[set[str]]] | None = None  # of the last recipe

    @property
    def sizes(self) -> dict[str, int]:
        """The number of notes of each split."""
        return {split: len(part) for split, part in self.examples.items()}

    def metadata(self, min_site_notes: int) -> SiteMetadata:
        """The metadata of the site, without codes of fewer than `min_site_notes` notes."""
        reported = reported_codes(self.codes("train"), None, min_site_notes)
        identity, notes = self.identity | {"dim": 1}, len(self.examples["train"])
        return SiteMetadata(__version__, embedder_key(identity), identity, 1, self.preprocessing, notes, reported)

    def codes(self, split: str) -> list[tuple[Code, ...]]:
        """The codes of the notes that the site uses, in the systems of the recipe."""
        codes = codes_in_systems(self.label_settings, self.examples[split].codes)
        if self.code_list is None:
            return codes
        return [tuple(code for code in note if code in self.code_list) for note in codes]

    def notes(self, split: str) -> list[Note]:
        """The notes of a split."""
        return list(self.examples[split].notes())

    def configure(self, labels: LabelSpace, inputs: Any) -> None:
        """Sets the labels of the federation."""
        self.labels = labels
        self.label_mask = used_labels(labels, self.examples["train"].codes, self.code_list)

    def gold(self, split: str) -> sparse.csr_matrix:
        """Which labels the notes have, 0/1 (B, L)."""
        assert self.labels is not None
        return self.labels.encode(self.codes(split))

    def train(
        self, weights: dict[str, np.ndarray], recipe: Any, round_number: int, optimizer_state: Any = None
    ) -> SiteUpdate:
        """Refused: a site of this kind takes part in stages."""
        raise DataError(f"site {self.name} has no weights to train: its kind of coder is made of sums")

    def note_items(self, recipe: Any) -> list[set[str]]:
        """The items of each train note, read once per recipe."""
        key = reading_settings(recipe)
        if self._items is None or self._items[0] != key:
            self._items = (key, self.read_items(recipe))
        return self._items[1]

    @abstractmethod
    def read_items(self, recipe: Any) -> list[set[str]]:
        """The items of each train note."""

    @abstractmethod
    def compute(self, stage: str, arrays: Arrays, recipe: Any) -> np.ndarray:
        """The vector of the site in a stage that is a sum, besides `find` and `counts`."""

    @abstractmethod
    def logits(self, weights: Arrays, recipe: Any, split: str) -> np.ndarray:
        """The logits (B, L) of the notes of a split."""

    def collect(self, stage: str, arrays: Arrays, recipe: Any) -> Arrays:
        """The arrays of the site in a stage that is no sum."""
        if stage != NAMES:
            raise DataError(f"site {self.name} knows no stage {stage}")
        items = sorted(set().union(*self.note_items(recipe)))
        allowed = passing(hash_items(items), arrays["allowed"], recipe.statistics.buckets) if items else []
        return {"names": pack_names(item for item, is_allowed in zip(items, allowed) if is_allowed)}

    def vector(self, stage: str, arrays: Arrays, recipe: Any) -> np.ndarray:
        """The vector of the site in a stage that is a sum, without noise."""
        if stage == FIND:
            return self._find(recipe)
        return self._counts(arrays, recipe) if stage == COUNTS else self.compute(stage, arrays, recipe)

    def noisy_vector(self, stage: str, arrays: Arrays, recipe: Any, sites: int) -> np.ndarray:
        """The vector with its part of `statistics.noise`, so that this many sites together add all of it."""
        vector, noise = self.vector(stage, arrays, recipe), recipe.statistics.noise
        if noise and stage in self.counted:
            vector = vector + noise / math.sqrt(sites) * secure_generator().standard_normal(vector.shape)
        return vector

    def _patient_items(self, recipe: Any) -> list[set[str]]:
        """The items of each patient; a note without a patient counts as one patient."""
        found: dict[str, set[str]] = {}
        for note, items in zip(self.examples["train"].notes(), self.note_items(recipe)):
            found.setdefault(note.patient or note.id, set()).update(items)
        return list(found.values())

    def _find(self, recipe: Any) -> np.ndarray:
        """Hashed numbers of patients with each item, and of sites: 1 for each item."""
        counts = Counter(item for items in self._patient_items(recipe) for item in items)
        hashes, buckets = hash_items(counts), recipe.statistics.buckets
        patients = hashed_sum(hashes, np.fromiter(counts.values(), float, len(counts)), buckets)
        return np.concatenate([patients, patients > 0])

    def _counts(self, arrays: Arrays, recipe: Any) -> np.ndarray:
        number = {item: i for i, item in enumerate(unpack_names(arrays["items"]))}

        def counted(sets: Sequence[set[str]]) -> np.ndarray:
            found = [number[item] for items in sets for item in items if item in number]
            return np.bincount(np.array(found, dtype=np.int64), minlength=len(number))

        patients, gold = counted(self._patient_items(recipe)), self.gold("train")
        coded = column_sums(gold)
        return np.concatenate(
            [patients, patients > 0, counted(self.note_items(recipe)), coded, [gold.shape[0]]], dtype=np.float64
        )

    def evaluate(
        self,
        weights: Arrays,
        recipe: Any,
        split: str,
        calibration: PlattScaling | None = None,
        threshold: float | None = None,
    ) -> SiteCounts:
        """The counts of a split; with a threshold (of probabilities) also hits."""
        assert self.labels is not None
        logits = np.maximum(self.logits(weights, recipe, split), np.float32(_LOWEST_LOGIT))
        scores = np.where(logits > _LOWEST_LOGIT, (calibration or PlattScaling())(logits), np.float32(0))
        return SiteCounts.of(self.labels, logits, scores, self.codes(split), self.label_mask, threshold)


def reading_settings(recipe: FederatedStatisticsRecipe) -> str:
    """The settings that decide what is read from notes, as JSON."""
    return recipe.model_dump_json(exclude={"federation", "statistics", "decision"})


RecipeT = TypeVar("RecipeT", bound=FederatedStatisticsRecipe)
StatisticsSiteT = TypeVar("StatisticsSiteT", bound=StatisticsSite)


class StatisticsLearner(CorpusLearner[StatisticsSiteT, None], Generic[StatisticsSiteT, RecipeT]):
    """A coder that is made of sums over sites, stage by stage. The state between stages is a dict of arrays."""

    recipe: RecipeT
    site_class: type[StatisticsSiteT]
    site_tables: ClassVar[set[str]] = {"kind", "labels"}

    @property
    def collected(self) -> frozenset[str]:
        """The stages that are no sums."""
        return self.site_class.collected

    @abstractmethod
    def stages(self) -> list[str]:
        """The stages in order; a stage may be repeated."""

    @property
    def rounds(self) -> int:
        """The number of stages; `federation.rounds` counts only those of the training."""
        return len(self.stages())

    def phase_name(self, number: int) -> str:
        """The stage."""
        return self.stages()[number - 1]

    @abstractmethod
    def merge_sum(self, stage: str, state: Arrays, total: np.ndarray, setup: FederationSetup) -> Arrays:
        """The state after a stage with this sum, besides `find` and `counts`."""

    @abstractmethod
    def merge_counts(self, state: Arrays, items: list[str], counts: ItemCounts, setup: FederationSetup) -> Arrays:
        """The state after the stage `counts`; all items are frequent."""

    @abstractmethod
    def vector_size(self, stage: str, state: Arrays, setup: FederationSetup) -> int:
        """The length of the vector of a stage, besides `find` and `counts`."""

    def read_collected(self, stage: str, arrays: Arrays, state: Arrays) -> Any:
        """What a site has sent in a stage that is no sum; a text says why it is invalid."""
        return read_names(arrays.get("names", np.zeros(0)), state["allowed"], self.recipe.statistics.buckets)

    def merge_collected(self, stage: str, state: Arrays, replies: Mapping[str, Any], setup: FederationSetup) -> Arrays:
        """The state after a stage that is no sum; replies: valid ones by site."""
        items = sorted(set().union(*replies.values()))
        if not items:
            raise DataError(
                "no word or phrase has enough patients: statistics.min_patients = "
                f"{self.recipe.statistics.min_patients}, statistics.min_sites = {self.recipe.statistics.min_sites}"
            )
        return {"items": pack_names(items)}

    def size(self, stage: str, state: Arrays, setup: FederationSetup) -> int:
        """The length of the vector of a stage."""
        if stage == FIND:
            return 2 * ROWS * self.recipe.statistics.buckets
        if stage == COUNTS:
            return ItemCounts.size(len(unpack_names(state["items"])), len(setup.labels))
        return self.vector_size(stage, state, setup)

    def add(self, stage: str, state: Arrays, total: np.ndarray, setup: FederationSetup) -> Arrays:
        """The state after a stage with this sum."""
        settings = self.recipe.statistics
        if stage == FIND:
            patients, sites = np.rint(total).reshape(2, -1)
            allowed = (patients >= settings.min_patients) & (sites >= settings.min_sites)
            return {"allowed": np.packbits(allowed)}
        if stage != COUNTS:
            return self.merge_sum(stage, state, total, setup)
        items = unpack_names(state["items"])
        counts = ItemCounts.of(total, len(items))
        kept = np.flatnonzero(counts.frequent(settings))  # a rare item may have been in the buckets of frequent ones
        frequent = ItemCounts(
            counts.patients[kept], counts.sites[kept], counts.notes[kept], counts.coded, max(1, counts.total)
        )
        return self.merge_counts(state, [items[i] for i in kept], frequent, setup)

    def false_sum(self, stage: str, state: Arrays, total: np.ndarray, notes: int, sites: int) -> str:
        """Why the train notes of these sites cannot have this sum; empty if they can.

        notes: as the sites have reported. It is not known which site has sent a false vector in a secure sum.
        """
        margin = _ROUNDING + (_NOISE * self.recipe.statistics.noise if stage in self.site_class.counted else 0.0)
        if stage == COUNTS and not abs(total[-1] - notes) <= margin:
            return f"the sum of notes must be {notes}, as reported"
        smallest, largest = self.limits(stage, state, total, notes, sites)
        if (total >= smallest - margin).all() and (total <= largest + margin).all():
            return ""
        return f"{notes} notes of {sites} sites cannot have such a sum"

    def limits(self, stage: str, state: Arrays, total: np.ndarray, notes: int, sites: int) -> Limits:
        """The smallest and the largest possible sums; infinity if not known, as in buckets with several items."""
        if stage == FIND:
            return 0.0, np.repeat([np.inf, float(sites)], len(total) // 2)
        if stage == COUNTS:
            items = len(unpack_names(state["items"]))
            return 0.0, np.repeat([notes, sites, notes], [items, items, len(total) - 2 * items])
        return 0.0, np.inf

    def request(self, stage: str, state: Arrays) -> Arrays:
        """The arrays that a site needs for a stage."""
        return state

    @property
    def reports_words(self) -> bool:
        """True: frequent words and phrases of the sites are shared."""
        return True

    def check(self) -> None:
        """Raises ConfigError for settings that sums do not support."""
        federation, privacy = self.recipe.federation, self.recipe.federation.privacy
        for name, value, allowed in (
            ("federation.mode", federation.mode, "sync"),
            ("federation.strategy", federation.strategy, "fedavg"),
            ("federation.optimizer", federation.optimizer, "adamw"),
            ("federation.compression", federation.compression, "none"),
            ("federation.personal", federation.personal, []),
            ("federation.norm_bound", federation.norm_bound, 0.0),
            ("federation.norm_multiple", federation.norm_multiple, 0.0),
            ("federation.fraction_train", federation.fraction_train, 1.0),
            ("federation.vocabulary", federation.vocabulary, ""),
            ("federation.privacy.record_noise", privacy.record_noise, 0.0),
            ("federation.privacy.word_noise", privacy.word_noise, 0.0),
            ("federation.privacy.site_clip", privacy.site_clip, 0.0),
        ):
            if value != allowed:
                raise ConfigError(f"{name} must be {allowed!r} for a federated {self.recipe.kind}; got {value!r}")

    def make_site(self, name: str, notes: dict[str, Examples]) -> StatisticsSiteT:
        """The site of these notes by split."""
        identity = {"tokenizer": "words", "kind": self.recipe.kind}
        return self.site_class(name, notes, identity, self.preprocessing, self.recipe.labels)

    def report(self, site: StatisticsSiteT) -> RecordDict:
        """An empty message: statistics are collected in stages."""
        return messages.make_content()

    def read_report(self, reply: Message | None, metadata: SiteMetadata) -> Any:
        """An empty report; a text says why there is none."""
        if reply is None:
            return "it did not reply in time"
        return messages.error_reason(reply.error) if reply.has_error() else {}

    def share_inputs(self, reports: Sequence[Any], labels: LabelSpace, metadata: Mapping[str, SiteMetadata]) -> None:
        """Nothing: what sites share follows from the stages."""

    def pack_inputs(self, inputs: None) -> tuple[Arrays, dict[str, Any]]:
        """No arrays and no values."""
        return {}, {}

    def unpack_inputs(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Nothing."""

    def label_rows(self, setup: FederationSetup) -> LabelRows:
        """None: nothing is averaged."""
        return LabelRows((), len(setup.labels))

    def initial_weights(self, setup: FederationSetup) -> Arrays:
        """No arrays."""
        return {}
