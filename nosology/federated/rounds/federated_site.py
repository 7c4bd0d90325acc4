"""A hospital: local training and evaluation on its notes. Nothing here depends on Flower."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit

from nosology.core import Code, ConfigError, DataError, __version__
from nosology.core.label_space import LabelSpace, label_versions, note_versions
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.evaluation.counts import Counts, micro
from nosology.evaluation.ranking_metrics import note_values, rank_codes
from nosology.evaluation.scored import Scored
from nosology.federated.federation_settings import (
    FederatedHeadsRecipe,
)
from nosology.federated.privacy.dp_sgd import PrivacyAccountant, train_epochs_private
from nosology.federated.rounds.federation_setup import PREPROCESSING, Arrays, SiteMetadata, reported_codes
from nosology.federated.rounds.learner import HEAD_ROWS
from nosology.federated.rounds.local_training import (
    kept_optimizer_state,
    load_optimizer_state,
    loop_settings,
    proximal_term,
    restore_unused_labels,
    round_epochs,
    used_labels,
)
from nosology.models.heads.feature_statistics import FeatureStatistics, Scaler
from nosology.models.heads.heads_net import (
    CodedVectors,
    HeadNet,
    VectorNotes,
    make_optimizer,
    make_vector_notes,
    train_epochs,
)
from nosology.training.calibration import PlattScaling
from nosology.training.inference import default_device, evaluating

SPLITS = ("train", "dev", "test")

_EDGES = np.round(np.arange(-3000, 3001) / 100, 2).astype(np.float32)  # of the bins of logits


@dataclass(frozen=True, eq=False)
class SiteUpdate:
    """The weights of a site after a round, or the mean of several sites."""

    site: str
    arrays: Arrays
    notes: float  # its weight in the mean
    loss: float  # mean per note
    label_mask: np.ndarray  # (L,) bool: labels that the site codes with; the rows of other labels are unchanged
    optimizer_state: Arrays = field(default_factory=dict)  # of AdamW, with optimizer_state = "keep"; stays at the site


@dataclass
class FederatedSite:
    """The notes of a hospital. After `configure` it can train and evaluate."""

    name: str
    identity: dict  # of the embedder
    key: str  # of the embedder
    notes: dict[str, CodedVectors]  # by split
    code_list: frozenset[Code] | None = None  # codes that the site uses; None: all of the systems of its notes
    device: torch.device = field(default_factory=default_device)
    accountant: PrivacyAccountant = field(default_factory=PrivacyAccountant)  # of record_noise, since the site opened

    labels: LabelSpace | None = None
    scaler: Scaler | None = None

    @classmethod
    def open(
        cls,
        name: str,
        corpora: list[Path],
        cache: Path | None,
        embedder: EmbedderSettings,
        *,
        code_list: frozenset[Code] | None = None,
    ) -> FederatedSite:
        """The site of corpus folders. Embeddings that are not in the cache are computed and cached."""
        loaded = Embedder.load(embedder)
        if cache is None:
            raise ConfigError(f"site {name} needs a cache folder for its vectors")
        vectors = EmbeddingCache.for_embedder(cache, loaded)
        notes: dict[str, CodedVectors] = {}
        opened = [Corpus.open(folder) for folder in corpora]
        for split in SPLITS:
            texts = (note.text for corpus in opened for note in corpus.notes(split))
            codes = [note.codes for corpus in opened for note in corpus.notes(split, text=False)]
            notes[split] = CodedVectors(vectors.vectors(texts, lambda: loaded), codes)
        if not len(notes["train"].codes):
            raise DataError(f"site {name} has no train notes: make them with `nosology corpus split`")
        return cls(name, loaded.identity, loaded.key, notes, code_list)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of notes of each split."""
        return {split: len(part.codes) for split, part in self.notes.items()}

    def metadata(self, min_site_notes: int) -> SiteMetadata:
        """The metadata of the site, without codes of fewer than `min_site_notes` notes."""
        train = self.notes["train"]
        codes = reported_codes(train.codes, self.code_list, min_site_notes)
        dim = train.vectors.shape[1]
        return SiteMetadata(__version__, self.key, self.identity, dim, PREPROCESSING, len(train.codes), codes)

    def statistics(self, min_site_notes: int) -> FeatureStatistics:
        """The statistics of the train vectors; DataError if there are fewer than `min_site_notes`."""
        vectors = self.notes["train"].vectors
        if len(vectors) < min_site_notes:
            raise DataError(f"site {self.name} has {len(vectors)} train notes: statistics need {min_site_notes}")
        return FeatureStatistics.of(vectors)

    def configure(self, labels: LabelSpace, inputs: Scaler) -> None:
        """Sets labels and scaler of the federation."""
        self.labels, self.scaler = labels, inputs
        self._tensors: dict[str, VectorNotes] = {}
        self.label_mask = used_labels(labels, self.notes["train"].codes, self.code_list)

    def _uses(self, code: Code) -> bool:
        return self.code_list is None or code in self.code_list

    def _configuration(self) -> tuple[LabelSpace, Scaler]:
        if self.labels is None or self.scaler is None:
            raise DataError(f"site {self.name} has no labels and no scaler yet")
        return self.labels, self.scaler

    def tensors(self, split: str) -> VectorNotes:
        """The standardized notes of a split, on the device."""
        labels, scaler = self._configuration()
        if split not in self._tensors:
            part = self.notes[split]
            label_mask = None if self.label_mask.all() else torch.from_numpy(self.label_mask.astype(np.float32))
            notes = make_vector_notes(part.vectors, part.codes, scaler, labels)
            self._tensors[split] = VectorNotes(notes.vectors, notes.targets, label_mask).to(self.device)
        return self._tensors[split]

    def train(
        self,
        weights: Arrays,
        recipe: FederatedHeadsRecipe,
        round_number: int,
        optimizer_state: Arrays | None = None,
    ) -> SiteUpdate:
        """The update of one round of local training. Rounds are counted from 1."""
        notes, net = self.tensors("train"), self._net(weights, recipe)
        settings, federation = loop_settings(recipe), recipe.federation
        fedsgd = federation.optimizer == "fedsgd"
        if fedsgd:  # one step; the rate makes it the gradient of the loss summed over labels, mean over notes
            step = {"learning_rate": float(self.label_mask.sum()), "batch": len(notes)}
            settings = settings.model_copy(update=step | {"schedule": "constant", "warmup": 0})
        optimizer = make_optimizer(net, settings, plain_sgd=fedsgd)
        load_optimizer_state(net, optimizer, optimizer_state)
        epochs, penalty = round_epochs(federation, round_number), proximal_term(net, federation)
        if federation.privacy.record_noise:
            loss = train_epochs_private(
                net,
                notes,
                settings,
                epochs,
                accountant=self.accountant,
                noise_multiplier=federation.privacy.record_noise,
                clip=federation.privacy.record_clip,
                optimizer=optimizer,
                penalty=penalty,
            )
        else:
            loss = train_epochs(net, notes, settings, epochs, seed=recipe.seed, optimizer=optimizer, penalty=penalty)
        state = kept_optimizer_state(net, optimizer, federation)
        trained = {name: value.cpu().numpy() for name, value in net.state_dict().items()}
        restore_unused_labels(trained, weights, HEAD_ROWS, self.label_mask)
        return SiteUpdate(self.name, trained, len(notes), loss, self.label_mask, state)

    def evaluate(
        self,
        weights: Arrays,
        recipe: FederatedHeadsRecipe,
        split: str,
        calibration: PlattScaling | None = None,
        threshold: float | None = None,
    ) -> SiteCounts:
        """The counts of a split; with a threshold (of probabilities) also hits."""
        notes, net = self.tensors(split), self._net(weights, recipe)
        with evaluating(net):
            logits = net.logits(notes.vectors).cpu().numpy()
        scores = (calibration or PlattScaling())(logits)
        codes = [[code for code in note if self._uses(code)] for note in self.notes[split].codes]
        return SiteCounts.of(self._configuration()[0], logits, scores, codes, self.label_mask, threshold)

    def _net(self, weights: Arrays, recipe: FederatedHeadsRecipe) -> HeadNet:
        labels, scaler = self._configuration()
        with torch.device("meta"):  # saves drawing initial weights that are replaced at once
            net = HeadNet(recipe.model, len(scaler.mean), len(labels))
        tensors = {name: torch.tensor(value) for name, value in weights.items()}
        net.to_empty(device=self.device).to(tensors["out.weight"].dtype)
        net.load_state_dict(tensors)
        return net


@dataclass(frozen=True, eq=False)
class SiteCounts:
    """Evaluation counts over the labels that a site uses. All int64 but `precision`.

    + adds the counts of two sites. Metrics of all sites together are computed from the sum.
    """

    notes: np.ndarray  # (1,)
    outside: np.ndarray  # (1,) true codes that are not labels
    cells: np.ndarray  # (bins,) histogram of the logits of all notes x labels
    true: np.ndarray  # (bins,) histogram of the logits of true codes
    precision: np.ndarray  # (2,) float64: sum of average precisions per note, and number of notes that have one
    hits: np.ndarray  # (3, L) tp, fp, fn per label; zeros without a threshold
    exact: np.ndarray  # (1,) notes whose predicted codes are exactly the true ones

    @staticmethod
    def of(
        labels: LabelSpace,
        logits: np.ndarray,
        scores: np.ndarray,
        codes: Sequence[Collection[Code]],
        label_mask: np.ndarray,
        threshold: float | None,
    ) -> SiteCounts:
        """The counts of logits and probabilities (B, L) of notes with these true codes.

        label_mask: (L,) bool; other labels are ignored, also where they are true. threshold: of probabilities. A note
        is scored only on codes of its ICD versions, as in `nosology evaluate`; a note without codes, on the version of
        most notes.
        """
        columns = np.flatnonzero(label_mask)
        used = LabelSpace(labels.codes[i] for i in columns)
        unused = set(labels.codes) - set(used.codes)
        of_notes = note_versions(codes)[:, None]
        codes = [set(note) - unused for note in codes]
        true = used.encode(codes).toarray().astype(bool)
        outside = np.array([len(note) for note in codes], dtype=np.int64) - true.sum(1)
        scored = ((of_notes & label_versions(used)) > 0) | (of_notes == 0)
        probabilities = np.where(scored, scores[:, columns], np.float32(0))
        bins = np.searchsorted(_EDGES, logits[:, columns], "right")
        hits, exact = np.zeros((3, len(labels)), np.int64), 0
        if threshold is not None:
            predicted = (probabilities >= np.float32(threshold)) & (probabilities > 0)
            for row, cells in enumerate((true & predicted, ~true & predicted, true & ~predicted)):
                hits[row, columns] = cells.sum(0)
            exact = int(((true == predicted).all(1) & (outside == 0)).sum())
        return SiteCounts(
            np.array([len(logits)]),
            np.array([outside.sum()]),
            np.bincount(bins[scored], minlength=len(_EDGES) + 1),
            np.bincount(bins[true], minlength=len(_EDGES) + 1),
            _average_precisions(used, codes, probabilities),
            hits,
            np.array([exact]),
        )

    @staticmethod
    def empty(labels: LabelSpace) -> SiteCounts:
        """The counts of no notes."""
        logits = np.zeros((0, len(labels)), np.float32)
        return SiteCounts.of(labels, logits, logits, [], np.ones(len(labels), bool), None)

    def __add__(self, other: SiteCounts) -> SiteCounts:
        return SiteCounts(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    @property
    def best(self) -> tuple[float, float]:
        """The logit threshold with the highest micro F1, and that F1. The edges of bins are tried."""
        accepted, right = (np.cumsum(array[::-1])[::-1][1:] for array in (self.cells, self.true))
        positives = self.true.sum() + self.outside[0]
        f1 = 2 * right / np.maximum(accepted + positives, 1)
        index = len(f1) - 1 - int(np.argmax(f1[::-1]))
        return float(_EDGES[index]), float(f1[index])

    @property
    def best_f1(self) -> float | None:
        """The highest micro F1; None without true codes."""
        return self.best[1] if self.true.any() else None

    @cached_property
    def calibration(self) -> PlattScaling:
        """The PlattScaling calibration of highest likelihood, with each logit at the middle of its bin."""
        middles = np.concatenate([_EDGES[:1] - 0.005, (_EDGES[:-1] + _EDGES[1:]) / 2, _EDGES[-1:] + 0.005])
        return PlattScaling.fit_counts(middles.astype(np.float64), self.true, self.cells - self.true)

    @property
    def threshold(self) -> float:
        """The threshold of calibrated probabilities with the highest micro F1."""
        return float(expit(self.calibration.a * self.best[0] + self.calibration.b))

    @property
    def map(self) -> float:
        """The mean average precision."""
        return float(self.precision[0] / max(1.0, self.precision[1]))

    def metrics(self, labels: LabelSpace) -> dict[str, float | None]:
        """The metrics of all notes. A true code that is not a label is a false negative.

        If there are such codes, metrics that need the number of different codes are None: sites do not report them.
        """
        tp, fp, fn = self.hits
        metrics = Counts(labels, len(labels), tp, fp, fn, int(self.notes[0]), int(self.exact[0])).metrics()
        if self.outside[0]:
            sums = micro(*(np.array([total]) for total in (tp.sum(), fp.sum(), fn.sum() + self.outside[0])))
            defined = {name: None if np.isnan(value[0]) else float(value[0]) for name, value in sums.items()}
            metrics = dict.fromkeys(metrics) | defined | {"exact_match": metrics["exact_match"]}
        return metrics | {"map": self.map}

    def arrays(self) -> Arrays:
        """The counts by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def _average_precisions(labels: LabelSpace, codes: Sequence[Collection[Code]], scores: np.ndarray) -> np.ndarray:
    """The sum of the average precisions of notes, and the number of notes that have one."""
    if not any(codes):
        return np.zeros(2)
    scored = Scored.of(labels, codes, scores)
    values = note_values(scored, rank_codes(scored, np.empty(0)))["map"]
    return np.array([np.nansum(values), np.isfinite(values).sum()], dtype=np.float64)
