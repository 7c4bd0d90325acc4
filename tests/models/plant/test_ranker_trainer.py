"""Tests of the training of the ranker, with random word vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from nosology.encoders.tokenizers import SPECIALS
from nosology.models.plant.plant_settings import RankerSettings
from nosology.models.plant.ranker import Ranker
from nosology.models.plant.ranker_trainer import epoch_repeats, grades, train_ranker
from nosology.models.plant.relevance import Relevance

LABELS, WORDS = 30, 200


def relevance() -> Relevance:
    """Each label has twelve random relevant words."""
    rng = np.random.default_rng(0)
    scores = np.zeros((LABELS, WORDS), np.float32)
    for row in scores:
        row[rng.choice(np.arange(SPECIALS, WORDS), 12, replace=False)] = rng.random(12) + 0.1
    order = [np.argsort(-row, kind="stable")[:12] for row in scores]
    bounds = sparse.csr_matrix(scores).indptr.astype(np.int64)
    words, values = np.concatenate(order), np.concatenate([row[best] for row, best in zip(scores, order)])
    return Relevance(bounds, words.astype(np.uint16), values, WORDS)


@pytest.mark.parametrize("scorer", ["mlp", "dot"])
def test_training_ranks_relevant_words_first(scorer, tmp_path):
    torch.manual_seed(0)
    vectors = 0.1 * torch.randn(WORDS, 16)  # of an untrained language model
    ndcg = []
    for epochs in (0, 60):
        settings = RankerSettings(scorer=scorer, hidden=16, k=10, list_size=32, batch=10, epochs=epochs, steps=0)
        ranker = Ranker(settings, 16, WORDS, LABELS)
        folder = tmp_path / str(epochs)
        ndcg.append(train_ranker(ranker, vectors, relevance(), settings, folder=folder, fingerprint="", seed=0))
    assert ndcg[0] < 0.2 and ndcg[1] > 0.6


def test_grades_are_quantiles_or_the_relevance_itself():
    known = relevance()
    words, by_quantile = grades(known, 3, 4)
    assert by_quantile.tolist() == [4] * 3 + [3] * 3 + [2] * 3 + [1] * 3
    same, itself = grades(known, 3, 0)
    assert same.tolist() == words.tolist() and itself.tolist() == known.best(3)[1].tolist()


def test_ranker_without_own_vectors_scores_words_with_equal_vectors_alike_and_still_learns(tmp_path):
    """The form of the paper: relevance itself, and word vectors of the language model only."""
    settings = RankerSettings(hidden=64, k=10, list_size=32, batch=10, epochs=60, steps=0, own_vectors=False, levels=0)
    vectors = torch.randn(WORDS, 64, generator=torch.Generator().manual_seed(0))
    vectors[5] = vectors[6]
    ndcg = []
    for epochs in (0, 60):
        torch.manual_seed(0)
        ranker, changed = Ranker(settings, 64, WORDS, LABELS), settings.model_copy(update={"epochs": epochs})
        folder = tmp_path / str(epochs)
        ndcg.append(train_ranker(ranker, vectors, relevance(), changed, folder=folder, fingerprint="", seed=0))
    assert ranker.words is None and ndcg[1] > ndcg[0] + 0.05
    with torch.no_grad():
        scores = ranker(torch.tensor([5, 6, 7]), vectors[[5, 6, 7]])
    assert torch.equal(scores[:, 0], scores[:, 1]) and not torch.equal(scores[:, 0], scores[:, 2])
    own = Ranker(settings.model_copy(update={"own_vectors": True}), 64, WORDS, LABELS)
    with torch.no_grad():
        scores = own(torch.tensor([5, 6]), vectors[[5, 6]])
    assert not torch.equal(scores[:, 0], scores[:, 1])


def test_few_labels_are_repeated_within_an_epoch(tmp_path):
    """So that there are at least `steps` steps in all."""
    settings = RankerSettings(hidden=16, k=10, list_size=32, batch=10, epochs=6, steps=180)
    assert epoch_repeats(settings, LABELS) == 10 and epoch_repeats(settings, 100_000) == 1
    vectors, ndcg = 0.1 * torch.randn(WORDS, 16, generator=torch.Generator().manual_seed(0)), []
    for steps in (0, 180):
        torch.manual_seed(0)
        changed, ranker = settings.model_copy(update={"steps": steps}), Ranker(settings, 16, WORDS, LABELS)
        folder = tmp_path / str(steps)
        ndcg.append(train_ranker(ranker, vectors, relevance(), changed, folder=folder, fingerprint="", seed=0))
    assert ndcg[0] < 0.4 and ndcg[1] > 0.6
