"""The ranker of PLANT: rank scores of words for labels (Saha Roy et al. 2024, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from nosology.attention.pair_scores import pair_scores
from nosology.models.plant.plant_settings import RankerSettings

_WORD_VECTOR_STD = 0.3  # initial standard deviation of the ranker's word vectors


class Ranker(nn.Module):
    """f(label, word): the rank score of a word for a label (equation 2).

    A word has its vector of the language model and, with `own_vectors`, a vector of the ranker. Similar words share
    information through the first; the second separates words whose vectors in the language model are nearly equal.
    """

    def __init__(self, settings: RankerSettings, size: int, words: int, labels: int):
        super().__init__()
        self.scorer = settings.scorer
        self.labels = nn.Parameter(0.1 * torch.randn(labels, size))  # e_l
        wide = settings.hidden if settings.scorer == "mlp" else size
        self.words = nn.Parameter(_WORD_VECTOR_STD * torch.randn(words, wide)) if settings.own_vectors else None
        self.of_label = nn.Linear(size, wide)
        self.of_word = nn.Linear(size, wide, bias=False)
        self.weights = nn.Parameter(torch.randn(wide) / wide**0.5)

    def forward(self, words: Tensor, vectors: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores (L, W), float32, of labels (None: all) with words (W,) that have vectors (W, E).

        Outside of training they are computed in float64. The choice between two words with nearly equal scores must not
        depend on the other notes of the batch, but the rounding of a matrix product in float32 does.
        """
        dtype = torch.float32 if self.training else torch.float64
        chosen = (self.labels if labels is None else self.labels[labels]).to(dtype)
        with torch.autocast(chosen.device.type, enabled=False):
            left = linear(chosen, self.of_label.weight.to(dtype), self.of_label.bias.to(dtype))
            right = linear(vectors.to(dtype), self.of_word.weight.to(dtype))
            if self.words is not None:
                right = right + embedding(words, self.words).to(dtype)
            weights = self.weights.to(dtype)
            scores = (left * weights) @ right.T if self.scorer == "dot" else pair_scores(left, right, weights)
        return scores.float()
