"""Central training of a head on frozen embeddings: vectors, scaler, the loop, calibration, threshold."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nosology.core.progress import progress
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.evaluation import brief
from nosology.evaluation.decision import Decision
from nosology.models.heads.coded_vectors import CodedVectors, new_head, vector_notes
from nosology.models.heads.feature_statistics import Moments
from nosology.models.heads.heads_model import Heads
from nosology.models.heads.heads_net import HeadNet, VectorBatch
from nosology.models.heads.heads_settings import HeadsRecipe
from nosology.models.heads.vector_loop import draw_seed
from nosology.training.examples import Examples, codes_in_systems, label_space, union
from nosology.training.run_folder import REFIT, VECTORS, fingerprint
from nosology.training.trainer import TrainingResult, TrainingRun, fit

Trained = tuple[Heads, Decision, dict[str, Any]]


def train_heads(recipe: HeadsRecipe, train_notes: Examples, dev_notes: Examples, refit: bool, folder: Path) -> Trained:
    """The coder of a recipe; `folder` keeps checkpoints and curves, and the vectors where no cache is named."""
    embedder = Embedder.load(recipe.embedder)
    cache = EmbeddingCache.for_embedder(recipe.vectors.cache or folder / VECTORS, embedder)
    train, dev = (_embedded(recipe, embedder, cache, part) for part in (train_notes, dev_notes))
    model, fitted = _fitted(recipe, embedder, train, dev, folder, fingerprint(recipe, train_notes, dev_notes))
    logits, gold = model.logits_of(dev.vectors), model.labels.encode(dev.codes)
    model = model.calibrated(logits, gold)
    decision = Decision.tune(recipe.decision, model.labels, dev.codes, model.to_probabilities(logits))
    found = asdict(fitted) | {"dev_codes": int(gold.nnz), "shape": model.net.shape.model_dump()}
    if refit:
        every = union(train_notes, dev_notes)
        leaving = recipe.training.model_copy(update={"stop_epoch": fitted.best_epoch})
        shorter = recipe.model_copy(update={"training": leaving})
        calibration = model.calibration
        notes = _embedded(recipe, embedder, cache, every)
        model, _ = _fitted(shorter, embedder, notes, None, folder / REFIT, fingerprint(shorter, every))
        model.calibration = calibration
    return model, decision, found


def _embedded(recipe: HeadsRecipe, embedder: Embedder, cache: EmbeddingCache, examples: Examples) -> CodedVectors:
    texts = progress(examples.texts(), "vectors", total=len(examples))
    return CodedVectors(cache.vectors(texts, lambda: embedder), codes_in_systems(recipe.labels, examples.codes))


def _fitted(
    recipe: HeadsRecipe, embedder: Embedder, train: CodedVectors, dev: CodedVectors | None, folder: Path, told: str
) -> tuple[Heads, TrainingResult]:
    """The model of a recipe for these notes, trained."""
    labels = label_space(recipe.labels, train.codes)
    scaler = Moments.of(train.vectors).scaler()
    net = new_head(recipe.model, embedder.dim, len(labels), recipe.seed)
    counts = np.asarray(labels.encode(train.codes).sum(0)).ravel()
    model = Heads(labels, counts, recipe.embedder, embedder.identity, scaler, net)
    notes = vector_notes(train.vectors, train.codes, scaler, labels)

    def prepare(rows: np.ndarray, rng: np.random.Generator) -> int:
        return draw_seed(rng)

    def make_batch(rows: np.ndarray, seed: int) -> VectorBatch:
        return notes.batch(torch.from_numpy(rows), torch.tensor(seed))

    def validate(_: HeadNet) -> dict[str, float]:
        return brief(labels, dev.codes, model.to_probabilities(model.logits_of(dev.vectors)))

    fitted = fit(
        TrainingRun(
            net,
            recipe.training,
            lengths=np.ones(len(notes), np.int64),
            groups=np.zeros(len(notes), np.int64),
            make_batch=make_batch,
            prepare_step=prepare,
            validate=validate if dev is not None else None,
            run_folder=folder,
            fingerprint=told,
            seed=recipe.seed,
            title=recipe.kind,
        )
    )
    return model, fitted
