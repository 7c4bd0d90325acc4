"""Training of the support model on coded notes with planted errors.

The suggestions for the notes come from coders that have not seen them, and the statistics of bills from the notes of
the other folds. Each note is used untouched and with planted errors of each kind. Thresholds are chosen on
probabilities of classifiers that have not seen the note.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nosology.audit.bill_statistics import BillStatistics
from nosology.audit.planted_errors import PlantedBill, plant
from nosology.audit.support_features import MAX_SUGGESTIONS, NoteFeatures, note_keys
from nosology.audit.support_model import CLASSIFIERS, SupportModel, candidates, coder_fingerprint
from nosology.core import ConfigError, DataError, Note, Suggestion
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.models.bundle import Bundle
from nosology.models.lexicon.cross_validation import note_folds
from nosology.models.lexicon.held_out import held_out_suggestions
from nosology.models.lexicon.lexicon_settings import LexiconRecipe
from nosology.models.stacked.stacked_settings import StackingSettings
from nosology.models.stacked.stacker import Stacker
from nosology.serving.coder import Coder

BILLS = {"untouched": 1, "dropped": 3, "sibling": 1, "foreign": 2}
"""Kinds of planted errors, and the bills with each per note."""
_FOLDS = 5  # of notes that the coder was not trained on
FALSE_ALARMS = {"unsupported": 0.05, "other_code": 0.03}
"""The largest share of right codes for which a classifier of billed codes may raise a false alarm."""
_SETTINGS = StackingSettings(rounds=120, leaves=10)


@dataclass(frozen=True)
class Rows:
    """Features (N, F) of codes, and of each the fold of its note, the kind of its bill, and whether it is planted."""

    features: np.ndarray
    fold: np.ndarray
    kind: np.ndarray
    planted: np.ndarray


@dataclass(frozen=True)
class PlantedRows:
    """Rows of billed codes and of codes that may be missing; errors: the number of planted errors by kind."""

    billed: Rows
    missing: Rows
    errors: dict[str, int]


def planted_rows(
    notes: Sequence[Note], suggestions: Sequence[Sequence[Suggestion]], folds: np.ndarray, seed: int = 0
) -> PlantedRows:
    """The rows of all bills of the notes with at least two ICD-10-CM codes; folds: of each note."""
    gold = [_diagnoses(note) for note in notes]
    used = [number for number, codes in enumerate(gold) if len(codes) > 1]
    if len(set(folds[used].tolist())) < 2:
        raise DataError("the support model needs coded notes with two ICD-10-CM codes in two folds at least")
    keys = [set(note_keys(note.text)) for note in notes]
    outside = {
        fold: BillStatistics.count((gold[i], keys[i]) for i in range(len(notes)) if folds[i] != fold)
        for fold in np.unique(folds).tolist()
    }
    parts: dict[str, list[tuple[np.ndarray, int, str, np.ndarray]]] = {"billed": [], "missing": []}
    errors = dict.fromkeys(BILLS, 0)
    # The statistics know the codes of the other folds: a foreign code must be as new to them as a right one.
    same_fold = {fold: [i for i in used if folds[i] == fold] for fold in outside}
    for number in progress(used, "planting errors", unit="notes"):
        fold = int(folds[number])
        features = NoteFeatures(notes[number].text, suggestions[number], outside[fold])
        for kind, repeat in ((kind, repeat) for kind, count in BILLS.items() for repeat in range(count)):
            chance = random.Random(f"{seed} {number} {kind} {repeat}")
            other = chance.choice(same_fold[fold])
            bill = plant(kind, gold[number], gold[other], chance)
            errors[kind] += len(bill.planted)
            for name, codes in (("billed", bill.codes), ("missing", candidates(features, bill.codes))):
                parts[name].append((features.rows(codes, bill.codes), fold, kind, _is_planted(codes, bill, kind, name)))
    return PlantedRows(_rows(parts["billed"]), _rows(parts["missing"]), errors)


def _diagnoses(note: Note) -> list[str]:
    """The ICD-10-CM codes of a note, each once."""
    return list(dict.fromkeys(code.code for code in note.codes if code.system == "icd10cm"))


def _is_planted(codes: Sequence[str], bill: PlantedBill, kind: str, name: str) -> np.ndarray:
    counts = (kind == "dropped") == (name == "missing")
    return np.array([counts and code in bill.planted for code in codes], dtype=bool)


def _rows(parts: Sequence[tuple[np.ndarray, int, str, np.ndarray]]) -> Rows:
    sizes = [len(part[0]) for part in parts]
    return Rows(
        np.concatenate([part[0] for part in parts]),
        np.repeat([part[1] for part in parts], sizes),
        np.repeat([part[2] for part in parts], sizes),
        np.concatenate([part[3] for part in parts]),
    )


def fit_support_model(
    notes: Sequence[Note], suggestions: Sequence[Sequence[Suggestion]], folds: np.ndarray, coder: str, seed: int = 0
) -> SupportModel:
    """The support model of notes; suggestions: of coders that have not seen the note. coder: its fingerprint."""
    rows = planted_rows(notes, suggestions, folds, seed)
    classifiers, thresholds = {}, {}
    for name, kind in CLASSIFIERS.items():
        part = rows.missing if kind == "dropped" else rows.billed
        used = np.isin(part.kind, [kind, "untouched"] if name in FALSE_ALARMS else [kind])
        features, fold, planted = part.features[used], part.fold[used], part.planted[used]
        classifiers[name] = Stacker.fit(features, planted, _SETTINGS, seed)
        held_out = np.zeros(len(planted))
        for number in np.unique(fold):
            inside = fold == number
            fitted = Stacker.fit(features[~inside], planted[~inside], _SETTINGS, seed)
            held_out[inside] = fitted.probabilities(features[inside])
        kinds = part.kind[used]
        thresholds[name] = best_threshold(held_out[kinds == kind], planted[kinds == kind], rows.errors[kind])
        if name in FALSE_ALARMS:
            limit = float(np.quantile(held_out[kinds == "untouched"], 1 - FALSE_ALARMS[name]))
            thresholds[name] = max(thresholds[name], limit)
    statistics = BillStatistics.count((_diagnoses(note), set(note_keys(note.text))) for note in notes)
    return SupportModel(statistics, classifiers, thresholds, coder)


def fit_auditor(coder: str | Path, corpus: Corpus, seed: int = 0) -> SupportModel:
    """The support model of a coder, fitted on the train notes of a corpus, or on all notes of one without splits.

    coder: a bundle folder or day-one. If it was trained on this corpus it must be a lexicon, which knows how to score
    its train notes by what it learns from the others.
    """
    bundle = Bundle.load(coder)
    notes = list(corpus.notes("train" if "train" in corpus.manifest["counts"]["splits"] else None))
    if corpus.hash not in {it["hash"] for it in bundle.provenance["corpora"]}:
        loaded = Coder.for_claims(coder, systems=["icd10cm"])
        shown = progress(notes, "coding notes", total=len(notes), unit="notes")
        suggestions, folds = list(loaded.code_all(shown, MAX_SUGGESTIONS)), note_folds(notes, _FOLDS, seed)
    elif bundle.model.kind == "lexicon":
        recipe = LexiconRecipe.model_validate(bundle.recipe)
        suggestions = held_out_suggestions(recipe, notes, bundle.decision.threshold)
        notes, folds = notes[: len(suggestions)], note_folds(notes, recipe.learn.folds, recipe.seed)
    else:
        raise ConfigError(f"a coder of kind {bundle.model.kind} needs a corpus that it was not trained on")
    return fit_support_model(notes, suggestions, folds[: len(notes)], coder_fingerprint(coder), seed)


def best_threshold(probabilities: np.ndarray, target: np.ndarray, errors: int) -> float:
    """The threshold with the highest F1; errors: all planted ones, also those without a row."""
    order = np.argsort(-probabilities, kind="stable")
    found = np.cumsum(target[order])
    f1 = 2 * found / (np.arange(1, len(order) + 1) + max(1, errors))
    return float(probabilities[order[int(np.argmax(f1))]]) if len(order) else 1.0
