"""Training of the ranker of PLANT with LambdaRank on mutual information (Saha Roy et al. 2024, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from nosology.core.progress import progress
from nosology.encoders.tokenizers import SPECIALS
from nosology.models.plant.lambda_rank import lambda_loss, ndcg
from nosology.models.plant.plant_settings import RankerSettings
from nosology.models.plant.ranker import Ranker
from nosology.models.plant.relevance import Relevance
from nosology.training.parameter_groups import ParameterGroup
from nosology.training.recipe_settings import TrainerSettings
from nosology.training.trainer import fit
from nosology.training.training_run import TrainingRun


@dataclass(frozen=True)
class WordLists:
    """Words to rank for B labels."""

    labels: Tensor  # (B,)
    words: Tensor  # (B, N)
    grades: Tensor  # (B, N) float32: grade of relevance; 0: not relevant

    def to(self, device: torch.device | str) -> WordLists:
        """The lists on a device."""
        return replace(self, **{name: value.to(device) for name, value in vars(self).items()})


class RankerNet(nn.Module):
    """The ranker with the vectors of words, which are not trained here."""

    vectors: Tensor

    def __init__(self, ranker: Ranker, vectors: Tensor, k: int, graded: bool = True):
        """graded: relevance has grades with gains 2^grade - 1; otherwise gains are 2^relevance."""
        super().__init__()
        self.ranker, self.k, self.graded = ranker, k, graded
        self.register_buffer("vectors", vectors.detach().clone(), persistent=False)

    def forward(self, lists: WordLists) -> Tensor:
        """The LambdaRank loss of lists."""
        return lambda_loss(self.scores(lists.labels, lists.words), lists.grades, self.k, self.graded)

    def scores(self, labels: Tensor, words: Tensor) -> Tensor:
        """Scores (B, N) of each label (B,) with its own words (B, N)."""
        # The gradient of `embedding` takes a fraction of the time of that of an index.
        left = self.ranker.of_label(embedding(labels, self.ranker.labels))
        right = self.ranker.of_word(self.vectors[words])
        if self.ranker.words is not None:
            right = right + embedding(words, self.ranker.words)
        if self.ranker.scorer == "dot":
            return torch.bmm(right, (left * self.ranker.weights)[:, :, None])[..., 0].float()
        return ((left[:, None] + right).relu() @ self.ranker.weights).float()


def grades(relevance: Relevance, label: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """The relevant words of a label and their grades: `levels` for the first part of the words, 1 for the last.

    levels 0: the grade of a word is its relevance.
    """
    words, scores = relevance.best(label)
    if not levels:
        return words.astype(np.int64), scores
    size, longer = divmod(len(words), levels)
    grade = np.repeat(np.arange(levels, 0, -1, dtype=np.float32), [size + (part < longer) for part in range(levels)])
    return words.astype(np.int64), grade


def train_ranker(
    ranker: Ranker,
    vectors: Tensor,
    relevance: Relevance,
    settings: RankerSettings,
    *,
    folder: Path,
    fingerprint: str,
    seed: int,
) -> float:
    """The mean nDCG@k of the labels' words after the training of the ranker."""
    ranked_labels = [label for label in range(len(relevance)) if relevance.bounds[label + 1] > relevance.bounds[label]]
    net = RankerNet(ranker, vectors, settings.k, settings.levels > 0)
    if ranked_labels and settings.epochs:
        epoch_labels = np.tile(ranked_labels, epoch_repeats(settings, len(ranked_labels)))  # the labels of an epoch
        fit(
            TrainingRun(
                net,
                TrainerSettings(
                    epochs=settings.epochs,
                    batch=settings.batch,
                    learning_rate=settings.learning_rate,
                    warmup=0,
                    schedule="cosine",
                    micro_batches=1,
                    precision="fp32",
                ),
                lengths=np.ones(len(epoch_labels), np.int64),
                groups=np.zeros(len(epoch_labels), np.int64),
                prepare_step=lambda rows, rng: draw_lists(relevance, epoch_labels[rows], settings, len(vectors), rng),
                make_batch=lambda _, lists: WordLists(*map(torch.from_numpy, lists)),
                run_folder=folder,
                fingerprint=fingerprint,
                seed=seed,
                title="ranker",
                parameter_groups=[
                    ParameterGroup([v for v in (ranker.labels, ranker.words) if v is not None], settings.vectors),
                    ParameterGroup([ranker.weights, *ranker.of_label.parameters(), *ranker.of_word.parameters()]),
                ],
            )
        )
    return _mean_ndcg(net.cpu(), relevance, ranked_labels, settings)


def epoch_repeats(settings: RankerSettings, labels: int) -> int:
    """How often an epoch repeats the labels, so that there are at least `settings.steps` steps in all."""
    return max(1, -(-settings.steps * settings.batch // (settings.epochs * labels)))


def draw_lists(
    relevance: Relevance, labels: np.ndarray, settings: RankerSettings, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels (B,), words (B, N) and grades (B, N) of lists.

    At most half of a list is a sample of the relevant words of the label; the others are sampled from all words.
    """
    words = rng.integers(SPECIALS, size, (len(labels), settings.list_size))
    grade = np.zeros(words.shape, dtype=np.float32)
    of_word = np.zeros(size, dtype=np.float32)  # grades of all words for one label
    for row, label in enumerate(labels):
        relevant, word_grades = grades(relevance, int(label), settings.levels)
        chosen = rng.permutation(len(relevant))[: settings.list_size // 2]
        words[row, : len(chosen)] = relevant[chosen]
        of_word[relevant] = word_grades
        grade[row] = of_word[words[row]]
        of_word[relevant] = 0
    return labels, words, grade


@torch.no_grad()
def _mean_ndcg(net: RankerNet, relevance: Relevance, ranked_labels: list[int], settings: RankerSettings) -> float:
    """The mean nDCG@k of the ranking of all words, over the labels."""
    values, words = [], torch.arange(len(net.vectors))
    net.eval()
    step = max(1, len(ranked_labels) // 500)  # a sample of the labels: each list has the whole vocabulary
    for label in progress(ranked_labels[::step], "measuring the ranker", unit="codes"):
        relevant, word_grades = grades(relevance, label, settings.levels)
        grade = torch.zeros(1, len(net.vectors))
        grade[0, relevant] = torch.from_numpy(word_grades)
        scores = net.ranker(words, net.vectors, torch.tensor([label]))
        values.append(float(ndcg(scores[:, SPECIALS:], grade[:, SPECIALS:], settings.k, net.graded)))
    return float(np.mean(values)) if values else 0.0
