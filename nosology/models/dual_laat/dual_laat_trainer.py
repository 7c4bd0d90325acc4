"""Training of DualLAAT."""

from __future__ import annotations

import string
from collections.abc import Iterator
from functools import cache
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from nosology.codes import table
from nosology.codes.lookup import label_description
from nosology.core import ConfigError
from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import WordTokenizer
from nosology.models.dual_laat.candidate_retriever import CandidateRetriever
from nosology.models.dual_laat.dual_laat_model import DualLaat, DualLaatNet
from nosology.models.dual_laat.dual_laat_settings import DualLaatRecipe
from nosology.models.neural_trainer import NeuralTrainer, Targets, label_counts
from nosology.models.train import TrainedCoder
from nosology.models.word_tokenizer import build_word_tokenizer
from nosology.text.tokens import words_of
from nosology.training.examples import Examples


class DualLaatTrainer(NeuralTrainer[DualLaatRecipe, DualLaat]):
    """Trains DualLAAT; with [two_stage] also the retriever of candidate codes."""

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The coder that is trained on train notes and tuned on dev notes; refit: then trained again on both."""
        trained = super().train(train_notes, dev_notes, refit)
        candidates = self.recipe.two_stage.candidates
        model = trained.model
        if not candidates or not isinstance(model, DualLaat):
            return trained
        model.retriever = CandidateRetriever.fit(
            [encoding.ids for encoding in self.notes.encodings], self.notes.gold, _description_ids(model)
        )
        return TrainedCoder(model.two_stage(candidates), trained.decision, trained.report)

    def build_model(self, labels: LabelSpace, examples: Examples) -> tuple[DualLaat, Targets]:
        """An untrained model for these labels and notes, and what it is trained to predict."""
        if self.recipe.model.reference_padding:
            raise ConfigError("model.reference_padding is only for imported weights (nosology import)")
        words = description_words(labels)
        tokenizer, vectors = build_word_tokenizer(self.recipe, labels, examples, words, self.folder)
        return build_dual_laat(self.recipe, labels, tokenizer, vectors, len(examples), label_counts(labels, examples))


def build_dual_laat(
    recipe: DualLaatRecipe,
    labels: LabelSpace,
    tokenizer: WordTokenizer,
    vectors: Tensor | None,
    notes: int,
    counts: np.ndarray,
) -> tuple[DualLaat, Targets]:
    """An untrained DualLAAT, and what it is trained to predict; arguments as of `build_laat`."""
    settings = recipe.model.resolved(notes)
    torch.manual_seed(recipe.seed)
    net = DualLaatNet(settings, len(tokenizer.vocabulary), recipe.vectors.size, vectors)
    descriptions = [label_description(code) for code in labels.codes]
    model = DualLaat(labels, np.zeros(len(labels), np.int64), tokenizer, net, settings, descriptions=descriptions)
    texts, of_label = np.unique(_description_ids(model), axis=0, return_inverse=True)
    net.descriptions = torch.from_numpy(texts)
    targets = Targets.of(labels, of_label.ravel(), settings.labels)
    if settings.output_bias == "prior":
        competing = min(settings.labels, max(map(len, targets.pools.values())))
        net.initialize_bias(min(max(counts.sum() / max(1, notes) / competing, 1e-6), 0.5))
    return model, targets


def description_words(labels: LabelSpace) -> Iterator[str]:
    """The words of all descriptions of the labels' code systems, and digits for numbers that none of them has."""
    yield from string.digits
    for system in labels.systems:
        yield from _system_words(system)


@cache
def _system_words(system: str) -> frozenset[str]:
    """The words of all descriptions of a code system."""
    return frozenset(chain.from_iterable(map(words_of, table(system).descriptions())))


def _description_ids(model: DualLaat) -> np.ndarray:
    return model.description_ids(model.descriptions).numpy()
