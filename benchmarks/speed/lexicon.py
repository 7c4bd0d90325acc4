"""CPU seconds of each stage of training a lexicon: python benchmarks/speed/lexicon.py [--sizes 100 200 400]

Simulated discharge summaries of about 1,500 words without evidence, the recipe as it ships. The last columns are the
seconds by the clock, all stages together, and the milliseconds to code one of 40 other notes with the trained lexicon.
With more workers only the clock says something: worker processes that still run are not counted. --tree NAME=PATH,
given twice, measures two checkouts one after the other and prints the ratio of their CPU seconds. --corpus DIR
measures `nosology train lexicon` on a corpus folder instead, in one process. The result file has an entry for the
simulated notes, one for the comparison on them, and one for each corpus, under --name or the name of its folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nosology.config import load_recipe
from nosology.core import Note
from nosology.corpora.simulate import simulate_notes
from nosology.models.lexicon.cross_validation import CrossValidation
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mention_features import code_table
from nosology.models.lexicon.scorers import TrainedScorer

RESULTS = Path(__file__).parents[1] / "results" / "speed_lexicon.json"
CODED = 40  # notes that are coded with the trained lexicon
SIMULATED, COMPARED = "simulated notes", "simulated notes, two checkouts"  # names of results
EDITION = ["codes.release='2019'", "codes.seventh=true"]


class Stopwatch:
    """CPU seconds of this process and of its children that have ended, since the last call."""

    def __init__(self) -> None:
        self._last = self._now()

    @staticmethod
    def _now() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in used)

    def __call__(self) -> float:
        now = self._now()
        seconds, self._last = now - self._last, now
        return round(seconds, 2)


def stages(notes: Sequence[Note], others: Sequence[Note], workers: int) -> dict[str, Any]:
    """CPU seconds of each stage of training on notes, and of coding other notes."""
    recipe = load_recipe("lexicon", EDITION)
    started, watch = time.perf_counter(), Stopwatch()
    validation = CrossValidation(recipe, ["icd10cm"], notes, workers)
    learned = validation.learned[-1]
    seconds = {"phrases": watch()}
    examples = validation.mentions()
    seconds["mentions"] = watch()
    scores, mention_classifier = validation.mention_scores(examples)
    seconds["mention classifier"] = watch()
    rows = [code_table(item.table, of_note) for item, of_note in zip(examples, scores)]
    targets = [np.array([code in note.codes for code in item.table.codes]) for item, note in zip(examples, notes)]
    codes = validation.code_scores(rows, targets)
    seconds["code classifier"] = watch()
    clock = time.perf_counter() - started
    lexicon = Lexicon.build(recipe, TrainedScorer(learned, mention_classifier, codes.classifier, 0.0))
    watch()
    lexicon.probabilities(others)
    return {
        "notes": len(notes),
        "words": round(np.mean([len(note.text.split()) for note in notes])),
        "pairs": sum(len(item.target) for item in examples),
        **seconds,
        "training": round(sum(seconds.values()), 2),
        "training, ms per note": round(1000 * sum(seconds.values()) / len(notes), 1),
        "clock": round(clock, 1),
        "coding, ms per note": round(1000 * watch() / len(others), 1),
    }


def compared(trees: Sequence[str], sizes: Sequence[int], workers: int, corpus: Path | None) -> dict[str, Any]:
    """The rows of each checkout, NAME=PATH, and the CPU seconds of training of the first over those of the last."""
    rows = {}
    for tree in trees:
        name, _, path = tree.partition("=")
        if corpus:
            rows[name] = [whole_training(corpus.resolve(), path)]
            print(name, rows[name], flush=True)
            continue
        command = [sys.executable, __file__, "--workers", str(workers), "--sizes", *map(str, sizes)]
        with tempfile.TemporaryDirectory() as folder:
            command += ["--out", f"{folder}/rows.json"]
            environment = os.environ | {"PYTHONPATH": path}
            run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        rows[name] = [json.loads(line) for line in run.stdout.splitlines()]
    first, last = (rows[tree.partition("=")[0]] for tree in (trees[0], trees[-1]))
    ratio = [round(before["training"] / after["training"], 2) for before, after in zip(first, last)]
    measured = ["corpus"] if corpus else map(str, sorted(sizes))
    return {"rows": rows, "training, first over last": dict(zip(measured, ratio))}


def whole_training(corpus: Path, path: str) -> dict[str, float]:
    """CPU seconds of `nosology train lexicon` on a corpus, by the checkout at this path, in one process."""
    environment = os.environ | {"PYTHONPATH": path, "LOKY_MAX_CPU_COUNT": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nosology", "train", "lexicon", "--corpus", str(corpus)]
        watch = Stopwatch()
        subprocess.run(
            [*command, "--out", f"{folder}/bundle"], env=environment, stdout=subprocess.DEVNULL, check=True, cwd=folder
        )
        return {"training": watch()}


def write(file: Path, name: str, result: dict[str, Any]) -> None:
    """Writes a result under its name; other results of the file stay."""
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | {name: result}, indent=2) + "\n")


def main() -> None:
    """Prints a row per size and writes all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--tree", dest="trees", action="append", metavar="NAME=PATH", help="a checkout; may be repeated"
    )
    parser.add_argument("--corpus", type=Path, help="a corpus folder; needs --tree")
    parser.add_argument("--name", help="of the result (default: the name of the corpus folder)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.corpus and not arguments.trees:
        parser.error("--corpus needs --tree NAME=PATH")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {arguments.workers} used"
    if arguments.trees:
        results = compared(arguments.trees, arguments.sizes, arguments.workers, arguments.corpus)
        print(json.dumps(results, indent=2))
        default = arguments.corpus.resolve().name if arguments.corpus else COMPARED
        write(arguments.out, arguments.name or default, results | {"machine": machine})
        return
    largest = max(arguments.sizes)
    simulated = (note for note in simulate_notes(2 * (largest + CODED), 0, years=(2016, 2019)) if note.codes)
    notes = [replace(note, evidence=()) for note in islice(simulated, largest + CODED)]
    Terms.open("2019")  # read, or built once; no part of training
    rows = []
    for size in sorted(arguments.sizes):
        rows.append(stages(notes[CODED : CODED + size], notes[:CODED], arguments.workers))
        print(json.dumps(rows[-1]), flush=True)
    write(arguments.out, arguments.name or SIMULATED, {"rows": rows, "machine": machine})


if __name__ == "__main__":
    main()
