"""Coders on CodiEsp: python benchmarks/quality/codiesp.py FOLDER [--recipe NAME ...] [--lang en] [--set K=V]

FOLDER holds the notes files codiesp_LANG_train.jsonl and codiesp_LANG_dev.jsonl. Each recipe, linear where none is
named, gives two rows: `dev` tunes calibration, threshold and number of epochs on the dev notes that it is measured on,
as is usual for this corpus; `held out` finds them on a part of the train notes and sees dev only once, at the end.
`seconds` is the time of training, `cpu` that of all its threads together.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from nosology.config import load_recipe
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.notes_file import read_notes
from nosology.evaluation.measure import measure
from nosology.models.train import train
from nosology.training.recipe_settings import Recipe

SHOWN = (
    "micro_f1",
    "micro_f1_low",
    "micro_f1_high",
    "micro_precision",
    "micro_recall",
    "macro_f1",
    "map",
    "p@5",
    "ece",
)
TIMES = ("seconds", "cpu")
RESULTS = Path(__file__).parents[1] / "results" / "quality_codiesp.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lang", choices=["en", "es"], default="en")
    parser.add_argument("--system", choices=["icd10cm", "icd10pcs"], default="icd10cm")
    parser.add_argument("--recipe", dest="recipes", action="append", help="a name or a file; may be repeated")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    arguments = parser.parse_args()
    notes = {s: list(read_notes(arguments.folder / f"codiesp_{arguments.lang}_{s}.jsonl")) for s in ("train", "dev")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        full = write_corpus([*notes["train"], *notes["dev"]], folder / "c", source={}, filters=[], counts={})
        # The dev notes as test notes: then dev is carved out of train, and the model refitted on all of train.
        apart = [*notes["train"], *(replace(note, split="test") for note in notes["dev"])]
        unseen = write_corpus(apart, folder / "u", source={}, filters=[], counts={})
        for recipe_name in arguments.recipes or ["linear"]:
            recipe = load_recipe(recipe_name, [f"labels.systems=['{arguments.system}']", *arguments.settings])
            named = [] if recipe_name == "linear" else [Path(recipe_name).stem]
            rows = {}
            for row, corpus, split in (("dev", full, "dev"), ("held out", unseen, "test")):
                rows[row] = _measured(recipe, corpus, split, folder / f"{recipe.kind} {row}", arguments.system)
                shown = "".join(f"  {key} {rows[row][key]:.4f}" for key in SHOWN)
                times = "".join(f"  {key} {rows[row][key]:.0f}" for key in TIMES)
                print(f"{Path(recipe_name).stem:10} {row:9}{shown}{times}", flush=True)
            changed = [setting for setting in arguments.settings if not setting.startswith("vectors.cache=")]
            _write(" ".join([arguments.lang, arguments.system, *named, *changed]), rows)


def _measured(recipe: Recipe, corpus: Corpus, split: str, folder: Path, system: str) -> dict:
    seconds, cpu = time.perf_counter(), time.process_time()
    bundle = train(recipe, [corpus], folder / "bundle")
    times = (time.perf_counter() - seconds, time.process_time() - cpu)
    measure(bundle, corpus, split, folder / "report", systems=[system])
    metrics = json.loads((folder / "report" / "metrics.json").read_text())
    results = {key: metrics[key] for key in SHOWN} | {"found": bundle.provenance["found"]}
    return results | {key: round(value, 1) for key, value in zip(TIMES, times)}


def _write(key: str, rows: dict) -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[key] = rows
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
