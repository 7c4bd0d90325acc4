"""Training of CAML and LAAT."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from nosology.core.label_space import LabelSpace
from nosology.models.caml_laat.caml_laat_model import Caml, CamlNet, Laat, LaatNet
from nosology.models.caml_laat.caml_laat_settings import CamlRecipe, LaatRecipe
from nosology.models.neural_trainer import NeuralTrainer, Targets, build_word_tokenizer, label_rates
from nosology.training.examples import Examples


class WordModelTrainer(NeuralTrainer[CamlRecipe | LaatRecipe]):
    """Trains a net over words, whose word vectors are trained on the same notes before."""

    net_class: ClassVar[type[CamlNet | LaatNet]]
    model_class: ClassVar[type[Caml | Laat]]

    def build_model(self, labels: LabelSpace, examples: Examples) -> tuple[Caml | Laat, Targets]:
        """An untrained model for these labels and notes, and what it is trained to predict."""
        recipe = self.recipe
        tokenizer, vectors = build_word_tokenizer(recipe, labels, examples)
        settings = recipe.model.resolved(len(examples))
        torch.manual_seed(recipe.seed)
        rates = label_rates(labels, examples)
        net = self.net_class(settings, len(tokenizer.vocabulary), recipe.vectors.size, len(labels), vectors, rates)
        model = self.model_class(labels, np.zeros(len(labels), np.int64), tokenizer, net, settings)
        return model, Targets.of(labels)


class CamlTrainer(WordModelTrainer):
    """Trains CAML."""

    net_class, model_class = CamlNet, Caml


class LaatTrainer(WordModelTrainer):
    """Trains LAAT."""

    net_class, model_class = LaatNet, Laat
