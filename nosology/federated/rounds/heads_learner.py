"""Federated heads: sites report statistics of their vectors, and share a scaler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict

from nosology.core import SPLITS, ConfigError
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds import messages
from nosology.federated.rounds.federation_setup import PREPROCESSING, Arrays, FederationSetup, SiteMetadata
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.learner import HEAD_ROWS, FederatedLearner, LabelRows, SiteFiles
from nosology.models.heads.feature_statistics import FeatureStatistics, Scaler
from nosology.models.heads.heads_model import Heads
from nosology.models.heads.heads_net import CodedVectors, HeadNet, build_head, compute_dtype
from nosology.training.calibration import PlattScaling
from nosology.training.examples import codes_in_systems


class HeadsLearner(FederatedLearner[HeadsSite, Scaler]):
    """A frozen embedder and a light classifier."""

    recipe: FederatedHeadsRecipe
    preprocessing, site_tables = PREPROCESSING, {"kind", "embedder", "labels"}
    head = ("out.",)

    @property
    def inputs_name(self) -> str:
        """The embedder."""
        return f"vectors of {self.recipe.embedder.model}"

    def check(self) -> None:
        """Raises ConfigError for a precision that a federation does not support."""
        if self.recipe.training.precision == "bf16":
            raise ConfigError('training.precision must be "fp32" or "fp64" in a federation; got "bf16"')
        if self.recipe.federation.vocabulary or self.recipe.federation.privacy.word_noise:
            raise ConfigError("a federated heads reads no words: it has no federation.vocabulary and no word_noise")

    def open_site(self, files: SiteFiles) -> HeadsSite:
        """The site; an embedder with its own code runs only if the site trusts it: the recipe is the server's."""
        if self.recipe.embedder.trust_remote_code and not files.trust_remote_code:
            raise ConfigError("the embedder needs its own code, and the node config has no trust-remote-code")
        site = HeadsSite.open(files.name, files.corpora, files.cache, self.recipe.embedder, code_list=files.code_list)
        site.notes = {
            split: CodedVectors(part.vectors, codes_in_systems(self.recipe.labels, part.codes))
            for split, part in site.notes.items()
        }
        return site

    def simulated_sites(self, corpora: Sequence[Corpus], site_of: Mapping[str, str], folder: Path) -> list[HeadsSite]:
        """One hospital per site. Embeddings that are not in the cache are computed and cached."""
        embedder = Embedder.load(self.recipe.embedder)
        embeddings = EmbeddingCache.for_embedder(folder, embedder)
        parts: dict[str, dict[str, CodedVectors]] = {name: {} for name in sorted(set(site_of.values()))}
        for split in SPLITS:
            notes = [note for corpus in corpora for note in corpus.notes(split, text=False)]
            texts = (note.text for corpus in corpora for note in corpus.notes(split))
            vectors = embeddings.vectors(texts, lambda: embedder)
            codes = codes_in_systems(self.recipe.labels, [note.codes for note in notes])
            names = np.array([site_of[note.id] for note in notes], dtype=object)
            for name, part in parts.items():
                rows = np.flatnonzero(names == name)
                part[split] = CodedVectors(vectors[rows], [codes[row] for row in rows])
        return [HeadsSite(name, embedder.identity, embedder.key, part) for name, part in parts.items()]

    def report(self, site: HeadsSite) -> RecordDict:
        """Count, sum and sum of squares of the train vectors."""
        statistics = site.statistics(self.recipe.federation.min_site_notes)
        return messages.make_content({"total": statistics.total, "squares": statistics.squares}, count=statistics.count)

    def read_report(self, reply: Message | None, metadata: SiteMetadata) -> FeatureStatistics | str:
        """The statistics in a reply; a text says why they are invalid."""
        return messages.read_statistics(reply, metadata.dim)

    def share_inputs(
        self, reports: Sequence[FeatureStatistics], labels: LabelSpace, metadata: Mapping[str, SiteMetadata]
    ) -> Scaler:
        """The scaler of the vectors of all sites."""
        return sum(reports[1:], reports[0]).scaler()

    def pack_inputs(self, inputs: Scaler) -> tuple[Arrays, dict[str, Any]]:
        """Mean and scale."""
        return {"mean": inputs.mean, "scale": inputs.scale}, {}

    def unpack_inputs(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> Scaler:
        """The scaler."""
        return Scaler(arrays["mean"], arrays["scale"])

    def label_rows(self, setup: FederationSetup) -> LabelRows:
        """The output layer."""
        return HEAD_ROWS

    def initial_weights(self, setup: FederationSetup) -> Arrays:
        """The initial weights, in the dtype of the training."""
        dtype = compute_dtype(self.recipe.training)
        return {name: tensor.to(dtype).numpy() for name, tensor in initial_head(setup).state_dict().items()}

    def build_model(
        self, setup: FederationSetup, weights: Mapping[str, np.ndarray], calibration: PlattScaling
    ) -> Heads:
        """The model with these weights."""
        net = initial_head(setup)
        net.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        identity = next(iter(setup.metadata.values())).identity
        counts = setup.label_counts
        return Heads(setup.labels, counts, self.recipe.embedder, identity, setup.inputs, net.eval(), calibration)


def initial_head(setup: FederationSetup) -> HeadNet:
    """A head with the initial weights of a setup."""
    recipe = setup.recipe
    assert isinstance(recipe, FederatedHeadsRecipe)
    return build_head(recipe.model, len(setup.inputs.mean), len(setup.labels), recipe.seed)
