"""Training of the ranker of PLANT with LambdaRank on mutual information (PLANT, see REFERENCES.md, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nosology.encoders.tokenizers import SPECIALS
from nosology.models.plant.plant_net import Ranker
from nosology.models.plant.plant_settings import RankerSettings
from nosology.models.plant.relevance import Relevance
from nosology.training.recipe_settings import TrainerSettings
from nosology.training.trainer import ParameterGroup, TrainingRun, fit


@dataclass(frozen=True)
class Lists:
    """Words to be put in order for B labels."""

    labels: Tensor  # (B,)
    words: Tensor  # (B, N)
    grades: Tensor  # (B, N) float32: grade of relevance; 0: not relevant

    def to(self, device: torch.device | str) -> Lists:
        """The lists on a device."""
        return replace(self, **{name: value.to(device) for name, value in vars(self).items()})


class RankerNet(nn.Module):
    """The ranker with the words' vectors, which do not learn here."""

    def __init__(self, ranker: Ranker, vectors: Tensor, k: int):
        super().__init__()
        self.ranker, self.k = ranker, k
        self.register_buffer("vectors", vectors.detach().clone(), persistent=False)

    def forward(self, lists: Lists) -> Tensor:
        """The LambdaRank loss of lists."""
        return lambda_loss(self.scores(lists.labels, lists.words), lists.grades, self.k)

    def scores(self, labels: Tensor, words: Tensor) -> Tensor:
        """Scores (B, N) of each label (B,) with its own words (B, N)."""
        left = self.ranker.of_label(self.ranker.labels[labels])[:, None]
        right = self.ranker.of_word(self.vectors[words]) + self.ranker.words[words]
        both = left * right if self.ranker.scorer == "dot" else (left + right).relu()
        return (both * self.ranker.weights).sum(2).float()


def grades(relevance: Relevance, label: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """The relevant words of a label and their grades: `levels` for the first part of the words, 1 for the last."""
    words, _ = relevance.best(label)
    parts = np.array_split(np.arange(len(words)), levels)
    grade = np.concatenate([np.full(len(part), levels - i, np.float32) for i, part in enumerate(parts)])
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
    """The mean nDCG@k of the labels' words after the training, with which the ranker is trained.

    A list has half its words of those that tell the label, drawn evenly over the grades, and half of all others.
    """
    ranked_labels = [label for label in range(len(relevance)) if relevance.bounds[label + 1] > relevance.bounds[label]]
    net = RankerNet(ranker, vectors, settings.k)
    if ranked_labels and settings.epochs:
        epoch_labels = np.tile(ranked_labels, passes(settings, len(ranked_labels)))  # the labels of an epoch
        fit(
            TrainingRun(
                net,
                _loop(settings),
                lengths=np.ones(len(epoch_labels), np.int64),
                groups=np.zeros(len(epoch_labels), np.int64),
                prepare_step=lambda rows, rng: draw_lists(relevance, epoch_labels[rows], settings, len(vectors), rng),
                make_batch=_some,
                run_folder=folder,
                fingerprint=fingerprint,
                seed=seed,
                title="ranker",
                parameter_groups=[
                    ParameterGroup([ranker.labels, ranker.words], settings.vectors),
                    ParameterGroup([ranker.weights, *ranker.of_label.parameters(), *ranker.of_word.parameters()]),
                ],
            )
        )
    return _mean_ndcg(net.cpu(), relevance, ranked_labels, settings)


def passes(settings: RankerSettings, labels: int) -> int:
    """How often an epoch asks for each of so many labels, that there are enough steps in all."""
    return max(1, -(-settings.steps * settings.batch // (settings.epochs * labels)))


def _loop(settings: RankerSettings) -> TrainerSettings:
    return TrainerSettings(
        epochs=settings.epochs,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        warmup=0,
        schedule="cosine",
        micro_batches=1,
        precision="fp32",
    )


def _some(rows: np.ndarray, lists: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Lists:
    return Lists(*map(torch.from_numpy, lists))


def draw_lists(
    relevance: Relevance, labels: np.ndarray, settings: RankerSettings, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels (B,), words (B, N) and grades (B, N) of lists: half of a list tells the label, if so many words do."""
    words = rng.integers(SPECIALS, size, (len(labels), settings.list))
    grade = np.zeros(words.shape, dtype=np.float32)
    for row, label in enumerate(labels):
        own, word_grades = grades(relevance, int(label), settings.levels)
        chosen = rng.permutation(len(own))[: settings.list // 2]
        words[row, : len(chosen)], grade[row, : len(chosen)] = own[chosen], word_grades[chosen]
        others = words[row, len(chosen) :]
        grade[row, len(chosen) :] = _grades_of(own, word_grades, others)
    return labels, words, grade


def _grades_of(own: np.ndarray, word_grades: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The grades of words (N,): those that tell the label have their own, all others 0."""
    order = np.argsort(own)
    place = np.searchsorted(own, words, sorter=order).clip(max=max(0, len(own) - 1))
    found = order[place]
    return np.where(own[found] == words, word_grades[found], np.float32(0))


@torch.no_grad()
def _mean_ndcg(net: RankerNet, relevance: Relevance, ranked_labels: list[int], settings: RankerSettings) -> float:
    """The mean nDCG@k over the labels of the order that the ranker gives to all words."""
    values, words = [], torch.arange(len(net.vectors))
    net.eval()
    step = max(1, len(ranked_labels) // 500)  # a sample of the labels: each list has the whole vocabulary
    for label in ranked_labels[::step]:
        own, word_grades = grades(relevance, label, settings.levels)
        grade = torch.zeros(1, len(net.vectors))
        grade[0, own] = torch.from_numpy(word_grades)
        scores = net.ranker(words, net.vectors, torch.tensor([label]))
        values.append(float(ndcg(scores[:, SPECIALS:], grade[:, SPECIALS:], settings.k)))
    return float(np.mean(values)) if values else 0.0


def lambdas(scores: Tensor, relevance: Tensor, k: int, sigma: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """The gradient (B, N) of the loss by each score, with the swaps' gains held fixed.

    scores, relevance: (B, N) of the words of B lists; mask: (B, N), False where a list has no word. For a pair with
    relevance_i > relevance_j, lambda_ij = -sigma / (1 + exp(sigma (s_i - s_j))) |delta nDCG@k|, which pulls i up and j
    down (a descent adds them with a minus). delta nDCG@k: what swapping both in the present order would change.
    """
    push = _pairs(scores, relevance, k, sigma, mask)
    return push.sum(2) - push.sum(1)


def lambda_loss(scores: Tensor, relevance: Tensor, k: int, sigma: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """The lambda-weighted pairwise loss, a mean over lists, whose gradient is that of `lambdas`.

    sum over pairs of |delta nDCG@k| log(1 + exp(-sigma (s_i - s_j))).
    """
    gain = swap_gains(scores, relevance, k, mask) * _above(relevance, mask)
    margin = scores[:, :, None] - scores[:, None, :]
    return (gain * torch.nn.functional.softplus(-sigma * margin)).sum((1, 2)).mean()


def _pairs(scores: Tensor, relevance: Tensor, k: int, sigma: float, mask: Tensor | None) -> Tensor:
    """lambda_ij (B, N, N), 0 where i is not more relevant than j."""
    gain = swap_gains(scores, relevance, k, mask) * _above(relevance, mask)
    margin = scores[:, :, None] - scores[:, None, :]
    return -sigma * torch.sigmoid(-sigma * margin) * gain


def _above(relevance: Tensor, mask: Tensor | None) -> Tensor:
    """1 (B, N, N) where both are words and the first is the more relevant one."""
    more = relevance[:, :, None] > relevance[:, None, :]
    return (more if mask is None else more & mask[:, :, None] & mask[:, None, :]).to(relevance.dtype)


@torch.no_grad()
def swap_gains(scores: Tensor, relevance: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """How much nDCG@k changes, without its sign, if two words of a list change places (B, N, N)."""
    inside = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    gains, discount = _gains(relevance, inside), _discounts(ranks(scores, inside), k)
    best = _dcg(gains, _discounts(ranks(relevance, inside), k)).clamp(min=torch.finfo(scores.dtype).tiny)
    swapped = (gains[:, :, None] - gains[:, None, :]) * (discount[:, :, None] - discount[:, None, :])
    return swapped.abs() / best[:, None, None]


@torch.no_grad()
def ndcg(scores: Tensor, relevance: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """nDCG@k (B,) with gains 2^relevance - 1; 0 for a list without a relevant word."""
    inside = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    gains = _gains(relevance, inside)
    best = _dcg(gains, _discounts(ranks(relevance, inside), k))
    found = _dcg(gains, _discounts(ranks(scores, inside), k))
    return torch.where(best > 0, found / best.clamp(min=torch.finfo(scores.dtype).tiny), torch.zeros_like(best))


def ranks(scores: Tensor, inside: Tensor) -> Tensor:
    """The place (B, N) of each word in the order of the scores, from 0; of equal ones the first comes first."""
    order = scores.masked_fill(~inside, -torch.inf).argsort(dim=1, descending=True, stable=True)
    place = torch.empty_like(order)
    return place.scatter_(1, order, torch.arange(scores.shape[1], device=scores.device).expand_as(order).contiguous())


def _gains(relevance: Tensor, inside: Tensor) -> Tensor:
    return (torch.exp2(relevance) - 1) * inside


def _discounts(place: Tensor, k: int) -> Tensor:
    """1 / log2(rank + 1), ranks from 1; nothing from rank k + 1 on."""
    return (1 / torch.log2(place.to(torch.float64) + 2)).masked_fill(place >= k, 0).to(torch.get_default_dtype())


def _dcg(gains: Tensor, discounts: Tensor) -> Tensor:
    return (gains * discounts).sum(1)
