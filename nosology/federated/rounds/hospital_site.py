"""A hospital: its notes as vectors, what it tells, what it learns in a round. Nothing here knows of Flower."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from nosology.core import Code, ConfigError, DataError, __version__
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.federated.federation_settings import FederatedHeadsRecipe, FederationSettings
from nosology.federated.privacy.dp_sgd import Ledger, private_epochs
from nosology.federated.rounds.agreement import PREPROCESSING, Facts
from nosology.federated.rounds.site_counts import SiteCounts
from nosology.models.heads.coded_vectors import CodedVectors, vector_notes
from nosology.models.heads.feature_statistics import Moments, Scaler
from nosology.models.heads.heads_net import HeadNet
from nosology.models.heads.vector_loop import VectorNotes, optimizer_of, train_epochs
from nosology.models.neural import default_device, evaluating
from nosology.training.calibration import PlattScaling
from nosology.training.checkpoint import load_optimizer_tensors
from nosology.training.checkpoint import optimizer_tensors as moments_of
from nosology.training.recipe_settings import TrainerSettings

SPLITS = ("train", "dev", "test")

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Update:
    """What a site has learned in a round."""

    weights: Arrays
    notes: int
    loss: float  # mean of a note
    known: np.ndarray  # (L,) bool: codes that the site codes with; the others' rows are as they came
    moments: Arrays = field(default_factory=dict)  # AdamW's, where they are kept; they stay at the site


@dataclass
class Site:
    """A hospital's notes, and once the server has decided, what is learned from them."""

    name: str
    identity: dict  # of the embedder
    key: str
    notes: dict[str, CodedVectors]  # by split
    only: frozenset[Code] | None = None  # the codes it codes with; None: all of the systems that its notes have
    device: torch.device = field(default_factory=default_device)
    ledger: Ledger = field(default_factory=Ledger)  # what its notes have paid since it was opened, with record_noise

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
        only: frozenset[Code] | None = None,
    ) -> Site:
        """The site of some corpus folders; vectors that the cache does not have are made and kept there."""
        loaded = Embedder.load(embedder)
        if cache is None:
            raise ConfigError(f"site {name} needs a folder for its vectors (cache)")
        kept = EmbeddingCache.for_embedder(cache, loaded)
        notes: dict[str, CodedVectors] = {}
        opened = [Corpus.open(folder) for folder in corpora]
        for split in SPLITS:
            texts = (note.text for corpus in opened for note in corpus.notes(split))
            codes = [note.codes for corpus in opened for note in corpus.notes(split, text=False)]
            notes[split] = CodedVectors(kept.vectors(texts, lambda: loaded), codes)
        if not len(notes["train"].codes):
            raise DataError(f"site {name} has no train notes: `nosology corpus split` makes them")
        return cls(name, loaded.identity, loaded.key, notes, only)

    def facts(self, min_site_notes: int) -> Facts:
        """What the site says about itself; codes with fewer notes than that are not named."""
        train = self.notes["train"]
        counts = Counter(code for codes in train.codes for code in set(codes))
        named = {code: count for code, count in counts.items() if count >= min_site_notes and self._codes_with(code)}
        dim = train.vectors.shape[1]
        return Facts(__version__, self.key, self.identity, dim, PREPROCESSING, len(train.codes), named)

    def statistics(self, min_site_notes: int) -> Moments:
        """Count, sum and sum of squares of the train vectors; DataError if they are of too few notes to be told."""
        vectors = self.notes["train"].vectors
        if len(vectors) < min_site_notes:
            raise DataError(f"site {self.name} has {len(vectors)} train notes: statistics need {min_site_notes}")
        return Moments.of(vectors)

    def prepare(self, labels: LabelSpace, scaler: Scaler) -> None:
        """Takes over what the server has decided."""
        self.labels, self.scaler = labels, scaler
        self._ready: dict[str, VectorNotes] = {}
        systems = {code.system for codes in self.notes["train"].codes for code in codes}
        self.known = np.array([code.system in systems and self._codes_with(code) for code in labels.codes], dtype=bool)

    def _codes_with(self, code: Code) -> bool:
        return self.only is None or code in self.only

    def ready(self, split: str) -> VectorNotes:
        """The notes of a split as the head takes them, on the device."""
        if self.labels is None or self.scaler is None:
            raise DataError(f"site {self.name} has not been told codes and scaler yet")
        if split not in self._ready:
            part = self.notes[split]
            known = None if self.known.all() else torch.from_numpy(self.known.astype(np.float32))
            notes = vector_notes(part.vectors, part.codes, self.scaler, self.labels)
            self._ready[split] = VectorNotes(notes.vectors, notes.targets, known).to(self.device)
        return self._ready[split]

    def train(
        self, weights: Arrays, recipe: FederatedHeadsRecipe, round_number: int, moments: Arrays | None = None
    ) -> Update:
        """The weights after a round of training here; rounds are counted from 1."""
        notes, net = self.ready("train"), self._net(weights, recipe)
        settings = loop_settings(recipe)
        federation = recipe.federation
        plain = federation.optimizer == "sgd"
        if plain:  # the slope of the mean over notes and sum over codes, whatever the number of either
            step = {"learning_rate": float(self.known.sum()), "batch": len(notes), "schedule": "constant", "warmup": 0}
            settings = settings.model_copy(update=step)
        optimizer = optimizer_of(net, settings, plain)
        if moments:
            load_optimizer_tensors(net, optimizer, {name: torch.from_numpy(value) for name, value in moments.items()})
        first = {name: value.detach().clone() for name, value in net.named_parameters()}

        def penalty(net: HeadNet) -> torch.Tensor:
            return federation.mu / 2 * sum(((p - first[name]) ** 2).sum() for name, p in net.named_parameters())

        epochs = epochs_of(federation, round_number)
        pull = penalty if federation.strategy == "fedprox" and federation.mu else None
        if federation.privacy.record_noise:
            loss = private_epochs(
                net,
                notes,
                settings,
                epochs,
                ledger=self.ledger,
                noise=federation.privacy.record_noise,
                clip=federation.privacy.record_clip,
                optimizer=optimizer,
                penalty=pull,
            )
        else:
            loss = train_epochs(net, notes, settings, epochs, seed=recipe.seed, optimizer=optimizer, penalty=pull)
        kept = {f"{key}.{name}": value.cpu().numpy() for name, key, value in moments_of(net, optimizer)}
        after = {name: value.cpu().numpy() for name, value in net.state_dict().items()}
        for name in ("out.weight", "out.bias"):  # weight decay has moved them all the same
            after[name] = np.where(self.known.reshape(-1, *[1] * (after[name].ndim - 1)), after[name], weights[name])
        return Update(after, len(notes), loss, self.known, kept if federation.moments == "kept" else {})

    def evaluate(
        self,
        weights: Arrays,
        recipe: FederatedHeadsRecipe,
        split: str,
        calibration: PlattScaling | None = None,
        threshold: float | None = None,
    ) -> SiteCounts:
        """How weights do on the notes of a split; hits are counted where a threshold (of probabilities) is given."""
        notes, net = self.ready(split), self._net(weights, recipe)
        with evaluating(net):
            logits = net.logits(notes.vectors).cpu().numpy()
        scores = (calibration or PlattScaling())(logits)
        codes = [[code for code in note if self._codes_with(code)] for note in self.notes[split].codes]
        return SiteCounts.of(self.labels, logits, scores, codes, self.known, threshold)

    def _net(self, weights: Arrays, recipe: FederatedHeadsRecipe) -> HeadNet:
        with torch.device("meta"):  # its first weights would be drawn for nothing
            net = HeadNet(recipe.model, len(self.scaler.mean), len(self.labels))
        tensors = {name: torch.tensor(value) for name, value in weights.items()}
        net.to_empty(device=self.device).to(tensors["out.weight"].dtype)
        net.load_state_dict(tensors)
        return net


def loop_settings(recipe: FederatedHeadsRecipe) -> TrainerSettings:
    """The settings of the training at a site: the schedule runs over all rounds."""
    rounds = recipe.federation.rounds * recipe.federation.local_epochs
    return recipe.training.model_copy(update={"epochs": rounds})


def epochs_of(federation: FederationSettings, round_number: int) -> range:
    """The epochs of a round, counted from 0 over all rounds."""
    return range((round_number - 1) * federation.local_epochs, round_number * federation.local_epochs)
