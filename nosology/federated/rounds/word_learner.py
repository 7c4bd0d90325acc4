"""Federated CAML, LAAT and DualLAAT: sites report frequent words, and share a vocabulary.

The vocabulary has the words that sites report, or those of a public list (`federation.vocabulary`), and the words of
code descriptions. Word vectors are trained by word2vec at the sites, in rounds before those of the net
(`federation.vector_rounds`); without such rounds they start at random, from the seed of the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.codes.lookup import label_description
from nosology.core import ConfigError
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import Vocabulary
from nosology.encoders.word_vectors import initial_matrices, random_vectors, unit_vectors
from nosology.federated.federation_settings import FederatedDualLaatRecipe, FederatedWordRecipe
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup, SiteMetadata
from nosology.federated.rounds.learner import LabelRows
from nosology.federated.rounds.vocabulary_learner import VocabularyLearner, WordCounts, read_words
from nosology.federated.rounds.word_site import (
    CONTEXTS,
    VECTORS,
    WORD_PREPROCESSING,
    SharedWords,
    WordSite,
    build_word_model,
    load_weights,
    net_weights,
    vector_rounds,
    word_label_rows,
)
from nosology.models.dual_laat.dual_laat_trainer import description_words
from nosology.models.neural import NeuralModel
from nosology.text.tokens import words_of
from nosology.training.calibration import PlattScaling
from nosology.training.examples import Examples


class WordLearner(VocabularyLearner[WordSite, SharedWords]):
    """Nets that read words."""

    recipe: FederatedWordRecipe
    preprocessing, site_tables = WORD_PREPROCESSING, {"kind", "vectors", "labels"}
    head = ("learned.", "classifier.")  # of CAML and LAAT, of DualLAAT

    def check(self) -> None:
        """Raises ConfigError for settings that word nets do not support in a federation."""
        recipe, federation = self.recipe, self.recipe.federation
        for name, value, allowed in (
            ("federation.optimizer", federation.optimizer, "adamw"),
            ("federation.privacy.record_noise", federation.privacy.record_noise, 0.0),
            ("vectors.corpora", recipe.vectors.corpora, []),
        ):
            if value != allowed:
                raise ConfigError(f"{name} must be {allowed!r} for a federated {recipe.kind}; got {value!r}")
        self.check_reading()
        if isinstance(recipe, FederatedDualLaatRecipe):
            if recipe.two_stage.candidates:
                raise ConfigError("two_stage.candidates must be 0 in a federation: a retriever is made of notes")
            if recipe.model.reference_padding:
                raise ConfigError("model.reference_padding is only for imported weights (nosology import)")

    def make_site(self, name: str, notes: dict[str, Examples]) -> WordSite:
        """The site of these notes by split."""
        vectors = self.recipe.vectors
        return WordSite(name, notes, vectors.cleaning, vectors.size, self.recipe.labels)

    def share_inputs(
        self, reports: Sequence[WordCounts], labels: LabelSpace, metadata: Mapping[str, SiteMetadata]
    ) -> SharedWords:
        """The vocabulary, and the number of train notes."""
        recipe, counts = self.recipe, self.add_reports(reports)
        extra: Iterable[str] = chain.from_iterable(words_of(label_description(code)) for code in labels.codes)
        if isinstance(recipe, FederatedDualLaatRecipe):
            extra = chain(extra, description_words(labels))
        if recipe.federation.vocabulary:
            extra = chain(extra, read_words(Path(recipe.federation.vocabulary)))
        words = Vocabulary.build(counts, recipe.vectors.min_notes, extra).words
        notes = sum(site.notes for site in metadata.values())
        # a round moves the mean of all sites as far as the epochs of one site do
        epochs, rounds = recipe.vectors.resolved(notes // len(metadata)).epochs or 0, self.pretraining_rounds
        return SharedWords(words, notes, -(-epochs // rounds) if rounds else 0)

    def pack_inputs(self, inputs: SharedWords) -> tuple[Arrays, dict[str, Any]]:
        """Words and number of notes as values."""
        return {}, {"words": list(inputs.words), "notes": inputs.notes, "vector_epochs": inputs.vector_epochs}

    def unpack_inputs(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> SharedWords:
        """The words."""
        return SharedWords(tuple(values["words"]), values["notes"], values["vector_epochs"])

    @property
    def pretraining_rounds(self) -> int:
        """The rounds of word2vec."""
        return vector_rounds(self.recipe)

    def phase_name(self, number: int) -> str:
        """Word vectors, or the net."""
        return "word vectors" if number <= self.pretraining_rounds else ""

    def is_pretraining(self, inputs: SharedWords) -> bool:
        """Whether there are no word vectors yet."""
        return bool(self.pretraining_rounds) and inputs.vectors is None

    def finish_phase(self, setup: FederationSetup, number: int, weights: Mapping[str, np.ndarray]) -> Arrays | None:
        """The word vectors after the last round of word2vec."""
        return {VECTORS: unit_vectors(weights[VECTORS])} if number == self.pretraining_rounds else None

    def add_learned(self, inputs: SharedWords, arrays: Mapping[str, np.ndarray]) -> SharedWords:
        """The inputs with word vectors. Sites do not need them: they are in the first weights of the net."""
        return replace(inputs, vectors=arrays[VECTORS])

    def label_rows(self, setup: FederationSetup) -> LabelRows:
        """The queries, weights and biases of the labels; none for DualLAAT and word vectors."""
        if self.is_pretraining(setup.inputs):
            return LabelRows((), len(setup.labels))
        return word_label_rows(self.recipe, setup.labels)

    def weight_names(self, setup: FederationSetup) -> list[str]:
        """The names of the weights of the net, whatever the phase."""
        return list(self._model(setup).net.state_dict())

    def initial_weights(self, setup: FederationSetup) -> Arrays:
        """The matrices of word2vec, or the net with the word vectors."""
        if self.is_pretraining(setup.inputs):
            size = self.recipe.vectors.size
            matrices = initial_matrices(len(Vocabulary(setup.inputs.words)), size, self.recipe.seed)
            return dict(zip((VECTORS, CONTEXTS), matrices))
        return net_weights(self._model(setup).net)

    def build_model(
        self, setup: FederationSetup, weights: Mapping[str, np.ndarray], calibration: PlattScaling
    ) -> NeuralModel:
        """The model with these weights."""
        model = self._model(setup)
        load_weights(model, weights)
        model.net.eval()
        model.calibration = calibration
        return model

    def _model(self, setup: FederationSetup) -> NeuralModel:
        recipe, inputs = self.recipe, setup.inputs
        vectors = inputs.vectors
        if vectors is None:
            vectors = random_vectors(len(Vocabulary(inputs.words)), recipe.vectors.size, recipe.seed)
        return build_word_model(recipe, setup.labels, inputs, torch.from_numpy(vectors), setup.label_counts)[0]
