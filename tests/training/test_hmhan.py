"""HMHAN from a corpus to a bundle, with a transformer small enough for a test."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nosology.config import load_recipe
from nosology.corpora.corpus import write_corpus
from nosology.models.bundle import Bundle
from nosology.models.measure import measure
from nosology.training.run import train
from tests.conftest import small_notes
from tests.encoders.tiny import tiny_bert


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("hmhan") / "encoder")


def settings(encoder, *more: str) -> list[str]:
    return [
        f"model.encoder='{encoder}'",
        "model.heads=2",
        "model.hidden=[16, 8]",
        "training.epochs=3",
        "training.learning_rate=5e-3",
        "words.features=500",
        *more,
    ]


def f1(bundle, corpus, out):
    return measure(bundle, corpus, "test", out).evaluation.metrics["micro_f1"]


def test_a_bundle_is_trained_saved_and_read_again(small_corpus, encoder, tmp_path):
    recipe = load_recipe("hmhan", settings(encoder, "model.members=1"))
    bundle = train(recipe, [small_corpus], tmp_path / "bundle")
    again = Bundle.load(tmp_path / "bundle")
    texts = ["Type 2 diabetes. chronic low back pain", "no pneumonia", ""]
    assert np.array_equal(again.model.probabilities(texts), bundle.model.probabilities(texts))
    assert f1(again, small_corpus, tmp_path / "report") > 0.5
    assert not (tmp_path / "bundle.run").exists()
