"""The neural coders' way from notes to a model: words, vectors, batches, the loop, calibration, threshold."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from nosology.codes import table
from nosology.codes.lookup import label_description
from nosology.core import Code, ConfigError, DataError
from nosology.core.label_space import ICD9, ICD10, LabelSpace, label_versions, mask_other_versions, note_versions
from nosology.core.progress import progress
from nosology.encoders.tokenizers import TokenizedNote, Vocabulary, WordTokenizer
from nosology.encoders.word_vectors import train_word_vectors
from nosology.evaluation import brief
from nosology.evaluation.decision import Decision
from nosology.models.caml_laat.caml_laat_model import Caml, CamlNet, Laat, LaatNet, PlmIcd, PlmIcdNet, pretrained
from nosology.models.dual_laat.dual_laat_model import DualLaat
from nosology.models.dual_laat.dual_laat_net import DualLaatNet
from nosology.models.dual_laat.dual_laat_settings import DualLaatShape
from nosology.models.dual_laat.proposer import Proposer
from nosology.models.neural import EXCLUDED_LOGIT, NeuralModel, Reader
from nosology.text.tokens import words_of
from nosology.training.data_loader import Batch, pad_notes
from nosology.training.examples import (
    Examples,
    codes_in_labels,
    codes_in_systems,
    label_space,
    label_targets,
    sample_labels,
    union,
)
from nosology.training.recipe_settings import LabelSettings, Recipe, WordVectorSettings
from nosology.training.run_folder import REFIT, fingerprint
from nosology.training.trainer import ParameterGroup, TrainingResult, TrainingRun, fit

Trained = tuple[NeuralModel, Decision, dict[str, Any]]


@dataclass(frozen=True)
class Notes:
    """Notes read once: tokens, labels and version of each."""

    reads: list[TokenizedNote]
    codes: list[tuple[Code, ...]]  # of the systems to learn
    gold: sparse.csr_matrix  # (B, L) of 0/1
    versions: np.ndarray  # (B,)

    @staticmethod
    def of(examples: Examples, settings: LabelSettings, reader: Reader, labels: LabelSpace) -> Notes:
        """The notes of examples; a note's versions are those of all its codes, also of those that are not learned."""
        reads = [reader.tokenize(text) for text in progress(examples.texts(), "reading", total=len(examples))]
        codes = codes_in_labels(settings, labels, examples.codes)
        return Notes(reads, codes, labels.encode(codes), note_versions(examples.codes))

    def part(self, size: int, seed: int) -> Notes:
        """At most `size` of the notes, drawn by the seed."""
        if len(self.reads) <= size:
            return self
        rows = np.sort(np.random.default_rng(seed).choice(len(self.reads), size, replace=False))
        reads, codes = [self.reads[row] for row in rows], [self.codes[row] for row in rows]
        return Notes(reads, codes, self.gold[rows], self.versions[rows])


@dataclass(frozen=True)
class Asked:
    """What the loop is asked to learn: which questions there are, and which of them each label answers.

    For most nets a question is a label. DualLAAT asks by description, and codes that share one are one question: none
    of them is ever another's negative.
    """

    question: np.ndarray  # (L,) of each label
    pools: dict[int, np.ndarray]  # the questions of each version, and of both
    size: int  # questions of a step at most; 0: all of its version

    @staticmethod
    def of(labels: LabelSpace, question: np.ndarray, size: int) -> Asked:
        """The questions of a label space by version."""
        of = label_versions(labels)
        return Asked(question, {v: np.unique(question[(of & v) > 0]) for v in (ICD9, ICD10, ICD9 | ICD10)}, size)


def train_neural(recipe: Recipe, train_notes: Examples, dev_notes: Examples, refit: bool, folder: Path) -> Trained:
    """The coder of a recipe; `folder` keeps checkpoints and curves, from which a stopped run goes on."""
    model, asked, notes = _begun(recipe, train_notes)
    labels = model.labels
    dev = Notes.of(dev_notes, recipe.labels, model.reader, labels)
    fitted = fit_labels(recipe, model, asked, notes, dev, folder, fingerprint(recipe, train_notes, dev_notes))
    logits = mask_other_versions(model.logits_of(dev.reads), dev.versions, label_versions(labels), EXCLUDED_LOGIT)
    model = model.calibrated(logits, dev.gold)
    decision = Decision.tune(recipe.decision, labels, dev.codes, model.to_probabilities(logits))
    found = asdict(fitted) | {"dev_codes": int(dev.gold.nnz), "shape": model.shape.model_dump()}
    if refit:
        model, notes = _refitted(recipe, model, union(train_notes, dev_notes), fitted, folder)
    if isinstance(model, DualLaat) and recipe.two_stage.candidates:
        model.proposer = Proposer.fit([read.ids for read in notes.reads], notes.gold, _texts(model))
        model = model.two_stage(recipe.two_stage.candidates)
    return model, decision, found


def _begun(recipe: Recipe, examples: Examples) -> tuple[NeuralModel, Asked, Notes]:
    """The untrained model of a recipe for these notes, what it is asked, and the notes as it reads them."""
    labels = label_space(recipe.labels, codes_in_systems(recipe.labels, examples.codes))
    model, asked = STARTS[recipe.kind](recipe, labels, examples)
    notes = Notes.of(examples, recipe.labels, model.reader, labels)
    model.notes = np.asarray(notes.gold.sum(0)).ravel().astype(np.int64)
    return model, asked, notes


def _refitted(
    recipe: Recipe, tuned: NeuralModel, examples: Examples, fitted: TrainingResult, folder: Path
) -> tuple[NeuralModel, Notes]:
    """The model trained anew on more notes, for as many epochs as were best, with the tuned one's calibration."""
    model, asked, notes = _begun(recipe, examples)
    # At the pace of the whole schedule: one that ends at the best epoch leaves the model behind the tuned threshold.
    settings = recipe.training.model_copy(update={"stop_epoch": fitted.best_epoch})
    shorter = recipe.model_copy(update={"training": settings})
    told, title = fingerprint(shorter, examples), f"{recipe.kind}, once more with the tuning notes"
    fit_labels(shorter, model, asked, notes, None, folder / REFIT, told, title=title)
    model.calibration = tuned.calibration
    return model, notes


def _texts(model: DualLaat) -> np.ndarray:
    return model.description_ids(model.descriptions).numpy()


def fit_labels(
    recipe: Recipe,
    model: NeuralModel,
    asked: Asked,
    notes: Notes,
    dev: Notes | None,
    folder: Path,
    told: str,
    *,
    parameter_groups: Sequence[ParameterGroup] = (),
    title: str = "",
) -> TrainingResult:
    """How the training of the model's net on the notes went; told: the fingerprint of what is trained."""
    lengths = np.array([len(read.ids) for read in notes.reads])
    # A note that is coded in another version than the codes to learn says nothing about them.
    used = np.flatnonzero((lengths > 0) & ((notes.versions & np.bitwise_or.reduce(label_versions(model.labels))) > 0))
    if not len(used):
        raise DataError("the training notes have no word: nothing can be learned from them")

    def ids(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The questions of all notes one after the other, and where each note's begin and end."""
        some = notes.gold[used[rows]]
        return asked.question[some.indices], some.indptr

    def prepare(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        pool = asked.pools[int(notes.versions[used[rows[0]]])]
        return sample_labels(ids(rows)[0], pool, asked.size or len(pool), rng)

    def make_batch(rows: np.ndarray, shared: np.ndarray) -> Batch:
        tokens = pad_notes([notes.reads[row].ids for row in used[rows]])
        targets = torch.from_numpy(label_targets(shared, *ids(rows)))
        return Batch(*tokens, torch.from_numpy(shared.astype(np.int64)), targets, torch.from_numpy(used[rows]))

    looked_at = dev and dev.part(recipe.training.validation_notes, recipe.seed)
    fitted = fit(
        TrainingRun(
            model.net,
            recipe.training,
            lengths=lengths[used],
            groups=notes.versions[used],
            make_batch=make_batch,
            prepare_step=prepare,
            validate=partial(_validate, model, looked_at) if looked_at else None,
            run_folder=folder,
            fingerprint=told,
            seed=recipe.seed,
            title=title or recipe.kind,
            parameter_groups=parameter_groups,
        )
    )
    if isinstance(model, DualLaat):
        model.forget()  # descriptions as the last epoch's weights read them
    return fitted


def _validate(model: NeuralModel, dev: Notes, net: torch.nn.Module) -> dict[str, float]:
    """Micro F1 at its best threshold and mean average precision on dev notes, each within its own version."""
    if isinstance(model, DualLaat):
        model.forget()
    probabilities = model.to_probabilities(model.logits_of(dev.reads))
    mask_other_versions(probabilities, dev.versions, label_versions(model.labels))
    return brief(model.labels, dev.codes, probabilities)


def _words(recipe: Recipe, labels: LabelSpace, examples: Examples) -> tuple[WordTokenizer, torch.Tensor]:
    """The reader of word models and their first word vectors (V, E), from the examples alone.

    Every word of the code tables is in the vocabulary, so that a code never seen is read in its own words.
    """
    settings: WordVectorSettings = recipe.vectors.resolved(len(examples))
    described = set(chain.from_iterable(map(words_of, map(label_description, labels.codes))))
    if recipe.kind == "dual_laat":
        described.update(string.digits)  # of numbers that no table has
        for system in labels.systems:
            described.update(chain.from_iterable(map(words_of, table(system).descriptions())))
    texts = progress(examples.texts(), "counting words", total=len(examples))
    vocabulary = Vocabulary.build(texts, settings.min_notes, extra_words=described)
    vectors = train_word_vectors(
        lambda: progress(examples.texts(), "word vectors", total=len(examples)),
        vocabulary,
        size=settings.size,
        epochs=settings.epochs,
        max_words=settings.max_words,
        seed=recipe.seed,
        workers=settings.workers,
    )
    return WordTokenizer(vocabulary, settings.max_words), torch.from_numpy(vectors)


def _start_dual_laat(recipe: Recipe, labels: LabelSpace, examples: Examples) -> tuple[NeuralModel, Asked]:
    if recipe.model.reference_padding:
        raise ConfigError("model.reference_padding is for weights that were trained so elsewhere (nosology import)")
    reader, vectors = _words(recipe, labels, examples)
    shape: DualLaatShape = recipe.model.resolved(len(examples))
    torch.manual_seed(recipe.seed)  # of the net's first weights
    net = DualLaatNet(shape, len(reader.vocabulary), recipe.vectors.size, vectors)
    descriptions = [label_description(code) for code in labels.codes]
    model = DualLaat(labels, np.zeros(len(labels), np.int64), reader, net, shape, descriptions=descriptions)
    texts, question = np.unique(_texts(model), axis=0, return_inverse=True)
    net.descriptions = torch.from_numpy(texts)
    asked = Asked.of(labels, question.ravel(), shape.labels)
    true = labels.encode(examples.codes).nnz / max(1, len(examples))
    most = min(shape.labels, max(map(len, asked.pools.values())))
    net.expect(min(max(true / most, 1e-6), 0.5))
    return model, asked


def _start_words(
    net: type[CamlNet | LaatNet], kind: type[Caml | Laat], recipe: Recipe, labels: LabelSpace, examples: Examples
) -> tuple[NeuralModel, Asked]:
    reader, vectors = _words(recipe, labels, examples)
    shape = recipe.model.resolved(len(examples))
    torch.manual_seed(recipe.seed)  # of the net's first weights
    made = net(shape, len(reader.vocabulary), recipe.vectors.size, len(labels), vectors, _rates(labels, examples))
    model = kind(labels, np.zeros(len(labels), np.int64), reader, made, shape)
    return model, Asked.of(labels, np.arange(len(labels)), 0)


def _rates(labels: LabelSpace, examples: Examples) -> torch.Tensor:
    """The share of the notes that have each label (L,)."""
    counts = np.asarray(labels.encode(examples.codes).sum(0)).ravel()
    return torch.from_numpy(counts / max(1, len(examples))).float()


def _start_plm_icd(recipe: Recipe, labels: LabelSpace, examples: Examples) -> tuple[NeuralModel, Asked]:
    torch.manual_seed(recipe.seed)  # of the net's first weights
    reader, encoder = pretrained(recipe.model)
    net = PlmIcdNet(recipe.model, encoder, len(labels), _rates(labels, examples))
    model = PlmIcd(labels, np.zeros(len(labels), np.int64), reader, net, recipe.model)
    return model, Asked.of(labels, np.arange(len(labels)), 0)


STARTS: dict[str, Callable[[Any, LabelSpace, Examples], tuple[NeuralModel, Asked]]] = {
    "caml": partial(_start_words, CamlNet, Caml),
    "laat": partial(_start_words, LaatNet, Laat),
    "plm_icd": _start_plm_icd,
    "dual_laat": _start_dual_laat,
}
