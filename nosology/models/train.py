"""Training of a coder: the base classes of trainers, and `train`, which turns recipe and corpora into a bundle."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from scipy import sparse

from nosology.core import Code, ConfigError, DataError, __version__
from nosology.core.model import Model
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.corpora.seen_notes import NOTE_HASHES, note_hashes
from nosology.evaluation.decision import Decision
from nosology.models.bundle import Bundle, check_bundle_folder
from nosology.models.registry import load_class
from nosology.training.examples import Examples, train_and_dev, union
from nosology.training.recipe_settings import NeuralRecipe, Recipe
from nosology.training.run_folder import clear_run_folder, curve_files, open_run_folder
from nosology.training.torchrun import is_first_process, process_counts


class CalibratedModel(Model, Protocol):
    """A model whose scores become probabilities by a calibration that is fitted on dev notes."""

    calibration: Any

    def to_probabilities(self, scores: np.ndarray, /) -> np.ndarray:
        """Probabilities (B, L) of scores (B, L)."""

    def calibrated(self, scores: np.ndarray, gold: sparse.csr_matrix, /) -> Self:
        """This model with its calibration fitted on scores (B, L) of notes that it was not trained on."""


_ROWS = 256  # whose scores become probabilities at a time

R = TypeVar("R", bound=Recipe)
M = TypeVar("M", bound=CalibratedModel)


@dataclass(frozen=True)
class FittedModel(Generic[M]):
    """A model fitted on train notes, with its scores on dev notes."""

    model: M
    dev_scores: np.ndarray  # (B, L); `CalibratedTrainer.train` overwrites them with probabilities
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
        """The coder that is trained on train notes and tuned on dev notes; refit: then trained again on both."""


class CalibratedTrainer(CoderTrainer[R], Generic[R, M]):
    """A trainer of models with a calibration. A subclass implements `fit` and `refit`."""

    @abstractmethod
    def fit(self, train_notes: Examples, dev_notes: Examples) -> FittedModel[M]:
        """A model fitted on train notes; settings are chosen on dev notes."""

    @abstractmethod
    def refit(self, notes: Examples, fitted: FittedModel[M]) -> M:
        """A model fitted on all notes with the choices of an earlier fit."""

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The coder that is trained on train notes and tuned on dev notes; refit: then trained again on both."""
        fitted = self.fit(train_notes, dev_notes)
        model = fitted.model.calibrated(fitted.dev_scores, fitted.dev_gold)
        probabilities = probabilities_in_place(model, fitted.dev_scores)  # nothing needs the scores any more
        if fitted.dev_empty is not None:
            probabilities[fitted.dev_empty] = 0
        decision = Decision.tune(self.recipe.decision, model.labels, fitted.dev_codes, probabilities)
        if refit:
            calibration = model.calibration
            model = self.refit(union(train_notes, dev_notes), fitted)
            model.calibration = calibration
        return TrainedCoder(model, decision, fitted.report | {"dev_codes": int(fitted.dev_gold.nnz)})


def probabilities_in_place(model: CalibratedModel, scores: np.ndarray) -> np.ndarray:
    """Probabilities (B, L) of scores (B, L), which are overwritten if they are float32.

    The scores of all dev notes of MIMIC take gigabytes, and probabilities beside them would take as many again.
    """
    if scores.dtype != np.float32:
        return model.to_probabilities(scores)
    for start in range(0, len(scores), _ROWS):
        scores[start : start + _ROWS] = model.to_probabilities(scores[start : start + _ROWS])
    return scores


def train(recipe: Recipe, corpora: list[Corpus], out: str | Path, *, refit: bool = False) -> Bundle:
    """The bundle of a recipe trained on corpora, saved in `out`.

    Settings and threshold are tuned on dev. With `refit`, or if dev was split off train, the model is then trained
    again on train and dev together.
    """
    if process_counts() != (1, 1) and not isinstance(recipe, NeuralRecipe):
        raise ConfigError(f"a {recipe.kind} coder is trained by one process; start it without torchrun")
    check_bundle_folder(out)
    with open_run_folder(out) as folder:
        return _train(recipe, corpora, out, folder, refit)


def _train(recipe: Recipe, corpora: list[Corpus], out: str | Path, folder: Path, refit: bool) -> Bundle:
    train_notes, dev_notes, split_off = examples_for(recipe, corpora)
    trainer: CoderTrainer = load_class(recipe.kind, "trainer")(recipe, folder)
    trained = trainer.train(train_notes, dev_notes, refit or split_off)
    report = dict(trained.report)
    seen = union(train_notes, dev_notes) if refit or split_off else train_notes
    facts = {
        "trained_on": sorted({"train", "dev"} if refit and not split_off else {"train"}),
        "tuned_on": report.pop("tuned_on", f"{recipe.holdout.share:.0%} of train" if split_off else "dev"),
        "n_train": len(train_notes),
        "n_dev": report.pop("n_dev", len(dev_notes)),
        "refit": refit or split_off,
        "found": report,
        NOTE_HASHES: note_hashes(progress(seen.texts(), "hashing notes", total=len(seen))),
    }
    about = provenance(recipe, corpora, facts)
    bundle = Bundle(trained.model, trained.decision, recipe.model_dump(mode="json"), about)
    if is_first_process():
        bundle.save(out, also=curve_files(folder))
        clear_run_folder(folder, marked=True)
    return bundle


def provenance(recipe: Recipe, corpora: Sequence[Corpus], facts: dict[str, Any]) -> dict[str, Any]:
    """The provenance of a bundle: corpora, facts of the training, seed and software."""
    sources = [{"hash": corpus.hash, "source": corpus.manifest["source"]} for corpus in corpora]
    return {"corpora": sources} | facts | {"seed": recipe.seed} | software()


def software() -> dict[str, str]:
    """The versions of this package and of Python, and the kind of machine."""
    machine = f"{platform.system()} {platform.machine()}"
    return {"package": f"nosology {__version__}", "python": platform.python_version(), "machine": machine}


def examples_for(recipe: Recipe, corpora: list[Corpus], *, coded: bool = True) -> tuple[Examples, Examples, bool]:
    """The result of `train_and_dev`, after checks of the corpora. coded: the notes must have codes."""
    if len({corpus.hash for corpus in corpora}) < len(corpora):
        raise ConfigError("each corpus must be given once; two of them have the same notes")
    train_notes, dev_notes, split_off = train_and_dev(corpora, recipe.holdout.share, recipe.seed)
    if not coded:
        return train_notes, dev_notes, split_off
    if not any(train_notes.codes):
        raise DataError("the training notes have no codes: nothing can be learned from them")
    if split_off and not any(dev_notes.codes):
        raise DataError("training needs two notes with codes or more, to learn from and to tune on; got one")
    if not any(dev_notes.codes):
        raise DataError("the dev notes have no codes: no threshold can be found on them")
    return train_notes, dev_notes, split_off
