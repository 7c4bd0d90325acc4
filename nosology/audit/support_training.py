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

from nosology.audit.bill_context import context_rows
from nosology.audit.bill_statistics import BillStatistics
from nosology.audit.description_similarity import DescriptionSimilarity
from nosology.audit.mentioned_codes import MentionedCodes
from nosology.audit.planted_errors import PlantedBill, plant_errors
from nosology.audit.support_features import MAX_SUGGESTIONS, NoteFeatures, note_keys
from nosology.audit.support_model import CLASSIFIERS, FIRST, SupportModel, candidates, coder_fingerprint
from nosology.claims.draft import Draft
from nosology.claims.encounter import Encounter
from nosology.core import ConfigError, DataError, Note, Span, Suggestion
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.corpora.seen_notes import count_seen
from nosology.models.bundle import Bundle
from nosology.models.lexicon.cross_validation import note_folds
from nosology.models.lexicon.held_out import held_out_suggestions
from nosology.models.lexicon.lexicon_settings import LexiconRecipe
from nosology.models.stacked.stacked_settings import StackingSettings
from nosology.models.stacked.stacker import Stacker
from nosology.serving.coder import Coder

BILLS = {"untouched": 1, "dropped": 3, "sibling": 1, "foreign": 2}
"""Kinds of planted errors, and the bills with each per note."""
MIN_NOTES = 30
"""The fewest notes to fit on: with fewer, thresholds depend on a few planted errors."""
_FOLDS = 5  # of notes that the coder was not trained on
PRECISION = {"unsupported": 0.8, "not_billed": 0.6}
"""The precision of findings on held-out bills with planted errors that thresholds are chosen for."""
FALSE_ALARMS = {"unsupported": 0.07, "other_code": 0.03}
"""The largest share of right codes for which a classifier may raise a false alarm."""
_KEPT_F1 = 0.9  # of the best F1 that a threshold for a precision must have: else it finds hardly anything
_USUAL_NOTES, _USUAL_CODES = 200, 20  # notes, and suggestions of each, from which usual cosines are learned
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
    """Rows of billed codes and of codes that may be missing; errors: the number of planted errors by kind.

    affinities: of the codes of each bill, (N, N), in the order of the rows of billed codes.
    """

    billed: Rows
    missing: Rows
    errors: dict[str, int]
    affinities: list[np.ndarray]

    def context(self, first: np.ndarray) -> np.ndarray:
        """The features of bill_context; first: (N,) of the billed codes."""
        ends = np.cumsum([len(of_bill) for of_bill in self.affinities])[:-1]
        return np.concatenate([context_rows(*bill) for bill in zip(np.split(first, ends), self.affinities)])


def planted_rows(
    notes: Sequence[Note],
    suggestions: Sequence[Sequence[Suggestion]],
    folds: np.ndarray,
    seed: int = 0,
    similarity: DescriptionSimilarity | None = None,
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
    errors, affinities = dict.fromkeys(BILLS, 0), []
    # The statistics know the codes of the other folds: a foreign code must be as new to them as a right one.
    same_fold = {fold: [i for i in used if folds[i] == fold] for fold in outside}
    for number in progress(used, "planting errors", unit="notes"):
        fold = int(folds[number])
        features = NoteFeatures(notes[number].text, suggestions[number], outside[fold], similarity)
        for kind, repeat in ((kind, repeat) for kind, count in BILLS.items() for repeat in range(count)):
            chance = random.Random(f"{seed} {number} {kind} {repeat}")
            other = chance.choice(same_fold[fold])
            bill = plant_errors(kind, gold[number], gold[other], chance)
            errors[kind] += len(bill.planted)
            affinities.append(outside[fold].affinities(bill.codes))
            for name, codes in (("billed", bill.codes), ("missing", candidates(features, bill.codes))):
                parts[name].append((features.rows(codes, bill.codes), fold, kind, _is_planted(codes, bill, kind, name)))
    return PlantedRows(_rows(parts["billed"]), _rows(parts["missing"]), errors, affinities)


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
    notes: Sequence[Note],
    suggestions: Sequence[Sequence[Suggestion]],
    folds: np.ndarray,
    coder: str,
    seed: int = 0,
    embedder: str = "",
) -> SupportModel:
    """The support model of notes; suggestions: of coders that have not seen the note. coder: its fingerprint."""
    similarity = _fit_similarity(embedder, notes, suggestions) if embedder else None
    rows = planted_rows(notes, suggestions, folds, seed, similarity)
    if lacking := [kind for kind in CLASSIFIERS.values() if not rows.errors[kind]]:
        raise DataError(
            f"no errors of kind {', '.join(lacking)} can be planted: the notes have too few different codes"
        )
    classifiers, thresholds, probabilities = {}, {}, {}
    classifiers[FIRST], first = _fit(rows.billed, rows.billed.features, ("foreign", "untouched"), seed)
    in_context = np.hstack([rows.billed.features, rows.context(first)])
    for name, kind in CLASSIFIERS.items():
        part = rows.missing if kind == "dropped" else rows.billed
        features = in_context if kind == "foreign" else part.features
        kinds = (kind,) if kind == "dropped" else (kind, "untouched")
        classifiers[name], held_out = _fit(part, features, kinds, seed)
        planted = part.kind == kind
        thresholds[name] = best_threshold(
            held_out[planted], part.planted[planted], rows.errors[kind], PRECISION.get(name, 0.0)
        )
        if name in FALSE_ALARMS:
            limit = np.quantile(held_out[part.kind == "untouched"], 1 - FALSE_ALARMS[name])
            thresholds[name] = max(thresholds[name], float(np.nextafter(limit, np.inf)))  # ties are no findings
        probabilities[name] = held_out
    measured = _measure(rows, probabilities, thresholds)
    measured["untouched"]["denied_or_over"] = round(_denied_share(notes, suggestions), 3)
    statistics = BillStatistics.count((_diagnoses(note), set(note_keys(note.text))) for note in notes)
    return SupportModel(statistics, classifiers, thresholds, coder, similarity, measured)


def _measure(
    rows: PlantedRows, probabilities: dict[str, np.ndarray], thresholds: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Recall and precision by kind of planted error, and false alarms; probabilities: (N,) held-out ones by finding."""
    is_found = {name: of_name >= thresholds[name] for name, of_name in probabilities.items()}
    untouched = rows.billed.kind == "untouched"
    alarms = (is_found["unsupported"] | is_found["other_code"])[untouched]
    measured = {"untouched": {"codes": len(alarms), "false_alarms": round(float(alarms.mean()), 3)}}
    for name, kind in CLASSIFIERS.items():
        part = rows.missing if kind == "dropped" else rows.billed
        findings = is_found[name] & (part.kind == kind)
        found, errors = int(part.planted[findings].sum()), rows.errors[kind]
        shares = found / max(1, errors), found / max(1, int(findings.sum()))
        measured[kind] = {"planted": errors, "recall": round(shares[0], 3), "precision": round(shares[1], 3)}
    return measured


def _denied_share(notes: Sequence[Note], suggestions: Sequence[Sequence[Suggestion]]) -> float:
    """The share of the codes of notes that the notes deny or call over wherever they name them."""
    codes = denied = 0
    shown = progress(list(zip(notes, suggestions))[:_USUAL_NOTES], "reading denied mentions", unit="notes")
    for note, of_note in shown:
        mentions = MentionedCodes(Draft(note.text, Encounter.of(note.text, {}), of_note))
        found = {it.code: [Span(part.start, part.end) for part in it.evidence] for it in of_note}
        names = _diagnoses(note)
        codes += len(names)
        denied += sum(bool(mentions.denied_or_over(name, found.get(name, ()))) for name in names)
    return denied / max(1, codes)


def _fit_similarity(
    embedder: str, notes: Sequence[Note], suggestions: Sequence[Sequence[Suggestion]]
) -> DescriptionSimilarity:
    """The similarity with the usual cosines of the codes and the first suggestions of some notes."""
    codes = [code for note in notes for code in _diagnoses(note)]
    codes += [it.code for of_note in suggestions[:_USUAL_NOTES] for it in of_note[:_USUAL_CODES]]
    shown = progress(notes[:_USUAL_NOTES], "embedding notes", unit="notes")
    return DescriptionSimilarity.fit(embedder, codes, (note.text for note in shown))


def _fit(rows: Rows, features: np.ndarray, kinds: Sequence[str], seed: int) -> tuple[Stacker, np.ndarray]:
    """A classifier fitted on the bills of some kinds, and held-out probabilities (N,) of all rows."""
    used = np.isin(rows.kind, kinds)
    held_out = np.zeros(len(features))
    for number in np.unique(rows.fold):
        inside = rows.fold == number
        fitted = Stacker.fit(features[used & ~inside], rows.planted[used & ~inside], _SETTINGS, seed)
        held_out[inside] = fitted.probabilities(features[inside])
    return Stacker.fit(features[used], rows.planted[used], _SETTINGS, seed), held_out


def fit_auditor(coder: str | Path, corpus: Corpus, seed: int = 0, embedder: str = "") -> SupportModel:
    """The support model of a coder, fitted on the train notes of a corpus, or on all notes of one without splits.

    coder: a bundle folder or day-one. If it was trained on some of these notes it must be a lexicon, which
    knows how to score notes by what it learns from the others. embedder: minilm or another one, for features of the
    similarity of note and description.
    """
    bundle = Bundle.load(coder)
    notes = list(corpus.notes("train" if "train" in corpus.manifest["counts"]["splits"] else None))
    if (usable := sum(len(_diagnoses(note)) > 1 for note in notes)) < MIN_NOTES:
        raise DataError(
            f"an auditor needs {MIN_NOTES} notes with two ICD-10-CM codes or more to learn from; "
            f"{corpus.folder} has {usable}"
        )
    if embedder:
        embedder = str(Path(embedder).resolve()) if Path(embedder).is_dir() else embedder
        DescriptionSimilarity(embedder, np.zeros(0)).load()  # fails before the notes are coded
    is_known = corpus.hash in {it["hash"] for it in bundle.provenance["corpora"]}
    if not is_known and not count_seen(bundle.provenance, (note.text for note in notes)):
        loaded = Coder.for_claims(coder, systems=["icd10cm"])
        shown = progress(notes, "coding notes", total=len(notes), unit="notes")
        suggestions, folds = list(loaded.code_all(shown, MAX_SUGGESTIONS)), note_folds(notes, _FOLDS, seed)
    elif bundle.model.kind == "lexicon":
        recipe = LexiconRecipe.model_validate(bundle.recipe)
        suggestions = held_out_suggestions(recipe, notes, bundle.decision.threshold)
        notes, folds = notes[: len(suggestions)], note_folds(notes, recipe.learn.folds, recipe.seed)
    else:
        raise ConfigError(f"a coder of kind {bundle.model.kind} needs a corpus that it was not trained on")
    return fit_support_model(notes, suggestions, folds[: len(notes)], coder_fingerprint(coder), seed, embedder)


def best_threshold(probabilities: np.ndarray, target: np.ndarray, errors: int, precision: float = 0.0) -> float:
    """The lowest threshold with a precision, if its F1 is near the best one; else the one with the best F1.

    errors: all planted ones, also those without a row. precision: 0 for the best F1.
    """
    order = np.argsort(-probabilities, kind="stable")
    if not len(order):
        return 1.0
    found, findings = np.cumsum(target[order]), np.arange(1, len(order) + 1)
    descending = probabilities[order]
    is_last = np.append(descending[1:] < descending[:-1], True)  # a threshold finds all codes of one probability
    f1 = np.where(is_last, 2 * found / (findings + max(1, errors)), 0.0)
    precise = np.flatnonzero(is_last & (found >= precision * findings) & (f1 >= _KEPT_F1 * f1.max()))
    last = precise[-1] if precision and len(precise) else np.argmax(f1)
    return float(descending[int(last)])
