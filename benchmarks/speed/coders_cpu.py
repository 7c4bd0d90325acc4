"""Cost of training and scoring neural coders on a CPU: python benchmarks/speed/coders_cpu.py

    python benchmarks/speed/coders_cpu.py [--recipes caml laat ...] [--sizes 1000 5000 20000] [--folder FOLDER]

The corpora are those of coder_sizes.py. A step costs the same whatever was learned before, so each recipe is trained
for few steps, twice: the difference of the CPU seconds is the cost of the steps between, without reading, word vectors
(random here) and calibration. Hours are those of all epochs of the recipe on one core, without early stopping. One
thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nosology.config import load_recipe
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.models.train import train
from nosology.training.recipe_settings import resolve_schedule

sys.path.insert(0, str(Path(__file__).parents[1] / "quality"))
from coder_sizes import SIZES, corpora  # pyrefly: ignore[missing-import]

RESULT = Path(__file__).parents[1] / "results" / "speed_coders_cpu.json"
RECIPES = ("caml", "laat", "dual_laat", "dual_laat-paper")
FEW, MORE = 2, 8  # steps
DEV, SCORED = 8, 16  # notes


def small_dev(corpus: Corpus, folder: Path) -> Corpus:
    """The train notes of a corpus with few dev notes, which are scored at the end of a training."""
    dev = islice(corpus.notes("dev"), DEV)
    return write_corpus([*corpus.notes("train"), *dev], folder, source={"kind": "simulated"}, filters=[], counts={})


def measure(recipe: str, corpus: Corpus, notes: list, folder: Path) -> dict[str, Any]:
    """CPU milliseconds per note of training and of scoring, and the hours of all epochs."""
    seconds = []
    for steps in (FEW, MORE):
        settings = [f"training.stop_step={steps}", "vectors.epochs=0", "training.precision=fp32"]
        checked = load_recipe(recipe, settings)
        started = time.process_time()
        bundle = train(checked, [corpus], folder / f"{recipe}-{steps}")
        seconds.append(time.process_time() - started)
    trained_on, batch = bundle.provenance["n_train"], checked.training.batch
    epochs = resolve_schedule(checked.training, -(-trained_on // batch)).epochs
    training = (seconds[1] - seconds[0]) / ((MORE - FEW) * batch)
    bundle.model.probabilities(notes[:1])  # encodes descriptions
    started = time.process_time()
    bundle.model.probabilities(notes)
    return {
        "recipe": recipe,
        "train_notes": trained_on,
        "codes": len(bundle.model.labels),
        "training_ms_per_note": round(1000 * training, 1),
        "epochs": epochs,
        "training_hours": round(training * trained_on * epochs / 3600, 2),
        "scoring_ms_per_note": round(1000 * (time.process_time() - started) / len(notes), 1),
    }


def main() -> None:
    """Prints a row per recipe and size, and writes all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--folder", type=Path, help="for corpora; they are reused")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        corpora(folder, arguments.sizes)
        for size in arguments.sizes:
            corpus = small_dev(Corpus.open(folder / str(size)), Path(temporary) / f"{size}-small-dev")
            notes = list(islice(Corpus.open(folder / str(size)).notes("test"), SCORED))
            for recipe in arguments.recipes:
                row = measure(recipe, corpus, notes, Path(temporary) / str(size))
                print(json.dumps(row), flush=True)
                others = [old for old in rows if (old["recipe"], old["train_notes"]) != (recipe, row["train_notes"])]
                rows = sorted([*others, row], key=lambda row: (row["train_notes"], row["training_hours"]))
                write_json(arguments.out, rows)


if __name__ == "__main__":
    main()
