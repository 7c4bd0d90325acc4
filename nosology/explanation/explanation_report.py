"""Explanations of notes as a folder of pages and pictures, and their mean quality over the notes of a corpus."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nosology.codes import describe
from nosology.core import SPLITS, ConfigError, DataError, Note
from nosology.core.files import atomic_folder, write_json
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.explanation.attribution import Attribution, attribute, default_methods, faithfulness, plausibility
from nosology.explanation.highlight import html_page, write_picture
from nosology.models.bundle import Bundle, suggested_systems

MARKER = "explanations.json"
_QUALITY = ("comprehensiveness", "sufficiency", "token_f1", "iou", "seconds")


def accepted_labels(bundle: Bundle, note: Note, systems: Collection[str] = ()) -> list[int]:
    """The labels that the coder accepts for a note, most probable first.

    systems: only codes of these systems; empty: the systems that `Coder` suggests.
    """
    labels, wanted = bundle.model.labels, suggested_systems(bundle.model, systems)
    in_systems = np.array([code.system in wanted for code in labels.codes])
    probabilities = bundle.model.probabilities([note])[0] * in_systems
    accepted = bundle.decision.accepted(labels, probabilities)
    return [int(label) for label in np.argsort(-probabilities, kind="stable") if accepted[label]]


def explain_note(
    bundle: Bundle,
    note: Note,
    labels: Sequence[int] = (),
    methods: Sequence[str] = (),
    *,
    samples: int = 1000,
    seed: int = 0,
    systems: Collection[str] = (),
) -> Iterator[tuple[Attribution, dict[str, Any]]]:
    """One attribution per label and method, with the code, its probability and the faithfulness.

    labels: empty for the accepted ones (see `accepted_labels`). methods: empty for `default_methods`.
    """
    model = bundle.model
    probabilities = model.probabilities([note])[0]
    for label in labels or accepted_labels(bundle, note, systems):
        code = model.labels.codes[label]
        for method in methods or default_methods(model):
            started = time.perf_counter()
            attribution = attribute(model, note, label, method, samples=samples, seed=seed)
            seconds = time.perf_counter() - started
            quality = asdict(faithfulness(model.probabilities, note, attribution)) if len(attribution.words) else {}
            yield (
                attribution,
                {
                    "system": code.system,
                    "code": code.code,
                    "description": describe(code),
                    "probability": float(probabilities[label]),
                    "method": method,
                    **quality,
                    "seconds": seconds,
                },
            )


def write_explanations(
    bundle: Bundle,
    notes: Sequence[Note],
    labels: Sequence[int],
    methods: Sequence[str],
    out: str | Path,
    *,
    samples: int = 1000,
    seed: int = 0,
    systems: Collection[str] = (),
    words: int = 10,
) -> list[dict[str, Any]]:
    """One row per explanation, with its best words; writes a page per note, a picture per explanation, and the rows."""
    rows: list[dict[str, Any]] = []
    several_systems = len(bundle.model.labels.systems) > 1  # two systems may have the same code
    with atomic_folder(out, marker=MARKER, files=["[0-9][0-9][0-9]-*.png", "[0-9][0-9][0-9]-*.html"]) as folder:
        for number, note in enumerate(notes):
            stem = f"{number:03d}-{re.sub(r'[^A-Za-z0-9-]+', '-', Path(note.id).stem)[:40]}"
            sections = []
            for attribution, row in explain_note(
                bundle, note, labels, methods, samples=samples, seed=seed, systems=systems
            ):
                title = f"{row['code']} {row['description']}: {row['method']}, probability {row['probability']:.2f}"
                names = [stem, *([row["system"]] if several_systems else []), row["code"], row["method"]]
                picture = f"{'-'.join(names)}.png"
                write_picture(folder / picture, title[:110], note.text, attribution)
                sections.append((title, attribution))
                rows.append({"note": note.id, **row, "words": _best_words(attribution, words), "picture": picture})
            (folder / f"{stem}.html").write_text(html_page(note.id, note.text, sections), encoding="utf-8")
        write_json(folder / MARKER, rows)
    return rows


def _best_words(attribution: Attribution, limit: int) -> list[list[Any]]:
    """Word, start, end and weight of the best words."""
    words = attribution.words
    return [
        [words.words[i], int(words.starts[i]), int(words.ends[i]), float(attribution.weights[i])]
        for i in attribution.best(limit)
    ]


def measure_explanations(
    bundle: Bundle,
    corpus: Corpus,
    split: str,
    methods: Sequence[str],
    *,
    limit: int = 20,
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, float | int | None]]:
    """For each method the mean faithfulness over accepted true codes, and token F1 and IoU where there is evidence.

    limit: number of notes, drawn by the seed.
    """
    if split not in (*SPLITS, "all"):
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, all; got {split!r}")
    notes = [note for note in corpus.notes(None if split == "all" else split) if note.codes]
    if not notes:
        raise DataError(f"{corpus.folder} has no coded {split} notes: there is nothing to explain")
    drawn = np.sort(np.random.default_rng(seed).permutation(len(notes))[:limit])
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    label_of = {code: label for label, code in enumerate(bundle.model.labels.codes)}
    for note in progress([notes[i] for i in drawn], "explaining"):
        true = {label_of[code] for code in note.codes if code in label_of}
        systems = {bundle.model.labels.codes[label].system for label in true}
        wanted = [label for label in accepted_labels(bundle, note, systems) if label in true] if true else []
        if not wanted:
            continue
        for attribution, row in explain_note(bundle, note, wanted, methods, samples=samples, seed=seed):
            measured = values[attribution.method]
            for name in ("comprehensiveness", "sufficiency", "seconds"):
                if name in row:
                    measured[name].append(row[name])
            code = bundle.model.labels.codes[attribution.label]
            agreement = plausibility(attribution, [item for item in note.evidence if item.code == code])
            if agreement is not None:
                measured["token_f1"].append(agreement.f1)
                measured["iou"].append(agreement.iou)
    if not values:
        more = "; raise --limit" if len(drawn) < len(notes) else ""
        raise DataError(
            f"no code to explain in {len(drawn):,} of {len(notes):,} notes: none is both true and accepted{more}"
        )
    return {
        method: {"explanations": len(measured["seconds"]), "with_evidence": len(measured["iou"])}
        | {name: float(np.mean(measured[name])) if measured[name] else None for name in _QUALITY}
        for method, measured in values.items()
    }
