"""What trainers of all models share: fit on train, calibrate and tune on dev, then fit again on union if asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from scipy import sparse

from nosology.core import Code
from nosology.core.model import Model
from nosology.evaluation.decision import Decision
from nosology.training.examples import Examples, union
from nosology.training.recipe_settings import Recipe


class CalibratedModel(Model, Protocol):
    """A model whose scores become probabilities by a calibration that is fitted on dev notes."""

    calibration: Any

    def to_probabilities(self, scores: np.ndarray, /) -> np.ndarray:
        """Probabilities (B, L) of scores (B, L)."""

    def calibrated(self, scores: np.ndarray, gold: sparse.csr_matrix, /) -> Self:
        """This model with its calibration fitted on scores (B, L) of notes that it was not trained on."""


R = TypeVar("R", bound=Recipe)
M = TypeVar("M", bound=CalibratedModel)


@dataclass(frozen=True)
class Fit(Generic[M]):
    """A model fitted on train notes, with its scores on dev notes."""

    model: M
    dev_scores: np.ndarray  # (B, L)
    dev_gold: sparse.csr_matrix  # 0/1 (B, L)
    dev_codes: list[tuple[Code, ...]]
    report: dict[str, Any] = field(default_factory=dict)  # saved in the provenance of the bundle
    dev_empty: np.ndarray | None = None  # (B,) notes without a known token: their probabilities are 0
    choice: Any = None  # what `refit` needs of this fit: settings or epochs chosen on dev


@dataclass(frozen=True)
class TrainedCoder:
    """A trained model with its decision, and a report for the provenance of its bundle."""

    model: Model
    decision: Decision
    report: dict[str, Any]


class CoderTrainer(ABC, Generic[R]):
    """Trains the models of one recipe."""

    def __init__(self, recipe: R, folder: Path):
        """folder: for checkpoints and caches. A run that was stopped resumes from there."""
        self.recipe, self.folder = recipe, folder

    @abstractmethod
    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The coder that is trained on train notes and tuned on dev notes; refit: finally trained on union."""


class CalibratedTrainer(CoderTrainer[R], Generic[R, M]):
    """A trainer of models with a calibration. A subclass says how to fit and how to fit again."""

    @abstractmethod
    def fit(self, train_notes: Examples, dev_notes: Examples) -> Fit[M]:
        """A model fitted on train notes; settings are chosen on dev notes."""

    @abstractmethod
    def refit(self, notes: Examples, fitted: Fit[M]) -> M:
        """A model fitted on all notes with the choices of an earlier fit."""

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The coder that is trained on train notes and tuned on dev notes; refit: finally trained on union."""
        fitted = self.fit(train_notes, dev_notes)
        model = fitted.model.calibrated(fitted.dev_scores, fitted.dev_gold)
        probabilities = model.to_probabilities(fitted.dev_scores)
        if fitted.dev_empty is not None:
            probabilities[fitted.dev_empty] = 0
        decision = Decision.tune(self.recipe.decision, model.labels, fitted.dev_codes, probabilities)
        if refit:
            calibration = model.calibration
            model = self.refit(union(train_notes, dev_notes), fitted)
            model.calibration = calibration
        return TrainedCoder(model, decision, fitted.report | {"dev_codes": int(fitted.dev_gold.nnz)})
