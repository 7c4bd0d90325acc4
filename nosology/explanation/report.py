"""Explanations of notes as a folder, and how good each method's are over the notes of a corpus."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from nosology.codes import describe
from nosology.core import DataError, Note
from nosology.core.files import atomic_folder, write_json
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus
from nosology.explanation.attribution import Attribution, attribute, methods_of
from nosology.explanation.draw import page, picture
from nosology.explanation.quality import faithfulness, plausibility
from nosology.models.bundle import Bundle
from nosology.models.suggested_systems import suggested_systems

MARKER = "explanations.json"


def accepted(bundle: Bundle, text: str, systems: Collection[str] = ()) -> list[int]:
    """The columns of the codes that the coder accepts for a note, the likeliest first.

    systems: of these code systems; none named, those that a Coder suggests codes of.
    """
    labels, wanted = bundle.model.labels, suggested_systems(bundle.model, systems)
    kept = np.array([code.system in wanted for code in labels.codes])
    probabilities = bundle.model.probabilities([text])[0] * kept
    found = bundle.decision.accepted(labels, probabilities)
    return [int(j) for j in np.argsort(-probabilities, kind="stable") if found[j]]


def beside(bundle: Bundle, extra: Mapping[str, Any]) -> Bundle:
    """The bundle for one note and what stands beside its text; a coder that reads nothing but text stays as it is."""
    return replace(bundle, model=bundle.model.beside(extra)) if hasattr(bundle.model, "beside") else bundle


def explained(
    bundle: Bundle,
    text: str,
    columns: Sequence[int],
    methods: Sequence[str],
    *,
    samples: int = 1000,
    seed: int = 0,
    systems: Collection[str] = (),
) -> Iterator[tuple[Attribution, dict[str, Any]]]:
    """Each code's explanation by each method, with what it is about and how faithful it is.

    columns: none for those that the coder accepts, of some systems (see `accepted`). methods: none for all that this
    kind of coder has.
    """
    model = bundle.model
    probabilities = model.probabilities([text])[0]
    for column in columns or accepted(bundle, text, systems):
        code = model.labels.codes[column]
        about = {"system": code.system, "code": code.code, "description": describe(code)}
        for method in methods or methods_of(model):
            started = time.perf_counter()
            found = attribute(model, text, column, method, samples=samples, seed=seed)
            seconds = time.perf_counter() - started
            faithful = asdict(faithfulness(model.probabilities, text, found)) if len(found.words) else {}
            told = {"probability": float(probabilities[column]), "method": method, **faithful, "seconds": seconds}
            yield found, about | told


def write_explanations(
    bundle: Bundle,
    notes: Sequence[Note],
    columns: Sequence[int],
    methods: Sequence[str],
    out: str | Path,
    *,
    samples: int = 1000,
    seed: int = 0,
    systems: Collection[str] = (),
) -> list[dict[str, Any]]:
    """What was found, a row an explanation; in `out` a page a note, a picture an explanation, explanations.json."""
    rows: list[dict[str, Any]] = []
    several = len(bundle.model.labels.systems) > 1  # two may have the same code
    with atomic_folder(out, marker=MARKER) as folder:
        for number, note in enumerate(notes):
            name, text = note.id, note.text
            stem = f"{number:03d}-{re.sub(r'[^A-Za-z0-9-]+', '-', Path(name).stem)[:40]}"
            shown = []
            given = beside(bundle, note.extra)
            for found, about in explained(given, text, columns, methods, samples=samples, seed=seed, systems=systems):
                title = (
                    f"{about['code']} {about['description']}: {about['method']}, probability {about['probability']:.2f}"
                )
                named = [about["system"]] * several + [about["code"], about["method"]]
                png = f"{'-'.join([stem, *named])}.png"
                picture(folder / png, title[:110], text, found)
                shown.append((title, found))
                best = [
                    [
                        found.words.words[i],
                        int(found.words.starts[i]),
                        int(found.words.ends[i]),
                        float(found.weights[i]),
                    ]
                    for i in found.best(10)
                ]
                rows.append({"note": name, **about, "words": best, "picture": png})
            (folder / f"{stem}.html").write_text(page(name, text, shown), encoding="utf-8")
        write_json(folder / MARKER, rows)
    return rows


def measured(
    bundle: Bundle,
    corpus: Corpus,
    split: str,
    methods: Sequence[str],
    *,
    limit: int = 20,
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, float | int | None]]:
    """For each method the mean comprehensiveness and sufficiency over accepted true codes of notes of a split, and
    where the corpus has evidence, token F1 and IoU; besides, seconds an explanation.

    limit: notes, drawn by the seed. Codes that are true and accepted are explained: of others there is no evidence.
    """
    notes = [note for note in corpus.notes(None if split == "all" else split) if note.codes]
    if not notes:
        raise DataError(f"{corpus.folder} has no coded {split} notes: there is nothing to explain")
    drawn = np.sort(np.random.default_rng(seed).permutation(len(notes))[:limit])
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    column_of = {code: j for j, code in enumerate(bundle.model.labels.codes)}
    for note in progress([notes[i] for i in drawn], "explaining"):
        true = {column_of[code] for code in note.codes if code in column_of}
        given = beside(bundle, note.extra)
        own = {bundle.model.labels.codes[column].system for column in true}
        wanted = [column for column in accepted(given, note.text, own) if column in true] if true else []
        if not wanted:
            continue
        for found, about in explained(given, note.text, wanted, methods, samples=samples, seed=seed):
            kept = values[found.method]
            for name in ("comprehensiveness", "sufficiency", "seconds"):
                if name in about:
                    kept[name].append(about[name])
            code = bundle.model.labels.codes[found.column]
            plausible = plausibility(found, [item for item in note.evidence if item.code == code])
            if plausible is not None:
                kept["token_f1"].append(plausible.f1)
                kept["iou"].append(plausible.iou)
    names = ("comprehensiveness", "sufficiency", "token_f1", "iou", "seconds")
    return {
        method: {"explanations": len(kept["seconds"]), "with_evidence": len(kept["iou"])}
        | {name: float(np.mean(kept[name])) if kept[name] else None for name in names}
        for method, kept in values.items()
    }
