"""Training of the stacked coder: first its parts, then the stacker on notes that no part has seen.

A part looks better on notes that it was trained on, or on which its epochs and thresholds were chosen, than on new
notes. The stacker would trust it too much. So it learns from other notes: from a share of many dev notes, the rest of
which tunes the parts, or, with few dev notes, from folds of the train notes. For each fold the parts are trained
without it. The threshold is tuned on probabilities of stackers that were fitted without the note, for all codes that
the coder serves: also those that no part ranks among its candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nosology.core import BundleError, Code, DataError, NosologyError, Note
from nosology.core.files import json_sha256
from nosology.core.label_space import LabelSpace, label_versions, note_versions
from nosology.core.parallel import batched
from nosology.core.progress import activity, print_progress, progress
from nosology.corpora.corpus import WORDS
from nosology.corpora.group_splits import group_folds, group_names, sample_groups
from nosology.evaluation.decision import Decision
from nosology.models.bundle import Bundle
from nosology.models.registry import load_class
from nosology.models.stacked.candidate_cells import PartScorer, fill_scores
from nosology.models.stacked.stacked_model import BATCH, Stacked
from nosology.models.stacked.stacked_settings import StackedRecipe
from nosology.models.stacked.stacker import Stacker
from nosology.models.train import CoderTrainer, TrainedCoder, software
from nosology.training.examples import Examples, codes_in_systems, union
from nosology.training.recipe_settings import Recipe
from nosology.training.run_folder import run_fingerprint

_THRESHOLD_FOLDS = 5  # of the stacker's notes, for the threshold
_FINISHED = "bundle"  # subfolder of a part's run folder with the trained part
_INPUTS = ("backward_weights", "corpora", "encoder", "model", "weights", "words")  # settings that may name files
_INSTALLED = "minilm"  # an encoder or embedder that is read from its package, whatever the current folder has
_KEY = "run"  # in the provenance of a part: a hash of its recipe and its notes

Parts = dict[str, Bundle]
GroupOf = Callable[[Note], str]  # the group of a note: notes of a group are never on both sides of a division


@dataclass(frozen=True)
class HeldOutCells:
    """The cells of notes that no part has seen."""

    features: np.ndarray  # (N, F)
    rows: np.ndarray  # (N,) note of each cell
    codes: list[Code]  # of each cell
    counted: np.ndarray  # (N,) bool: codes of other ICD versions than those of the note are unknown
    gold: list[tuple[Code, ...]]  # of each note
    versions: np.ndarray  # of each note, as bits
    groups: list[str]  # of each note: a patient, and notes that repeat each other
    means: list[tuple[tuple[Code, ...], np.ndarray]]  # of the next b notes: codes, mean probabilities (b, codes)

    @property
    def labels(self) -> LabelSpace:
        """All codes with a probability."""
        return LabelSpace(sorted({code for codes, _ in self.means for code in codes}))

    def probabilities(self, labels: LabelSpace, stacked: np.ndarray) -> np.ndarray:
        """The probabilities (B, L) that the coder serves; 0 for codes that are unknown. stacked: of the cells (N,)."""
        scores, start = np.zeros((len(self.gold), len(labels)), dtype=np.float32), 0
        for codes, block in self.means:
            scores[start : start + len(block), [labels.column(code) for code in codes]] = block
            start += len(block)
        fill_scores(scores, self.rows, np.array([labels.column(code) for code in self.codes], dtype=np.int64), stacked)
        scores[(self.versions[:, None] & label_versions(labels)) == 0] = 0
        return scores

    @property
    def target(self) -> np.ndarray:
        """Whether each cell is true (N,)."""
        true = [set(codes) for codes in self.gold]
        return np.array([code in true[row] for row, code in zip(self.rows.tolist(), self.codes)], dtype=bool)

    @staticmethod
    def joined(pieces: list[HeldOutCells]) -> HeldOutCells:
        """The cells of all pieces."""
        first = np.cumsum([0, *(len(piece.gold) for piece in pieces)])
        return HeldOutCells(
            np.concatenate([piece.features for piece in pieces]),
            np.concatenate([piece.rows + start for piece, start in zip(pieces, first)]),
            [code for piece in pieces for code in piece.codes],
            np.concatenate([piece.counted for piece in pieces]),
            [codes for piece in pieces for codes in piece.gold],
            np.concatenate([piece.versions for piece in pieces]),
            [group for piece in pieces for group in piece.groups],
            [block for piece in pieces for block in piece.means],
        )


class StackedTrainer(CoderTrainer[StackedRecipe]):
    """Trains the parts one after the other, and a stacker on held-out notes."""

    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The stacked coder; refit: then its parts are trained again on both."""
        group = _group_of(union(train_notes, dev_notes))
        new_notes = _new_groups(dev_notes, train_notes, group)
        if len(new_notes) >= self.recipe.stacking.min_notes and _count_groups(new_notes, group) > 1:
            parts, cells = self._hold_out(train_notes, dev_notes, new_notes, group, refit)
            stacked_on = "dev notes on which no part was tuned"
        else:
            if _count_groups(train_notes, group) < 2:  # one fold would leave nothing to train on
                group = _group_of(train_notes)
            cells = self._cross_fit(train_notes, dev_notes, group)
            parts = self._train_parts(train_notes, dev_notes, refit)
            stacked_on = f"{self.recipe.stacking.folds} held-out folds of the train notes"
        target = cells.target
        if not target.any():
            raise DataError("no part finds a true code of the held-out notes: there is nothing to stack")
        with activity("fitting the stacker"):
            counted = cells.counted
            stacker = Stacker.fit(cells.features[counted], target[counted], self.recipe.stacking, self.recipe.seed)
            decision = self._decision(cells, target)
        report = {
            "stacked_on": stacked_on,
            "stacked_notes": len(cells.gold),
            "cells": int(counted.sum()),
            "true_cells": int(target.sum()),
            "parts": {name: part.provenance["found"] for name, part in parts.items()},
        }
        model = Stacked(parts, stacker, self.recipe.stacking.candidates)
        return TrainedCoder(model, decision, report)

    def _hold_out(
        self, train_notes: Examples, dev_notes: Examples, new_notes: Examples, group: GroupOf, refit: bool
    ) -> tuple[Parts, HeldOutCells]:
        """The parts, tuned on some dev notes, and the cells of the others, whose groups have no train note."""
        sizes = Counter(group(note) for note in new_notes.notes())
        tuning = set(sample_groups(sizes, self.recipe.stacking.tuning_share, self.recipe.seed))
        held_out, tuning_notes = _split(dev_notes, group, sizes.keys() - tuning)
        parts = self._train_parts(train_notes, tuning_notes, False)
        cells = self._cells(parts, held_out, group)
        if refit:
            parts = self._train_parts(train_notes, dev_notes, True, "refit")
        return parts, cells

    def _cross_fit(self, train_notes: Examples, dev_notes: Examples, group: GroupOf) -> HeldOutCells:
        """The cells of the train notes, scored by parts that were trained without the fold of the note."""
        names = [group(note) for note in train_notes.notes()]
        folds = min(self.recipe.stacking.folds, len(set(names)))
        fold_of = dict(zip(names, group_folds(names, folds, self.recipe.seed).tolist()))
        pieces = []
        for fold in range(folds):
            held_out, rest = _split(
                train_notes, group, {name for name, its_fold in fold_of.items() if its_fold == fold}
            )
            parts = self._train_parts(rest, dev_notes, False, f"fold_{fold}")
            pieces.append(self._cells(parts, held_out, group))
        return HeldOutCells.joined(pieces)

    def _train_parts(self, train_notes: Examples, dev_notes: Examples, refit: bool, stage: str = "") -> Parts:
        """The trained parts; stage: subfolder for their checkpoints. A resumed run reads the parts it has finished."""
        parts = {}
        for name, recipe in self.recipe.part_recipes().items():
            title = " ".join(["training the part", name, *([f"({stage})"] if stage else [])])
            with activity(title, spinner=False):
                folder = self.folder / f"part_{name}" / stage
                parts[name] = _train_part(recipe, folder, train_notes, dev_notes, refit, title)
        return parts

    def _cells(self, parts: Parts, examples: Examples, group: GroupOf) -> HeldOutCells:
        """The cells of notes, and the mean probabilities of all codes."""
        scorer = PartScorer(list(parts.values()), self.recipe.stacking.candidates)
        versions, versions_of_labels = note_versions(examples.codes), label_versions(scorer.labels)
        pieces, groups, means, start = [], [], [], 0
        for notes in batched(progress(examples.notes(), "scoring held-out notes", total=len(examples)), BATCH):
            of_parts = scorer.probabilities(notes)
            cells, block = scorer.cells(of_parts), scorer.means(of_parts)
            pieces.append((cells.features, cells.rows + start, cells.labels))
            found = np.union1d(np.flatnonzero(block.any(0)), cells.labels)  # of a lexicon, most codes are in no note
            means.append((tuple(scorer.labels.codes[label] for label in found), block[:, found]))
            groups += [group(note) for note in notes]
            start += len(notes)
        features, rows, labels = (np.concatenate(arrays) for arrays in zip(*pieces))
        codes = [scorer.labels.codes[label] for label in labels.tolist()]
        counted = (versions[rows] & versions_of_labels[labels]) > 0
        gold = codes_in_systems(self.recipe.labels, examples.codes)
        return HeldOutCells(features, rows, codes, counted, gold, versions, groups, means)

    def _decision(self, cells: HeldOutCells, target: np.ndarray) -> Decision:
        """The decision, tuned on probabilities of stackers that were fitted without the note."""
        fold = group_folds(cells.groups, _THRESHOLD_FOLDS, self.recipe.seed)[cells.rows]
        probabilities = np.zeros(len(target), dtype=np.float32)
        for number in np.unique(fold):
            test = fold == number
            fitted = (~test if not test.all() else test) & cells.counted
            stacker = Stacker.fit(cells.features[fitted], target[fitted], self.recipe.stacking, self.recipe.seed)
            probabilities[test] = stacker.probabilities(cells.features[test])
        labels = cells.labels
        return Decision.tune(self.recipe.decision, labels, cells.gold, cells.probabilities(labels, probabilities))


def _train_part(
    recipe: Recipe, folder: Path, train_notes: Examples, dev_notes: Examples, refit: bool, title: str
) -> Bundle:
    """The trained part, or that of a stopped run with the same recipe and notes; folder: for checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = recipe.model_dump(mode="json")
    key = json_sha256([run_fingerprint(recipe, train_notes, dev_notes), settings, _input_files(settings), refit])
    with suppress(BundleError):
        finished = Bundle.load(folder / _FINISHED)
        if finished.provenance.get(_KEY) == key:
            print_progress(f"{title}: finished before")
            return finished
    print_progress(title)
    try:
        trained = load_class(recipe.kind, "trainer")(recipe, folder).train(train_notes, dev_notes, refit)
    except NosologyError as error:
        raise type(error)(f"{title}: {error}") from error
    about: dict[str, Any] = {"found": trained.report, "seed": recipe.seed, _KEY: key} | software()
    part = Bundle(trained.model, trained.decision, recipe.model_dump(mode="json"), about)
    part.save(folder / _FINISHED)
    return part


def _input_files(settings: dict[str, Any]) -> list[list[Any]]:
    """Path, size and time of each file that is named by a setting, or is in a folder that is; no word caches."""
    found = []
    for name, value in settings.items():
        if isinstance(value, dict):
            found += _input_files(value)
            continue
        values = value if isinstance(value, list) else [value]
        names = [item for item in values if item and isinstance(item, str) and item != _INSTALLED]
        for path in map(Path, names) if name in _INPUTS else ():
            files = [path] if path.is_file() else sorted(path.rglob("*"))
            inside = [file for file in files if file.is_file() and WORDS not in file.relative_to(path).parts]
            found += [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in inside]
    return found


def _new_groups(notes: Examples, train_notes: Examples, group: GroupOf) -> Examples:
    """The notes whose group has no train note."""
    known = {group(note) for note in train_notes.notes()}
    new_notes = Examples(notes.corpora, lambda note: notes.keep(note) and group(note) not in known)
    if repeated := len(notes) - len(new_notes):
        print_progress(
            f"{repeated:,} of {len(notes):,} dev notes are of a patient with train notes, or repeat one: the stacker "
            "does not learn from them"
        )
    return new_notes


def _count_groups(notes: Examples, group: GroupOf) -> int:
    return len({group(note) for note in notes.notes()})


def _group_of(examples: Examples) -> GroupOf:
    """The group of a note: its patient with all near-duplicates; its patient or its id if all notes are one group."""
    duplicates = group_names(progress(examples.notes(), "looking for repeated notes", total=len(examples)))

    def patient(note: Note) -> str:
        return note.patient or note.id

    def with_duplicates(note: Note) -> str:
        return duplicates[patient(note)]

    for key in (with_duplicates, patient):
        if len({key(note) for note in examples.notes()}) > 1:
            return key
    print_progress("all notes are of one patient: single notes are held out, and scores look better than on others")
    return lambda note: note.id


def _split(examples: Examples, group: GroupOf, chosen: set[str]) -> tuple[Examples, Examples]:
    """The notes of the chosen groups, and the others."""
    return (
        Examples(examples.corpora, lambda note: examples.keep(note) and group(note) in chosen),
        Examples(examples.corpora, lambda note: examples.keep(note) and group(note) not in chosen),
    )
