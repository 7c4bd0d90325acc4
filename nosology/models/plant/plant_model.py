"""The model of kind `plant`: one reading direction, or the mean of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nosology.core.label_space import LabelSpace
from nosology.encoders.tokenizers import WordTokenizer
from nosology.models.neural import NeuralModel
from nosology.models.plant.plant_net import PlantNet
from nosology.models.plant.plant_settings import PlantSettings, RankerSettings
from nosology.models.plant.relevance import Relevance
from nosology.training.data_loader import Batch

_RELEVANCE = "relevance."


class PlantNets(nn.Module):
    """Nets of one or both directions."""

    def __init__(self, nets: list[PlantNet]):
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, batch: Batch) -> Tensor:
        """The mean binary cross entropy over the batch's notes x labels; directions are trained one by one."""
        if len(self.nets) == 1:
            return self.nets[0](batch)
        return nn.functional.binary_cross_entropy_with_logits(self.logits(batch), batch.targets)

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, L) of the mean of the nets' probabilities."""
        found = [net.logits(batch) for net in self.nets]
        if len(found) == 1:
            return found[0]
        yes, no = (torch.stack([nn.functional.logsigmoid(sign * x) for x in found]).logsumexp(0) for sign in (1, -1))
        return yes - no

    def attention(self, batch: Batch) -> Tensor:
        """The attention weights (B, L, T), mean over the nets."""
        return torch.stack([net.attention(batch) for net in self.nets]).mean(0)


@dataclass
class Plant(NeuralModel):
    """PLANT; `relevance` has the most informative words of each code."""

    relevance: Relevance | None = None
    ranker: RankerSettings = field(default_factory=RankerSettings)

    kind, tokenizer_class, settings_class = "plant", WordTokenizer, PlantSettings

    @classmethod
    def of(
        cls,
        labels: LabelSpace,
        notes: np.ndarray,
        tokenizer: WordTokenizer,
        settings: PlantSettings,
        ranker: RankerSettings,
        relevance: Relevance,
    ) -> Plant:
        """An untrained model."""
        nets = [
            PlantNet(settings, ranker, len(tokenizer.vocabulary), len(labels), relevance, backward)
            for backward in directions(settings)
        ]
        return cls(labels, notes, tokenizer, PlantNets(nets), settings, relevance=relevance, ranker=ranker)

    def relevant_words(self, label: int, limit: int = 10) -> list[tuple[str, float]]:
        """The most informative words of a label with their scores, highest first."""
        numbers, scores = self.relevance.best(label, limit)
        names = ("", "", *self.tokenizer.vocabulary.words)
        return [(names[number], float(score)) for number, score in zip(numbers, scores)]

    @classmethod
    def build_net(
        cls, settings: PlantSettings, labels: LabelSpace, tokenizer: WordTokenizer, config: dict[str, Any]
    ) -> PlantNets:
        """Nets without learned weights."""
        ranker = RankerSettings.model_validate(config["ranker"])
        words = len(tokenizer.vocabulary)
        return PlantNets([PlantNet(settings, ranker, words, len(labels), None, back) for back in directions(settings)])

    def extra_config(self) -> dict[str, Any]:
        """The settings of the ranker."""
        return {"ranker": self.ranker.model_dump(mode="json")}

    def load_extra_config(self, config: dict[str, Any]) -> None:
        """Restores what `extra_config` returned."""
        self.ranker = RankerSettings.model_validate(config["ranker"])

    def extra_tensors(self) -> dict[str, Tensor]:
        """The relevance of words."""
        return {_RELEVANCE + name: torch.from_numpy(array) for name, array in self.relevance.arrays().items()}

    def load_extra_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restores what `extra_tensors` returned."""
        found = {n.removeprefix(_RELEVANCE): t.numpy() for n, t in tensors.items() if n.startswith(_RELEVANCE)}
        self.relevance = Relevance.from_arrays(found)
        for net in self.net.nets:
            net.set_relevance(self.relevance)


def directions(settings: PlantSettings) -> list[bool]:
    """One value per net: whether it reads notes backward."""
    return {"forward": [False], "backward": [True], "both": [False, True]}[settings.direction]
