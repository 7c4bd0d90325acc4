"""Training of neural models: tokenization, word vectors, batches, and the training loop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from scipy import sparse

from nosology.core import Code, DataError
from nosology.core.label_space import (
    ICD9,
    ICD10,
    LabelSpace,
    column_sums,
    label_versions,
    note_versions,
    score_by_version,
)
from nosology.core.parallel import batched
from nosology.core.progress import ProgressCounter, counting, progress
from nosology.encoders.tokenizers import TokenIds, Tokenizer, WordTokenizer
from nosology.evaluation import brief
from nosology.models.neural import NeuralModel
from nosology.models.train import CalibratedTrainer, FittedModel, TrainedCoder
from nosology.training.calibration import EXCLUDED_LOGIT
from nosology.training.data_loader import Batch, pad_notes
from nosology.training.examples import Examples, codes_in_labels, label_space, validation_rows
from nosology.training.inference import default_device, trained_precision
from nosology.training.label_sampling import label_targets, sample_labels
from nosology.training.parameter_groups import ParameterGroup
from nosology.training.recipe_settings import LabelSettings, NeuralRecipe, WordRecipe
from nosology.training.run_folder import REFIT, run_fingerprint
from nosology.training.trainer import fit
from nosology.training.training_run import TrainingResult, TrainingRun


@dataclass(frozen=True)
class TokenizedNotes:
    """Tokenized notes with their labels and ICD versions."""

    encodings: Sequence[TokenIds]
    codes: list[tuple[Code, ...]]  # of the code systems to learn
    gold: sparse.csr_matrix  # (B, L) of 0/1
    versions: np.ndarray  # (B,)

    @staticmethod
    def of(examples: Examples, settings: LabelSettings, tokenizer: Tokenizer, labels: LabelSpace) -> TokenizedNotes:
        """The tokenized notes of examples; the versions of a note are those of all its codes, learned or not.

        Words are read from the word caches of the corpora.
        """
        if isinstance(tokenizer, WordTokenizer):
            encodings = examples.words(tokenizer.cleaning).encoded(tokenizer)
        else:
            texts = progress(examples.texts(), "reading", total=len(examples))
            encodings = list(tokenizer.token_ids(texts))
        codes = codes_in_labels(settings, labels, examples.codes)
        return TokenizedNotes(encodings, codes, labels.encode(codes), note_versions(examples.codes))

    @property
    def label_counts(self) -> np.ndarray:
        """The number of notes of each label (L,)."""
        return column_sums(self.gold).astype(np.int64)

    def subset(self, rows: np.ndarray) -> TokenizedNotes:
        """The notes at `rows`."""
        if np.array_equal(rows, np.arange(len(self.encodings))):
            return self  # of word nets the notes are not in memory
        encodings, codes = [self.encodings[int(row)] for row in rows], [self.codes[row] for row in rows]
        return TokenizedNotes(encodings, codes, self.gold[rows], self.versions[rows])


@dataclass(frozen=True)
class Targets:
    """What a net is trained to predict: the target of each label, and the targets that compete in a step.

    For most nets a target is a label. DualLAAT reads descriptions, and codes with the same description are one target,
    so that no code is a negative of another with the same description.
    """

    of_label: np.ndarray  # (L,) the target of each label
    pools: dict[int, np.ndarray]  # the targets of each ICD version, and of both
    sample_size: int  # targets per step; 0: all of the version

    @staticmethod
    def of(labels: LabelSpace, of_label: np.ndarray | None = None, sample_size: int = 0) -> Targets:
        """The targets of a label space by version; of_label: None for one target per label."""
        version = label_versions(labels)
        of_label = np.arange(len(labels)) if of_label is None else of_label
        pools = {v: np.unique(of_label[(version & v) > 0]) for v in (ICD9, ICD10, ICD9 | ICD10)}
        return Targets(of_label, pools, sample_size)


R = TypeVar("R", bound=NeuralRecipe)
M = TypeVar("M", bound=NeuralModel)


class NeuralTrainer(CalibratedTrainer[R, M], Generic[R, M]):
    """Trains a neural model with the training loop; a subclass builds the untrained model."""

    notes: TokenizedNotes  # the tokenized notes of the latest fit

    @abstractmethod
    def build_model(self, labels: LabelSpace, examples: Examples) -> tuple[M, Targets]:
        """An untrained model for these labels and notes, and what it is trained to predict."""

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The coder that is trained on train notes and tuned on dev notes; refit: then trained again on both."""
        trained = super().train(train_notes, dev_notes, refit)
        return replace(trained, report=trained.report | self._word_vector_report())

    def fit(self, train_notes: Examples, dev_notes: Examples) -> FittedModel[M]:
        """A model trained on train notes; the best epoch is chosen on dev notes."""
        model, targets, notes = self._build(train_notes)
        dev = TokenizedNotes.of(dev_notes, self.recipe.labels, model.tokenizer, model.labels)
        key = run_fingerprint(self.recipe, train_notes, dev_notes)
        fitted = fit_net(self.recipe, model, targets, notes, dev, self.folder, key)
        return score_dev(model, dev, asdict(fitted), fitted.best_epoch)

    def refit(self, notes: Examples, fitted: FittedModel[M]) -> M:
        """A model trained on all notes for as many epochs as were best.

        The learning-rate schedule stays that of the whole run: a schedule that ends at the best epoch gives a model
        that the tuned threshold does not fit.
        """
        model, targets, tokenized = self._build(notes)
        recipe = self.recipe.stop_after(fitted.choice)
        title = f"{recipe.kind}, on train and dev notes"
        fit_net(
            recipe, model, targets, tokenized, None, self.folder / REFIT, run_fingerprint(recipe, notes), title=title
        )
        return model

    def _word_vector_report(self) -> dict[str, Any]:
        """How the word vectors of the latest model were trained; empty without word vectors."""
        if not isinstance(self.recipe, WordRecipe):
            return {}
        settings = self.recipe.vectors.resolved(len(self.notes.encodings))
        is_reproducible = settings.workers == 1 or not settings.epochs
        used = {"epochs": settings.epochs, "workers": settings.workers, "reproducible": is_reproducible}
        return {"word_vectors": used}

    def _build(self, examples: Examples) -> tuple[M, Targets, TokenizedNotes]:
        """The untrained model, its targets, and the notes as it reads them."""
        labels = label_space(self.recipe.labels, examples.codes)
        model, targets = self.build_model(labels, examples)
        notes = TokenizedNotes.of(examples, self.recipe.labels, model.tokenizer, labels)
        model.train_counts = notes.label_counts
        model.precision = trained_precision(self.recipe.training.precision, default_device())
        self.notes = notes
        return model, targets, notes


def score_dev(model: M, dev: TokenizedNotes, report: dict[str, Any], choice: Any) -> FittedModel[M]:
    """A trained model with its logits on dev notes, each within its own ICD version."""
    with counting("scoring dev notes", total=len(dev.encodings)) as counter:
        logits = version_logits(model, dev, counter)
    report = report | {"shape": model.settings.model_dump()}
    return FittedModel(model, logits, dev.gold, dev.codes, report, choice=choice)


def version_logits(model: NeuralModel, notes: TokenizedNotes, counter: ProgressCounter) -> np.ndarray:
    """Logits (B, L) of notes, each for the codes of its own ICD version; `EXCLUDED_LOGIT` for all others."""

    def score(rows: np.ndarray, columns: np.ndarray) -> Iterator[np.ndarray]:
        blocks = ([notes.encodings[row] for row in block] for block in batched(rows.tolist(), model.block_size))
        return model.logit_blocks(blocks, None if len(columns) == len(model.labels) else columns.tolist())

    logits = np.full((len(notes.encodings), len(model.labels)), EXCLUDED_LOGIT, np.float32)
    return score_by_version(logits, notes.versions, label_versions(model.labels), score, counter)


@dataclass(frozen=True)
class LabelBatches:
    """The batches of tokenized notes and their targets. A note is identified by its row, 0 to N - 1."""

    notes: TokenizedNotes
    targets: Targets
    used: np.ndarray  # (N,) the notes that can be learned from
    lengths: np.ndarray  # (N,) tokens of each

    @staticmethod
    def of(notes: TokenizedNotes, targets: Targets, versions: np.ndarray) -> LabelBatches:
        """The batches of the notes; versions: ICD versions of the labels to learn."""
        lengths = np.array([len(encoding.ids) for encoding in notes.encodings])
        # A note coded in another ICD version is neither positive nor negative for the codes to learn.
        used = np.flatnonzero((lengths > 0) & ((notes.versions & np.bitwise_or.reduce(versions)) > 0))
        if not len(used):
            raise DataError(
                "nothing can be learned from the train notes: they have no word, or only codes of another ICD version"
            )
        return LabelBatches(notes, targets, used, lengths[used])

    @property
    def groups(self) -> np.ndarray:
        """The ICD version of each note (N,)."""
        return self.notes.versions[self.used]

    def prepare_step(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The targets of a step."""
        pool = self.targets.pools[int(self.notes.versions[self.used[rows[0]]])]
        return sample_labels(self._ids(rows)[0], pool, self.targets.sample_size or len(pool), rng)

    def make_batch(self, rows: np.ndarray, shared: np.ndarray) -> Batch:
        """The batch of some notes of a step; shared: the targets of the step."""
        notes = self.used[rows]
        tokens = pad_notes([self.notes.encodings[row].ids for row in notes])
        gold = torch.from_numpy(label_targets(shared, *self._ids(rows)))
        return Batch(*tokens, torch.from_numpy(shared.astype(np.int64)), gold, torch.from_numpy(notes))

    def _ids(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The targets of all notes, concatenated, and the bounds of each note."""
        some = self.notes.gold[self.used[rows]]
        return self.targets.of_label[some.indices], some.indptr


def fit_net(
    recipe: NeuralRecipe,
    model: NeuralModel,
    targets: Targets,
    notes: TokenizedNotes,
    dev: TokenizedNotes | None,
    folder: Path,
    run_fingerprint: str,
    *,
    parameter_groups: Sequence[ParameterGroup] = (),
    title: str = "",
) -> TrainingResult:
    """The result of training the net of the model on the notes; run_fingerprint: of recipe and notes."""
    batches = LabelBatches.of(notes, targets, label_versions(model.labels))
    validation = dev and dev.subset(validation_rows(len(dev.encodings), recipe.training.validation_notes, recipe.seed))
    fitted = fit(
        TrainingRun(
            model.net,
            recipe.training,
            lengths=batches.lengths,
            groups=batches.groups,
            make_batch=batches.make_batch,
            prepare_step=batches.prepare_step,
            validate=partial(_validate, model, validation) if validation else None,
            run_folder=folder,
            fingerprint=run_fingerprint,
            seed=recipe.seed,
            title=title or recipe.kind,
            parameter_groups=parameter_groups,
        )
    )
    model.weights_changed()
    return fitted


def _validate(model: NeuralModel, dev: TokenizedNotes, net: torch.nn.Module) -> dict[str, float]:
    """The values of `brief` and the loss on dev notes, each within its own version."""
    model.weights_changed()
    logits = version_logits(model, dev, ProgressCounter())
    probabilities = model.to_probabilities(logits)
    return brief(model.labels, dev.codes, probabilities) | {"dev_loss": mean_loss(logits, dev.gold)}


def mean_loss(logits: np.ndarray, gold: sparse.csr_matrix) -> float:
    """The mean binary cross-entropy of logits (B, L) and gold 0/1 (B, L), without cells of `EXCLUDED_LOGIT`."""
    total, cells = 0.0, 0
    for row, note in enumerate(logits):  # note by note: the cells of all notes may be many
        counted = note > EXCLUDED_LOGIT
        true = gold.indices[gold.indptr[row] : gold.indptr[row + 1]]
        total += float(np.logaddexp(0, note[counted], dtype=np.float64).sum() - note[true[counted[true]]].sum())
        cells += int(counted.sum())
    return total / max(1, cells)


def label_counts(labels: LabelSpace, examples: Examples) -> np.ndarray:
    """The number of notes that have each label (L,)."""
    return column_sums(labels.encode(examples.codes))


def label_rates(counts: np.ndarray, notes: int) -> torch.Tensor:
    """The share of the notes that have each label (L,)."""
    return torch.from_numpy(counts / max(1, notes)).float()
