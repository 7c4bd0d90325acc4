"""The contract of `nosology.core.model`, for every kind of the registry: trained on a few notes, saved and loaded."""

from __future__ import annotations

import numpy as np
import pytest

from nosology.config import load_recipe
from nosology.core import Note
from nosology.core.model import (
    AttentionWeights,
    BatchScoring,
    CategoryAttention,
    Embeddings,
    Model,
    OpenVocabulary,
    RelevantWords,
    WordContributions,
)
from nosology.models.bundle import Bundle
from nosology.models.registry import REGISTRY
from nosology.models.train import train
from nosology.serving.coder import Coder
from tests.encoders.tiny import tiny_bert
from tests.models.plant.test_plant_trainer import QUICK

ONE_EPOCH = ["training.epochs=1", "training.batch=16"]
WORDS = [*ONE_EPOCH, "vectors.epochs=1", "vectors.size=12"]
HMHAN = [*ONE_EPOCH, "model.encoder={encoder}", "model.heads=2", "model.hidden=[16, 8]", "model.ensemble_size=1"]
SETTINGS = {
    "linear": [],
    "lexicon": ["learn.folds=2"],
    "caml": [*WORDS, "model.filters=12"],
    "laat": [*WORDS, "model.hidden=8"],
    "plm_icd": [*ONE_EPOCH, "model.encoder={encoder}", "model.window=32", "model.max_tokens=64"],
    "dual_laat": [*WORDS, "model.width=16", "model.heads=2"],
    "heads": [*ONE_EPOCH, "model.widths=[16]"],
    "plant": [*QUICK],
    "hmhan": HMHAN,
    "reports": [*HMHAN, "words.c=[3.0]"],
    "stacked": [
        "parts=['linear', 'caml']",
        "stacking.folds=2",
        "stacking.min_leaf=5",
        *(f"recipes.caml.{setting}" for setting in [*WORDS, "model.filters=12"]),
    ],
}
RECIPES = {"heads": "heads-mlp"}
ABILITIES = {
    OpenVocabulary: {"dual_laat"},
    AttentionWeights: {"caml", "laat", "plm_icd", "dual_laat", "plant", "hmhan", "reports"},
    BatchScoring: {"caml", "laat", "plm_icd", "dual_laat", "plant", "hmhan", "reports"},
    CategoryAttention: {"hmhan", "reports"},
    WordContributions: {"linear"},
    RelevantWords: {"plant"},
    Embeddings: {"heads"},
}
NOTES = [
    Note("a", "Congestive heart failure. Seen in clinic."),
    Note("b", "Pneumonia of the right lower lobe and type 2 diabetes; chronic low back pain. Plan: follow up at home."),
    Note("c", ""),
]


@pytest.fixture(scope="module", params=REGISTRY)
def bundle(request, small_corpus, tmp_path_factory) -> Bundle:
    """A bundle of each kind, after it was saved and loaded."""
    folder = tmp_path_factory.mktemp(request.param)
    encoder = tiny_bert(folder / "encoder")
    settings = [setting.format(encoder=encoder) for setting in SETTINGS[request.param]]
    recipe = load_recipe(RECIPES.get(request.param, request.param), settings)
    train(recipe, [small_corpus], folder / "bundle")
    return Bundle.load(folder / "bundle")


def test_kind_and_label_space(bundle):
    model: Model = bundle.model
    assert model.kind in REGISTRY and len(model.labels) > 0
    assert model.train_counts.shape == (len(model.labels),) and isinstance(model.within_versions, bool)


def test_probabilities_are_a_matrix_that_does_not_depend_on_the_batch(bundle):
    together = bundle.model.probabilities(NOTES)
    assert together.shape == (len(NOTES), len(bundle.model.labels)) and together.dtype == np.float32
    assert ((together >= 0) & (together <= 1)).all()
    alone = np.concatenate([bundle.model.probabilities([note]) for note in NOTES])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert bundle.model.probabilities([]).shape == (0, len(bundle.model.labels))


def test_notes_coded_together_get_the_suggestions_of_single_notes(bundle):
    coder = Coder(bundle)
    for note, together in zip(NOTES, coder.code_all(NOTES)):
        alone = next(coder.code_all([note]))
        assert [item.code for item in together] == [item.code for item in alone]
        assert [item.accepted for item in together] == [item.accepted for item in alone]
        assert [item.probability for item in together] == pytest.approx([item.probability for item in alone], abs=1e-5)
        for one, other in zip(together, alone):
            assert [span.text for span in one.evidence] == [span.text for span in other.evidence]


def test_evidence_lies_within_the_note(bundle):
    labels = list(range(min(3, len(bundle.model.labels))))
    for note in NOTES:
        spans = bundle.model.evidence(note, labels, limit=2)
        assert len(spans) == len(labels) and all(len(row) <= 2 for row in spans)
        for span in (span for row in spans for span in row):
            assert 0 <= span.start < span.end <= len(note.text) and span.text == note.text[span.start : span.end]


def test_saved_model_gives_the_same_probabilities(bundle, tmp_path):
    bundle.save(tmp_path / "again")
    again = Bundle.load(tmp_path / "again").model.probabilities(NOTES)
    np.testing.assert_array_equal(again, bundle.model.probabilities(NOTES))


@pytest.mark.parametrize("ability", ABILITIES, ids=lambda protocol: protocol.__name__)
def test_abilities_are_those_of_the_kind(bundle, ability):
    assert isinstance(bundle.model, ability) == (bundle.model.kind in ABILITIES[ability])
