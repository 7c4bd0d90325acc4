"""Training of PLM-ICD."""

from __future__ import annotations

import numpy as np
import torch

from nosology.core.label_space import LabelSpace
from nosology.models.neural_trainer import NeuralTrainer, Targets, label_rates
from nosology.models.plm_icd.plm_icd_model import PlmIcd, PlmIcdNet, pretrained
from nosology.models.plm_icd.plm_icd_settings import PlmIcdRecipe
from nosology.training.examples import Examples


class PlmIcdTrainer(NeuralTrainer[PlmIcdRecipe]):
    """Fine-tunes a pretrained transformer."""

    def build_model(self, labels: LabelSpace, examples: Examples) -> tuple[PlmIcd, Targets]:
        """A model with pretrained weights, and what it is trained to predict."""
        torch.manual_seed(self.recipe.seed)
        tokenizer, encoder = pretrained(self.recipe.model)
        net = PlmIcdNet(self.recipe.model, encoder, len(labels), label_rates(labels, examples))
        model = PlmIcd(labels, np.zeros(len(labels), np.int64), tokenizer, net, self.recipe.model)
        return model, Targets.of(labels)
