"""A hospital that trains a head: local training and evaluation on vectors of its notes.

Nothing here depends on Flower.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from nosology.core import SPLITS, Code, ConfigError, DataError, __version__
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.federated.federation_settings import FederatedHeadsRecipe
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
from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate
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


@dataclass
class HeadsSite:
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
    ) -> HeadsSite:
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
