"""The lexicon on CodiEsp: python benchmarks/quality/day_one.py FOLDER [--row NAME ...]

FOLDER holds the notes files codiesp_LANG_SPLIT.jsonl. Every row is measured on the dev cases, which nothing was fitted
on: day one is not trained at all, the others learn phrases, classifiers and threshold from the train cases alone (with
--test the rows are learned from train and dev, and measured on codiesp_LANG_test.jsonl). `spans` are evidence spans of
accepted codes with the right code and both ends within 10 characters.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.notes_file import read_notes
from nosology.evaluation.measure import measure
from nosology.models.bundle import Bundle
from nosology.models.lexicon.learned_phrases import is_same_span
from nosology.models.lexicon.lexicon_model import day_one
from nosology.models.train import train

RESULTS = Path(__file__).parents[1] / "results" / "quality_day_one.json"
SHOWN = (
    "micro_f1",
    "micro_f1_low",
    "micro_f1_high",
    "micro_precision",
    "micro_recall",
    "map",
    "map_low",
    "map_high",
    "ece",
)
EDITION = ("codes.release='2019'", "codes.seventh=false", "codes.vague='keep'")  # the coders' edition and habits
MENTIONS = tuple(f"context.{name}='keep'" for name in ("negated", "family", "historical", "uncertain", "hypothetical"))
# name: language, code system, trained, evidence, further settings; what the task asks for (micro F1, MAP)
ROWS: dict[str, tuple[str, str, bool, bool, tuple[str, ...]]] = {
    "English, no training": ("en", "icd10cm", False, False, (*EDITION, *MENTIONS)),
    "English, no training, negated kept": ("en", "icd10cm", False, False, (EDITION[0], MENTIONS[0])),
    "English, no training, real coding": ("en", "icd10cm", False, False, EDITION[:2]),
    "Spanish, no training": ("es", "icd10cm", False, False, (*EDITION, *MENTIONS)),
    "Spanish, trained with evidence": ("es", "icd10cm", True, True, EDITION),
    "Spanish procedures, trained with evidence": ("es", "icd10pcs", True, True, ()),
    "English, trained without evidence": ("en", "icd10cm", True, False, EDITION),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--row", dest="rows", action="append", choices=ROWS, help="one row alone; may be repeated")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--test", action="store_true", help="learn from train and dev, measure on test")
    arguments = parser.parse_args()
    rows = {}
    for name in arguments.rows or ROWS:
        rows[name] = measured(arguments.folder, *ROWS[name][:4], (*ROWS[name][4], *arguments.settings), arguments.test)
        shown = "".join(
            f"  {key} {rows[name][key]:.3f}" for key in ("micro_f1", "map", "micro_precision", "micro_recall")
        )
        spans = f"  spans {rows[name]['spans']['f1']:.3f}" if "spans" in rows[name] else ""
        print(f"{name:44}{shown}{spans}  {rows[name]['seconds']:.0f} s", flush=True)
        if not arguments.settings and not arguments.test:
            known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps(known | rows, indent=2) + "\n")


def measured(
    folder: Path, lang: str, system: str, trained: bool, evidence: bool, settings: Sequence[str], test: bool = False
) -> dict:
    """One row of the table."""
    train_splits, test_split = (("train", "dev"), "test") if test else (("train",), "dev")
    notes = {split: codiesp_split(folder, lang, split, evidence) for split in (*train_splits, test_split)}
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        # Evaluated notes are in split test, which trainers never read.
        all_notes = [replace(note, split="train") for split in train_splits for note in notes[split]]
        all_notes += [replace(note, split="test") for note in notes[test_split]]
        corpus = write_corpus(all_notes, temporary / "corpus", source={}, filters=[], counts={})
        started = time.perf_counter()
        if trained:
            recipe = load_recipe("lexicon", [f"labels.systems=['{system}']", *settings])
            bundle = train(recipe, [corpus], temporary / "bundle")
        else:
            bundle = day_one(load_recipe("day-one", settings))
        seconds = time.perf_counter() - started
        metrics = measure_test_notes(bundle, corpus, temporary / "report", system)
    if system == "icd10cm":
        metrics |= _unseen(bundle, notes[test_split])
    if notes[test_split][0].evidence:
        metrics["spans"] = spans(bundle, notes[test_split], system)
    return metrics | {"seconds": round(seconds, 1)}


def codiesp_split(folder: Path, lang: str, split: str, evidence: bool) -> list[Note]:
    """The notes of a split of CodiEsp, with or without their evidence."""
    notes = list(read_notes(folder / f"codiesp_{lang}_{split}.jsonl"))
    return notes if evidence else [replace(note, evidence=()) for note in notes]


def measure_test_notes(bundle: Bundle, corpus: Corpus, report: Path, system: str) -> dict:
    """The shown metrics of a coder on the test notes of a corpus, and its threshold."""
    measure(bundle, corpus, "test", report, systems=[system])
    metrics = json.loads((report / "metrics.json").read_text())
    return {key: metrics[key] for key in (*SHOWN, "threshold")}


def _unseen(bundle: Bundle, notes: Sequence[Note]) -> dict:
    """Of the true codes that no training note has: how many there are, and how many are accepted."""
    trained_codes = {code for code, count in zip(bundle.model.labels.codes, bundle.model.train_counts) if count}
    total = accepted_total = 0
    for note in notes:
        new = {code for code in note.codes if code.system == "icd10cm"} - trained_codes
        total += len(new)
        accepted_total += len(new & accepted(bundle, note.text))
    return {"unseen_codes": total, "unseen_codes_accepted": accepted_total}


def accepted(bundle: Bundle, text: str) -> set[Code]:
    """The codes that a bundle accepts for a note."""
    probabilities = bundle.model.probabilities([Note("", text)])[0]
    columns = np.flatnonzero((probabilities > 0) & (probabilities >= bundle.decision.threshold))
    return {bundle.model.labels.codes[column] for column in columns}


def spans(bundle: Bundle, notes: Sequence[Note], system: str) -> dict:
    """Precision, recall and F1 of the evidence spans of accepted codes; each true span counts once."""
    hits = predicted = true = 0
    for note in notes:
        codes = sorted(accepted(bundle, note.text))
        columns = [bundle.model.labels.column(code) for code in codes]
        evidence = bundle.model.evidence(note, columns, limit=1000)
        left = list(
            {(item.code, item.start, item.end): item for item in note.evidence if item.code.system == system}.values()
        )
        true += len(left)
        for code, code_spans in zip(codes, evidence):
            for span in code_spans:
                predicted += 1
                hit = next(
                    (item for item in left if item.code == code and is_same_span(span.start, span.end, item)), None
                )
                if hit is not None:
                    hits += 1
                    left.remove(hit)
    return {
        "f1": 2 * hits / max(1, predicted + true),
        "precision": hits / max(1, predicted),
        "recall": hits / max(1, true),
    }


if __name__ == "__main__":
    main()
