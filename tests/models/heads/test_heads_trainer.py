"""Heads on frozen embeddings: trained, saved, used."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from nosology.config import load_recipe
from nosology.core import BundleError
from nosology.corpora.corpus import write_corpus
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedder_config import EmbedderSettings
from nosology.evaluation.measure import measure
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.models.bundle import Bundle
from nosology.models.heads import heads_trainer
from nosology.models.heads.heads_net import VectorNotes, build_head, compute_dtype, draw_dropout_seed, train_epochs
from nosology.models.train import train
from nosology.serving.coder import Coder
from nosology.training.examples import train_and_dev
from nosology.training.trainer import fit
from nosology.training.training_run import TrainingRun
from tests.conftest import as_notes, small_notes

SMALL = ["model.widths=[64]", "training.epochs=12", "training.batch=8", "training.learning_rate=3e-3"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("vectors")


@pytest.fixture(scope="module")
def bundle(small_corpus, cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads") / "bundle"
    train(load_recipe("heads-mlp", [*SMALL, f"vectors.cache='{cache}'"]), [small_corpus], folder)
    return folder


def test_trained_head_codes_a_note(bundle, small_corpus, tmp_path):
    metrics = measure(Bundle.load(bundle), small_corpus, "test", tmp_path / "report").evaluation.metrics
    assert metrics["micro_f1"] > 0.75
    text = "The weather was fine. Known congestive heart failure. He likes to read. Seen in clinic."
    top = Coder.load(bundle, systems=["icd10cm"]).code(text, top=1)[0]
    assert top.code == "I50.9"
    assert "heart failure" in top.evidence[0].text
    assert all(span.text == text[span.start : span.end] for span in top.evidence)


def test_empty_note_has_no_code(bundle):
    assert Coder.load(bundle).code(" \n ") == []


def test_threshold_and_calibration_are_tuned_with_the_probabilities_of_new_notes(small_corpus, cache, tmp_path):
    notes = [replace(note, split=split) for note, split in zip(small_notes(24), ["train", "train", "dev"] * 8)]
    notes[2] = replace(notes[2], text=" \n ")
    corpus = write_corpus(notes, tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    train_notes, dev_notes, _ = train_and_dev([corpus], 0.15, 0)
    recipe = load_recipe("heads-mlp", [*SMALL, f"vectors.cache='{cache}'"])
    fitted = heads_trainer.HeadsTrainer(recipe, tmp_path).fit(train_notes, dev_notes)
    np.testing.assert_allclose(
        fitted.model.to_probabilities(fitted.dev_scores), fitted.model.probabilities(list(dev_notes.notes())), atol=1e-5
    )
    assert not fitted.model.to_probabilities(fitted.dev_scores)[0].any()


def test_heads_can_be_trained_in_bf16(small_corpus, cache, tmp_path):
    recipe = load_recipe("heads-mlp", [*SMALL, f"vectors.cache='{cache}'", "training.precision=bf16"])
    model = train(recipe, [small_corpus], tmp_path / "bundle").model
    assert model.probabilities(as_notes([small_notes(1)[0].text])).dtype == np.float32


def test_same_seed_gives_same_bundle(bundle, small_corpus, cache, tmp_path):
    again = tmp_path / "again"
    train(load_recipe("heads-mlp", [*SMALL, f"vectors.cache='{cache}'"]), [small_corpus], again)
    assert (again / "model.safetensors").read_bytes() == (bundle / "model.safetensors").read_bytes()


def test_temporary_vectors_are_deleted_after_training(tmp_path):
    corpus = write_corpus(small_notes(24), tmp_path / "corpus", source={"kind": "test"}, filters=[], counts={})
    train(load_recipe("heads-res", ["training.epochs=1"]), [corpus], tmp_path / "bundle", refit=True)
    assert not (tmp_path / "bundle.run").exists()
    assert Bundle.load(tmp_path / "bundle").provenance["refit"]


def test_codes_that_are_not_to_be_learned_are_no_misses_on_dev(small_corpus, cache, tmp_path, monkeypatch):
    recipe = load_recipe("heads-mlp", [*SMALL, f"vectors.cache='{cache}'", "labels.top_k=2"])
    validated = []
    monkeypatch.setattr(
        heads_trainer, "brief", lambda labels, codes, scores: validated.append(codes) or {"micro_f1": 1}
    )
    train_notes, dev_notes, _ = train_and_dev([small_corpus], 0.15, 0)
    fitted = heads_trainer.HeadsTrainer(recipe, tmp_path).fit(train_notes, dev_notes)
    assert {code for note in dev_notes.codes for code in note} > set(fitted.model.labels.codes)
    for codes in (fitted.dev_codes, *validated):
        assert {code for note in codes for code in note} == set(fitted.model.labels.codes)


def test_validation_notes_are_a_sample_of_the_dev_notes(small_corpus, cache, tmp_path, monkeypatch):
    settings = [*SMALL, f"vectors.cache='{cache}'", "training.validation_notes=3", "training.epochs=2"]
    validated = []
    monkeypatch.setattr(heads_trainer, "brief", lambda _, codes, scores: validated.append(codes) or {"micro_f1": 1})
    train_notes, dev_notes, _ = train_and_dev([small_corpus], 0.15, 0)
    fitted = heads_trainer.HeadsTrainer(load_recipe("heads-mlp", settings), tmp_path).fit(train_notes, dev_notes)
    assert [len(codes) for codes in validated] == [3, 3]
    assert len(fitted.dev_codes) == len(dev_notes) > 3, "the threshold is tuned on all"


def test_other_embedder_is_refused(bundle, tmp_path):
    model = Bundle.load(bundle).model
    model.identity = model.identity | {"weights": "other"}
    with pytest.raises(BundleError, match="trained with another version of the embedder"):
        model.probabilities(as_notes(["chest pain"]))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_train_epochs_gives_the_weights_of_fit(tmp_path, precision):
    """`train_epochs` over all epochs gives the weights of `fit`, for a head with batch normalization."""
    rng = np.random.default_rng(0)
    notes = VectorNotes(
        torch.from_numpy(rng.normal(size=(70, 5)).astype(np.float32)),
        torch.from_numpy((rng.random((70, 4)) < 0.4).astype(np.uint8)),
    )
    recipe = FederatedHeadsRecipe.model_validate({"model": {"head": "deep", "widths": [8, 8, 8]}})
    settings = recipe.training.model_copy(update={"batch": 16, "epochs": 4, "precision": precision})
    full, light = (build_head(recipe.model, 5, 4, 1).to(compute_dtype(settings)) for _ in range(2))
    fit(
        TrainingRun(
            full,
            settings,
            lengths=np.ones(70, np.int64),
            groups=np.zeros(70, np.int64),
            make_batch=lambda rows, seed: notes.batch(torch.from_numpy(rows), torch.tensor(seed)),
            prepare_step=lambda rows, rng: draw_dropout_seed(rng),
            run_folder=tmp_path,
            fingerprint="x",
            seed=9,
        )
    )
    train_epochs(light, notes, settings, range(4), seed=9)
    for name, value in full.state_dict().items():
        torch.testing.assert_close(light.state_dict()[name], value, atol=1e-6, rtol=1e-6)


def test_bundle_contains_embedder_identity(bundle):
    described = json.loads((bundle / "model.json").read_text())
    assert described["identity"] == Embedder.load(EmbedderSettings()).identity


@pytest.mark.parametrize("head", ["mlp", "deep", "res"])
def test_the_recipes_have_the_settings_of_the_paper(head):
    """Xu and Dray (2025), sections 2.1 and 2.5."""
    recipe = load_recipe(f"heads-{head}")
    assert isinstance(recipe, FederatedHeadsRecipe)
    model, training, federation = recipe.model, recipe.training, recipe.federation
    assert (model.head, model.dropout, model.bce, model.alpha, model.gamma) == (head, 0.1, 0.5, 0.35, 2)
    assert (training.learning_rate, training.weight_decay, training.epochs) == (1e-3, 1e-5, 20)
    assert (training.schedule, training.warmup) == ("cosine", 0)
    assert (federation.strategy, federation.rounds, federation.local_epochs) == ("fedavg", 100, 1)
    assert (federation.fraction_train, federation.fraction_evaluate) == (1, 0.5)
    assert (federation.min_sites, federation.quorum, federation.min_site_notes) == (10, 10, 10)
