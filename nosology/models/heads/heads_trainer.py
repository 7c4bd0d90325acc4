"""Central training of a head on frozen embeddings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nosology.core.label_space import LabelSpace, column_sums
from nosology.encoders.embedder import Embedder
from nosology.encoders.embedding_cache import EmbeddingCache
from nosology.evaluation import brief
from nosology.models.heads.feature_statistics import FeatureStatistics
from nosology.models.heads.heads_model import Heads
from nosology.models.heads.heads_net import CodedVectors, build_head, draw_dropout_seed, make_vector_notes
from nosology.models.heads.heads_settings import HeadsRecipe
from nosology.models.train import CalibratedTrainer, FittedModel
from nosology.training.examples import Examples, codes_in_labels, label_space, validation_rows
from nosology.training.run_folder import REFIT, VECTORS, run_fingerprint
from nosology.training.trainer import fit
from nosology.training.training_run import TrainingResult, TrainingRun


class HeadsTrainer(CalibratedTrainer[HeadsRecipe, Heads]):
    """Embeds the notes once, then trains a head on the vectors."""

    def __init__(self, recipe: HeadsRecipe, folder: Path):
        super().__init__(recipe, folder)
        self.embedder = Embedder.load(recipe.embedder)
        self.cache = EmbeddingCache.for_embedder(recipe.vectors.cache or folder / VECTORS, self.embedder)

    def fit(self, train_notes: Examples, dev_notes: Examples) -> FittedModel[Heads]:
        """A model trained on train notes; the best epoch is chosen on dev notes."""
        labels = label_space(self.recipe.labels, train_notes.codes)
        train, dev = (self._embed(notes, labels) for notes in (train_notes, dev_notes))
        key = run_fingerprint(self.recipe, train_notes, dev_notes)
        model, fitted = _fitted(self.recipe, self.embedder, labels, train, dev, self.folder, key)
        report = asdict(fitted) | {"shape": model.net.shape.model_dump()}
        gold = labels.encode(dev.codes)
        return FittedModel(model, model.logits_of(dev.vectors), gold, dev.codes, report, choice=fitted.best_epoch)

    def refit(self, notes: Examples, fitted: FittedModel[Heads]) -> Heads:
        """A model trained on all notes for as many epochs as were best."""
        recipe = self.recipe.stop_after(fitted.choice)
        key, labels = run_fingerprint(recipe, notes), label_space(recipe.labels, notes.codes)
        vectors = self._embed(notes, labels)
        return _fitted(recipe, self.embedder, labels, vectors, None, self.folder / REFIT, key)[0]

    def _embed(self, examples: Examples, labels: LabelSpace) -> CodedVectors:
        """The vectors of notes, with the codes that a model of these labels is evaluated on."""
        vectors = self.cache.vectors(examples.texts(), lambda: self.embedder)
        return CodedVectors(vectors, codes_in_labels(self.recipe.labels, labels, examples.codes))


def _fitted(
    recipe: HeadsRecipe,
    embedder: Embedder,
    labels: LabelSpace,
    train: CodedVectors,
    dev: CodedVectors | None,
    folder: Path,
    key: str,
) -> tuple[Heads, TrainingResult]:
    """The model trained on these notes, and the result of the training loop. key: fingerprint of the run."""
    scaler = FeatureStatistics.of(train.vectors).scaler()
    net = build_head(recipe.model, embedder.dim, len(labels), recipe.seed)
    counts = column_sums(labels.encode(train.codes))
    model = Heads(labels, counts, recipe.embedder, embedder.identity, scaler, net)
    notes = make_vector_notes(train.vectors, train.codes, scaler, labels)
    validation = dev and dev.subset(validation_rows(len(dev.codes), recipe.training.validation_notes, recipe.seed))

    def validate(_: nn.Module) -> dict[str, float]:
        assert validation is not None
        return brief(labels, validation.codes, model.to_probabilities(model.logits_of(validation.vectors)))

    run = TrainingRun(
        net,
        recipe.training,
        lengths=np.ones(len(notes), np.int64),
        groups=np.zeros(len(notes), np.int64),
        make_batch=lambda rows, seed: notes.batch(torch.from_numpy(rows), torch.tensor(seed)),
        prepare_step=lambda rows, rng: draw_dropout_seed(rng),
        validate=validate if dev is not None else None,
        run_folder=folder,
        fingerprint=key,
        seed=recipe.seed,
        title=recipe.kind,
    )
    return model, fit(run)
