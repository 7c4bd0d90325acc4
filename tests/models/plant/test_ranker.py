"""The ranker learns which words tell a label, also where the language model knows nothing of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from nosology.encoders.tokenizers import SPECIALS
from nosology.models.plant.plant_net import Ranker
from nosology.models.plant.plant_settings import RankerSettings
from nosology.models.plant.ranker import passes, train_ranker
from nosology.models.plant.relevance import Relevance

LABELS, WORDS = 30, 200


def telling() -> Relevance:
    """Each label has twelve words of its own, drawn by chance."""
    rng = np.random.default_rng(0)
    scores = np.zeros((LABELS, WORDS), np.float32)
    for row in scores:
        row[rng.choice(np.arange(SPECIALS, WORDS), 12, replace=False)] = rng.random(12) + 0.1
    order = [np.argsort(-row, kind="stable")[:12] for row in scores]
    found = sparse.csr_matrix(scores)
    words, values = np.concatenate(order), np.concatenate([row[best] for row, best in zip(scores, order)])
    return Relevance(found.indptr.astype(np.int64), words.astype(np.uint16), values, WORDS)


@pytest.mark.parametrize("scorer", ["mlp", "dot"])
def test_telling_words_come_first(scorer, tmp_path):
    torch.manual_seed(0)
    vectors = 0.1 * torch.randn(WORDS, 16)  # of an untrained language model
    reached = []
    for epochs in (0, 60):
        settings = RankerSettings(scorer=scorer, hidden=16, k=10, list=32, batch=10, epochs=epochs, steps=0)
        ranker = Ranker(settings, 16, WORDS, LABELS)
        folder = tmp_path / str(epochs)
        reached.append(train_ranker(ranker, vectors, telling(), settings, folder=folder, fingerprint="", seed=0))
    assert reached[0] < 0.2 and reached[1] > 0.6


def test_few_labels_are_asked_for_more_often(tmp_path):
    """As many steps as the recipe wants, however few the labels; many labels pass once an epoch."""
    settings = RankerSettings(hidden=16, k=10, list=32, batch=10, epochs=6, steps=180)
    assert passes(settings, LABELS) == 10 and passes(settings, 100_000) == 1
    vectors, reached = 0.1 * torch.randn(WORDS, 16, generator=torch.Generator().manual_seed(0)), []
    for steps in (0, 180):
        torch.manual_seed(0)
        told, ranker = settings.model_copy(update={"steps": steps}), Ranker(settings, 16, WORDS, LABELS)
        folder = tmp_path / str(steps)
        reached.append(train_ranker(ranker, vectors, telling(), told, folder=folder, fingerprint="", seed=0))
    assert reached[0] < 0.4 and reached[1] > 0.6
