"""Training of CAML, LAAT and PLM-ICD."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import WordTokenizer
from nosology.encoders.transformer import load_pretrained
from nosology.models.laat.laat_model import Caml, Laat, PlmIcd, PlmIcdNet, WordEncoderNet
from nosology.models.laat.laat_settings import CamlRecipe, LaatRecipe, PlmIcdRecipe
from nosology.models.neural_trainer import NeuralTrainer, Targets, label_counts, label_rates
from nosology.models.train import FittedModel
from nosology.models.word_tokenizer import build_word_tokenizer
from nosology.training.examples import Examples
from nosology.training.inference import default_device


class LaatTrainer(NeuralTrainer[CamlRecipe | LaatRecipe, Caml]):
    """Trains CAML or LAAT; the word vectors are trained on the same notes before."""

    def build_model(self, labels: LabelSpace, examples: Examples) -> tuple[Caml, Targets]:
        """An untrained model for these labels and notes, and what it is trained to predict."""
        tokenizer, vectors = build_word_tokenizer(self.recipe, labels, examples, folder=self.folder)
        return build_laat(self.recipe, labels, tokenizer, vectors, len(examples), label_counts(labels, examples))


def build_laat(
    recipe: CamlRecipe | LaatRecipe,
    labels: LabelSpace,
    tokenizer: WordTokenizer,
    vectors: Tensor | None,
    notes: int,
    counts: np.ndarray,
) -> tuple[Caml, Targets]:
    """An untrained CAML or LAAT, and what it is trained to predict.

    vectors: initial word vectors (V, E). notes: number of train notes. counts: (L,) train notes of each label.
    """
    settings = recipe.model.resolved(notes)
    torch.manual_seed(recipe.seed)
    rates = label_rates(counts, notes) if settings.output_bias == "prior" else None
    net = WordEncoderNet(settings, len(tokenizer.vocabulary), recipe.vectors.size, len(labels), vectors, rates)
    model = Caml if recipe.kind == "caml" else Laat
    return model(labels, np.zeros(len(labels), np.int64), tokenizer, net, settings), Targets.of(labels)


class PlmIcdTrainer(NeuralTrainer[PlmIcdRecipe, PlmIcd]):
    """Fine-tunes a pretrained transformer."""

    def fit(self, train_notes: Examples, dev_notes: Examples) -> FittedModel[PlmIcd]:
        """A model trained on train notes; the best epoch is chosen on dev notes."""
        fitted = super().fit(train_notes, dev_notes)
        fitted.model.net.encoder.release_states()
        return fitted

    def refit(self, notes: Examples, fitted: FittedModel[PlmIcd]) -> PlmIcd:
        """A model trained on all notes for as many epochs as were best."""
        model = super().refit(notes, fitted)
        model.net.encoder.release_states()
        return model

    def build_model(self, labels: LabelSpace, examples: Examples) -> tuple[PlmIcd, Targets]:
        """A model with pretrained weights, and what it is trained to predict."""
        settings = self.recipe.model
        torch.manual_seed(self.recipe.seed)
        tokenizer, encoder = load_pretrained(
            settings.encoder, settings.window, settings.max_tokens, settings.lower_case
        )
        if settings.frozen and default_device().type == "cpu":
            encoder.cache_states()  # they are the same in each epoch; a GPU computes them faster than it looks them up
        tokenizer = replace(tokenizer, benchmark=settings.cleaning == "benchmark")
        rates = None
        if settings.output_bias == "prior":
            rates = label_rates(label_counts(labels, examples), len(examples))
        net = PlmIcdNet(settings, encoder, len(labels), rates)
        return PlmIcd(labels, np.zeros(len(labels), np.int64), tokenizer, net, settings), Targets.of(labels)
