"""Federated CAML, LAAT and DualLAAT: sites report frequent words, and share a vocabulary.

The vocabulary has the words that sites report, or those of a public list (`federation.vocabulary`), and the words of
code descriptions. Word vectors start at random, from the seed of the recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict

from nosology.codes.lookup import label_description
from nosology.core import ConfigError, DataError, Note
from nosology.core.label_space import LabelSpace
from nosology.corpora.corpus import Corpus
from nosology.encoders.tokenizers import Vocabulary
from nosology.encoders.word_vectors import random_vectors
from nosology.federated.federation_settings import FederatedDualLaatRecipe, FederatedWordRecipe
from nosology.federated.rounds import messages
from nosology.federated.rounds.federated_site import SPLITS
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup, SiteMetadata
from nosology.federated.rounds.learner import FederatedLearner, LabelRows, SiteFiles
from nosology.federated.rounds.word_noise import WordNoise
from nosology.federated.rounds.word_site import (
    WORD_PREPROCESSING,
    SharedWords,
    WordSite,
    build_word_model,
    load_weights,
    net_weights,
    word_label_rows,
)
from nosology.models.dual_laat.dual_laat_trainer import description_words
from nosology.models.neural import NeuralModel
from nosology.text.tokens import benchmark_words, words_of
from nosology.training.calibration import PlattScaling
from nosology.training.examples import Examples

_MAX_WORDS = 10**7  # that a site may report

WordCounts = dict[str, int]


class WordLearner(FederatedLearner[WordSite, SharedWords]):
    """Nets that read words."""

    recipe: FederatedWordRecipe
    preprocessing, site_tables = WORD_PREPROCESSING, {"kind", "vectors", "labels"}
    head = ("learned.", "classifier.")  # of CAML and LAAT, of DualLAAT

    @property
    def inputs_name(self) -> str:
        """Words."""
        return "read as words"

    @property
    def reports_words(self) -> bool:
        """Whether there is no public list of words."""
        return not self.recipe.federation.vocabulary

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
        if federation.vocabulary and not Path(federation.vocabulary).is_file():
            raise ConfigError(f"federation.vocabulary must be a file on the server; got {federation.vocabulary!r}")
        if recipe.vectors.epochs:
            raise ConfigError(
                "vectors.epochs must be 0 or not set in a federation, where word vectors start at random; "
                f"got {recipe.vectors.epochs}"
            )
        if recipe.training.precision == "fp64":
            raise ConfigError(f'training.precision must not be "fp64" for a federated {recipe.kind}')
        if isinstance(recipe, FederatedDualLaatRecipe):
            if recipe.two_stage.candidates:
                raise ConfigError("two_stage.candidates must be 0 in a federation: a retriever is made of notes")
            if recipe.model.reference_padding:
                raise ConfigError("model.reference_padding is only for imported weights (nosology import)")

    def open_site(self, files: SiteFiles) -> WordSite:
        """The site; its words are read from the word caches of the corpora, which are made if there are none."""
        site = self._site(files.name, [Corpus.open(folder) for folder in files.corpora], lambda note: True)
        if not site.sizes["train"]:
            raise DataError(f"site {files.name} has no train notes: make them with `nosology corpus split`")
        site.code_list = files.code_list
        return site

    def simulated_sites(self, corpora: Sequence[Corpus], site_of: Mapping[str, str], folder: Path) -> list[WordSite]:
        """One hospital per site."""

        def named(name: str) -> WordSite:
            return self._site(name, corpora, lambda note: site_of[note.id] == name)

        return [named(name) for name in sorted(set(site_of.values()))]

    def _site(self, name: str, corpora: Sequence[Corpus], keep: Any) -> WordSite:
        def examples(split: str) -> Examples:
            def is_kept(note: Note) -> bool:
                return note.split == split and keep(note)

            return Examples(corpora, is_kept)

        vectors = self.recipe.vectors
        parts = {split: examples(split) for split in SPLITS}
        return WordSite(name, parts, vectors.cleaning, vectors.size, self.recipe.labels)

    def report(self, site: WordSite) -> RecordDict:
        """The words of enough patients, or noisy counts; no words if the vocabulary is a public list."""
        federation, counts = self.recipe.federation, WordCounts()
        if not federation.vocabulary:
            noise = WordNoise.of(federation)
            counts = site.noisy_word_counts(noise) if noise else site.word_counts(federation.min_site_notes)
        return messages.make_content(words=counts)

    def read_report(self, reply: Message | None, metadata: SiteMetadata) -> WordCounts | str:
        """The words in a reply; a text says why they are invalid."""
        if reply is None:
            return "it did not send its words in time"
        if reply.has_error():
            return messages.error_reason(reply.error)
        try:
            counts = messages.get_value(reply.content, "words")
        except (KeyError, ValueError):
            return "its words cannot be read"
        minimum = self.recipe.federation.min_site_notes
        valid = isinstance(counts, dict) and len(counts) <= _MAX_WORDS
        valid = valid and all(type(n) is int and minimum <= n <= metadata.notes for n in counts.values())
        if not valid:
            return f"its words are not counts of {minimum} to {metadata.notes} patients"
        return counts if all(_is_word(word) for word in counts) else "its words are not words of notes"

    def share_inputs(
        self, reports: Sequence[WordCounts], labels: LabelSpace, metadata: Mapping[str, SiteMetadata]
    ) -> SharedWords:
        """The vocabulary, and the number of train notes."""
        recipe, counts = self.recipe, Counter[str]()
        for report in reports:
            counts.update(report)
        extra: Iterable[str] = chain.from_iterable(words_of(label_description(code)) for code in labels.codes)
        if isinstance(recipe, FederatedDualLaatRecipe):
            extra = chain(extra, description_words(labels))
        if recipe.federation.vocabulary:
            extra = chain(extra, read_words(Path(recipe.federation.vocabulary)))
        words = Vocabulary.build(counts, recipe.vectors.min_notes, extra).words
        return SharedWords(words, sum(site.notes for site in metadata.values()))

    def facts(self) -> dict[str, Any]:
        """The epsilon of the reported words, where they have noise."""
        noise = WordNoise.of(self.recipe.federation)
        return {"word_epsilon": noise.epsilon} if noise and not self.recipe.federation.vocabulary else {}

    def pack_inputs(self, inputs: SharedWords) -> tuple[Arrays, dict[str, Any]]:
        """Words and number of notes as values."""
        return {}, {"words": list(inputs.words), "notes": inputs.notes}

    def unpack_inputs(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> SharedWords:
        """The words."""
        return SharedWords(tuple(values["words"]), values["notes"])

    def label_rows(self, setup: FederationSetup) -> LabelRows:
        """The queries, weights and biases of the labels; none for DualLAAT."""
        return word_label_rows(self.recipe, setup.labels)

    def initial_weights(self, setup: FederationSetup) -> Arrays:
        """The weights before the first round; word vectors are random."""
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
        vectors = torch.from_numpy(random_vectors(len(Vocabulary(inputs.words)), recipe.vectors.size, recipe.seed))
        return build_word_model(recipe, setup.labels, inputs, vectors, setup.label_counts)[0]


def _is_word(word: str) -> bool:
    """Whether reading a note can give this word."""
    return word.isprintable() and [word] in (words_of(word), benchmark_words(word))


def read_words(path: Path) -> Iterator[str]:
    """The words of a public list, one per line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read federation.vocabulary {path}") from error
    return chain.from_iterable(map(words_of, lines))
