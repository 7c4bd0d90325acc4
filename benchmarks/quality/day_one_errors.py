"""Errors of the lexicon by kind: python benchmarks/quality/day_one_errors.py FOLDER [--patients 400]

On the dev cases of CodiEsp (day one in English, trained in Spanish) and on test notes of the simulated hospital (day
one and trained, with metrics). A true code that is not accepted is `not stated` (the note's evidence has no word for
it), `context` (its mentions are denied, doubted, past or another's, and the policy drops them), `specificity` (another
code of its category is accepted), `too low` (a mention names it, below the threshold) or `missed term` (none does).
An accepted code that is not true is `specificity` (a true code of its category is missed) or `not coded`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from day_one import EDITION, MENTIONS, ROWS, accepted, codiesp_split, measure_test_notes

from nosology.config import load_recipe
from nosology.core import Note
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.prepare import prepare
from nosology.corpora.simulate import simulate
from nosology.corpora.splits import split_corpus
from nosology.models.bundle import Bundle
from nosology.models.lexicon.lexicon_model import day_one
from nosology.models.lexicon.lexicon_settings import ContextSettings
from nosology.models.train import train

RESULTS = Path(__file__).parents[1] / "results" / "quality_day_one_errors.json"
KEEP = ContextSettings(negated="keep", family="keep", historical="keep", uncertain="keep", hypothetical="keep")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--patients", type=int, default=400)
    words = parser.parse_args()
    rows: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        untrained = day_one(load_recipe("day-one", [*EDITION, *MENTIONS]))
        english = codiesp_split(words.folder, "en", "dev", False)
        _add(rows, "CodiEsp, English, no training", kinds(untrained, english))
        corpus = _hospital(words.patients, place)
        untrained = day_one(load_recipe("day-one", ["codes.release='2019'"]))
        _add(rows, "simulated hospital, no training", _both(untrained, corpus, place / "report"))
        spanish = _codiesp(words.folder, place)
        _add(
            rows,
            "CodiEsp, Spanish, trained with evidence",
            kinds(spanish, codiesp_split(words.folder, "es", "dev", True)),
        )
        recipe = load_recipe("lexicon", ["labels.systems=['icd10cm']", "codes.release='2019'"])
        trained = train(recipe, [corpus], place / "simulated")
        _add(rows, "simulated hospital, trained", _both(trained, corpus, place / "trained report"))


def _both(bundle: Bundle, corpus: Corpus, report: Path) -> dict:
    return kinds(bundle, corpus.notes("test")) | {"metrics": measure_test_notes(bundle, corpus, report, "icd10cm")}


def _add(rows: dict[str, dict], title: str, row: dict) -> None:
    """Prints and keeps a row."""
    rows[title] = row
    metrics = row.get("metrics", {})
    print(title, *(f"{key} {metrics[key]:.3f}" for key in ("micro_f1", "map") if key in metrics))
    print("   missed:  ", row["missed"], "\n   accepted:", row["accepted"], flush=True)
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


def _codiesp(folder: Path, place: Path) -> Bundle:
    lang, system, _, evidence, settings = ROWS["Spanish, trained with evidence"]
    notes = [replace(note, split="train") for note in codiesp_split(folder, lang, "train", evidence)]
    corpus = write_corpus(notes, place / "codiesp", source={}, filters=[], counts={})
    return train(load_recipe("lexicon", [f"labels.systems=['{system}']", *settings]), [corpus], place / "spanish")


def _hospital(patients: int, place: Path) -> Corpus:
    simulate(patients, 5, place / "hospital", layout="mimic4", years=(2016, 2019))
    prepare("mimic4", [place / "hospital"], place / "notes")
    split_corpus(place / "notes", place / "corpus")
    return Corpus.open(place / "corpus")


def kinds(bundle: Bundle, notes: Iterable[Note]) -> dict[str, dict[str, int]]:
    """How many true codes are missed, and how many accepted ones not true, by kind."""
    missed: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    open_to_all = bundle.model.with_context(KEEP)
    for note in notes:
        true = {code for code in note.codes if code.system == "icd10cm"}
        predicted = {code for code in accepted(bundle, note.text) if code.system == "icd10cm"}
        mentioned = {scored.code for scored in bundle.model.analyse(note.text)[1].mentions}
        in_context = {scored.code for scored in open_to_all.analyse(note.text)[1].mentions}
        stated = {item.code for item in note.evidence}
        categories = {code.code[:3] for code in predicted - true}
        missed["found"] += len(true & predicted)
        for code in true - predicted:
            if stated and code not in stated:
                missed["not stated"] += 1
            elif code not in mentioned and code in in_context:
                missed["context"] += 1
            elif code.code[:3] in categories:
                missed["specificity"] += 1
            else:
                missed["too low" if code in mentioned else "missed term"] += 1
        lacking = {code.code[:3] for code in true - predicted}
        wrong["true"] += len(true & predicted)
        wrong.update("specificity" if code.code[:3] in lacking else "not coded" for code in predicted - true)
    return {"missed": dict(missed), "accepted": dict(wrong)}


if __name__ == "__main__":
    main()
