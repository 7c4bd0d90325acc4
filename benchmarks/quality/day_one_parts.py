"""What each part of the lexicon adds on CodiEsp: python benchmarks/quality/day_one_parts.py FOLDER

Day one on the English dev cases with one kind of terms left out, with other settings; then (or with --trained alone)
the trained lexicon on the Spanish dev cases with one part left out, all of these rows with fewer trees than the recipe
has, which takes a third of the time. Everything else stays as in day_one.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from day_one import EDITION, MENTIONS, ROWS, codiesp_split, measure_test_notes, measured

from nosology.codes import table
from nosology.codes.terms import terms
from nosology.config import load_recipe
from nosology.core import Note
from nosology.corpora.corpus import write_corpus
from nosology.models.lexicon.lexicon_model import day_one
from nosology.models.lexicon.lexicon_terms import Terms

RESULTS = Path(__file__).parents[1] / "results" / "quality_day_one_parts.json"
NO_TRAINING: dict[str, tuple[str, ...]] = {
    "all": (),
    "newest release": ("codes.release='2026'",),
    "seventh characters": ("codes.seventh=true",),
    "vague codes dropped": ("codes.vague='drop'",),
    "negated dropped": ("context.negated='drop'",),
    "family as history": ("context.family='history'",),
    "past as history": ("context.historical='history'",),
    "uncertain dropped": ("context.uncertain='drop'",),
    "no words between": ("match.gap=0",),
    "four words between": ("match.gap=4",),
}
SOURCES = {
    "without our synonyms": {"synonym"},
    "without inclusion terms": {"inclusion"},
    "without ICD-9-CM titles": {"icd9"},
    "without parts of pairs": {"part"},
    "without titles of categories": {"category"},
    "descriptions alone": {"synonym", "inclusion", "icd9", "part", "category", "other"},
}
FEWER = ("learn.rounds=60", "learn.learning_rate=0.15", "learn.forest=15")
TRAINED: dict[str, tuple[str, ...]] = {
    "all": (),
    "without the tagger": ("learn.tagger=false",),
    "without terms of the classification": ("learn.terms=false",),
    "learned phrases without gaps": ("match.learned_gap=0",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trained", action="store_true", help="the trained rows alone")
    arguments = parser.parse_args()
    rows: dict[str, dict] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not arguments.trained:
        notes = codiesp_split(arguments.folder, "en", "dev", False)
        for name, settings in NO_TRAINING.items():
            rows[f"day one: {name}"] = _untrained(notes, settings)
        for name, sources in SOURCES.items():
            rows[f"day one: {name}"] = _untrained(notes, (), sources)
        _write(rows)
    lang, system, trained, evidence, row_settings = ROWS["Spanish, trained with evidence"]
    for name, settings in TRAINED.items():
        rows[f"trained: {name}"] = measured(
            arguments.folder, lang, system, trained, evidence, (*row_settings, *FEWER, *settings)
        )
        _show(f"trained: {name}", rows[f"trained: {name}"])
        _write(rows)


def _write(rows: dict[str, dict]) -> None:
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


def _untrained(notes: Sequence[Note], settings: Sequence[str], left_out: set[str] = frozenset()) -> dict:
    bundle = day_one(load_recipe("day-one", [*EDITION, *MENTIONS, *settings]))
    if left_out:
        codes = bundle.model.recipe.codes
        every = terms(table("icd10cm", codes.release), seventh=codes.seventh)
        remaining = Terms.build((term for term in every if term.source not in left_out), codes.release)
        bundle = replace(bundle, model=replace(bundle.model, terms=remaining, _cache={}))
    with tempfile.TemporaryDirectory() as name:
        test_notes = [replace(note, split="test") for note in notes]
        corpus = write_corpus(test_notes, Path(name) / "corpus", source={}, filters=[], counts={})
        metrics = measure_test_notes(bundle, corpus, Path(name) / "report", "icd10cm")
    _show(
        f"day one: {', '.join(settings) or ('without ' + ', '.join(sorted(left_out)) if left_out else 'all')}", metrics
    )
    return metrics


def _show(name: str, row: dict) -> None:
    spans = f"  spans {row['spans']['f1']:.3f}" if "spans" in row else ""
    print(f"{name:90}  micro_f1 {row['micro_f1']:.3f}  map {row['map']:.3f}{spans}", flush=True)


if __name__ == "__main__":
    main()
