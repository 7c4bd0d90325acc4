"""The linear coder on CodiEsp: python benchmarks/quality/codiesp.py FOLDER [--lang en] [--system icd10cm] [--set K=V]

FOLDER holds the notes files codiesp_LANG_train.jsonl and codiesp_LANG_dev.jsonl. Two rows are printed: `dev` tunes
calibration and threshold on the dev notes that it is measured on, as is usual for this corpus; `held out` finds them on
a part of the train notes and sees dev only once, at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from nosology.config import load_recipe
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.notes_file import read_notes
from nosology.models.measure import measure
from nosology.training.run import train

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
RESULTS = Path(__file__).parents[1] / "results" / "quality_codiesp.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lang", choices=["en", "es"], default="en")
    parser.add_argument("--system", choices=["icd10cm", "icd10pcs"], default="icd10cm")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    words = parser.parse_args()
    notes = {s: list(read_notes(words.folder / f"codiesp_{words.lang}_{s}.jsonl")) for s in ("train", "dev")}
    recipe = load_recipe("linear", [f"labels.systems=['{words.system}']", *words.settings])
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = write_corpus([*notes["train"], *notes["dev"]], folder / "c", source={}, filters=[], counts={})
        # The dev notes as test notes: then dev is carved out of train, and the model refitted on all of train.
        apart = [*notes["train"], *(replace(note, split="test") for note in notes["dev"])]
        unseen = write_corpus(apart, folder / "u", source={}, filters=[], counts={})
        for row, corpus, split in (("dev", whole, "dev"), ("held out", unseen, "test")):
            rows[row] = _measured(recipe, corpus, split, folder / row, words.system)
    for row, found in rows.items():
        print(f"{row:9}" + "".join(f"  {key} {found[key]:.4f}" for key in SHOWN))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[" ".join([words.lang, words.system, *words.settings])] = rows
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


def _measured(recipe, corpus: Corpus, split: str, folder: Path, system: str) -> dict:
    bundle = train(recipe, [corpus], folder / "bundle")
    measure(bundle, corpus, split, folder / "report", systems=[system])
    metrics = json.loads((folder / "report" / "metrics.json").read_text())
    return {key: metrics[key] for key in SHOWN} | {"found": bundle.provenance["found"]}


if __name__ == "__main__":
    main()
