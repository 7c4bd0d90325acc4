"""All recipes on one simulated hospital at three sizes: quality, training time and inference speed.

    python benchmarks/quality/coder_sizes.py [--sizes 1000 5000 20000] [--recipes linear laat ...] [--set KEY=VALUE]
        [--refit]

Discharge summaries in ICD-10, split by patient: 2,000 test and 1,000 dev notes, and the first 1,000, 5,000 and 20,000
of the other notes as train notes. Recipes are used as they ship, or with the settings that their row names. Measured on
test over all codes, codes with 1 to 9 train notes, and codes without a train note (only coders that read descriptions
can assign these); of a stacked coder also each of its parts alone. A row of the result file is not measured again.
Training time includes reading, word vectors, calibration and thresholds; CPU seconds are of all processes. --refit:
coders are trained again on train and dev notes; a stacked coder learns from dev notes without it, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from joblib.externals.loky import get_reusable_executor

from nosology.config import load_recipe
from nosology.core import Note
from nosology.core.files import write_json
from nosology.core.parallel import cores
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.evaluation.measure import measure
from nosology.evaluation.metrics import by_frequency
from nosology.models.stacked.stacked_model import Stacked
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_coder_sizes.json"
RECIPES = (
    "linear",
    "lexicon",
    "caml",
    "laat",
    "plm_icd",
    "dual_laat",
    "dual_laat-paper",
    "plant",
    "heads-mlp",
    "stacked",
)
SIZES = (1_000, 5_000, 20_000)
TEST, DEV = 2_000, 1_000
NOTES_PER_PATIENT = 1.5
YEARS = (2016, 2019)
METRICS = ("micro_f1", "macro_f1", "map", "p@8")
PART = 250  # patients simulated by one process at a time
TIMED = 500  # test notes that are coded to measure the speed


def hospital(notes: int) -> list[Note]:
    """About as many coded notes as asked for, simulated on all cores."""
    starts = range(0, math.ceil(notes / NOTES_PER_PATIENT), PART)
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn")) as pool:
        return [note for part in pool.map(_part, starts) for note in part]


def _part(first: int) -> list[Note]:
    return [note for note in simulate_notes(PART, 0, first=first, years=YEARS) if note.codes]


def corpora(folder: Path, sizes: Iterable[int]) -> None:
    """Writes one corpus per size; they share dev and test notes, and each contains the train notes of the smaller."""
    missing = [size for size in sizes if not (folder / str(size)).exists()]
    if not missing:
        return
    # Always as many patients as the largest size needs: the split of a patient depends on their number.
    notes = hospital(max(SIZES) + DEV + TEST)
    patients = sorted({note.patient for note in notes})
    place = {patients[i]: n for n, i in enumerate(np.random.default_rng(0).permutation(len(patients)))}
    notes.sort(key=lambda note: (place[note.patient], note.id))
    split = {}
    for note in notes:  # the split of a patient is that of the first note
        seen = len(split)
        split[note.id] = "test" if seen < TEST else "dev" if seen < TEST + DEV else "train"
    first = {note.patient: split[note.id] for note in reversed(notes)}
    notes = [replace(note, split=first[note.patient], evidence=()) for note in notes]  # as in most hospitals
    for size in missing:
        train_notes = islice((note for note in notes if note.split == "train"), size)
        chosen = [*train_notes, *(note for note in notes if note.split != "train")]
        write_corpus(chosen, folder / str(size), source={"kind": "simulated"}, filters=[], counts={})


def run(recipe: str, settings: Sequence[str], size: int, refit: bool, folder: Path, jobs: int) -> dict[str, Any]:
    """The scores, times and device of one recipe at one size; jobs: how many recipes share the machine."""
    corpus, out = Corpus.open(folder / str(size)), folder / f"{recipe}-{size}{'-refit' if refit else ''}"
    started, cpu_started = time.monotonic(), _cpu_seconds()
    bundle = train(load_recipe(recipe, settings), [corpus], out, refit=refit)
    seconds, cpu_seconds = time.monotonic() - started, _cpu_seconds() - cpu_started
    evaluation = measure(bundle, corpus, "test", folder / f"{out.name}-report", codes="full").evaluation
    notes = list(islice(corpus.notes("test"), TIMED))
    bundle.model.probabilities(notes[:16])
    started = time.monotonic()
    bundle.model.probabilities(notes)
    speed = len(notes) / (time.monotonic() - started)
    counts = dict(zip(bundle.model.labels.codes, bundle.model.train_counts.tolist()))
    bands = {str(row["train_notes"]): row for row in by_frequency(evaluation, counts)}
    parts = bundle.model.parts if isinstance(bundle.model, Stacked) else {}
    result = {
        "recipe": recipe,
        "settings": list(settings),
        "train_notes": size,
        "refit": refit,
        "codes": len(bundle.model.labels),
        **{name: evaluation.metrics[name] for name in METRICS},
        "rare_micro_f1": bands["1-9"]["micro_f1"],
        "unseen_micro_f1": bands["0"]["micro_f1"],
        "unseen_recall": bands["0"]["micro_recall"],
        "unseen_share": bands["0"]["true_assignments"] / int(evaluation.counts.support.sum()),
        "training_seconds": round(seconds),
        "training_cpu_seconds": round(cpu_seconds),
        "notes_per_second": round(speed, 1),
        "device": _device(),
        "jobs": jobs,
    }
    for name, part in parts.items():
        metrics = measure(part, corpus, "test", folder / f"{out.name}-{name}-report", codes="full").evaluation.metrics
        result.setdefault("parts", {})[name] = {metric: metrics[metric] for metric in METRICS}
    get_reusable_executor().shutdown()  # this process would wait five minutes for its idle workers
    return result


def _cpu_seconds() -> float:
    """CPU seconds of this process and of all that it started."""
    get_reusable_executor().shutdown()  # the times of a process are known when it has ended
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _device() -> str:
    try:
        import torch
    except ImportError:
        return f"{os.cpu_count()} cores"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores"


def main() -> None:
    """Prints a row per recipe and size, and writes all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--set", action="append", default=[], help="a setting of all these recipes: KEY=VALUE")
    parser.add_argument("--refit", action="store_true", help="train again on train and dev notes")
    parser.add_argument("--jobs", type=int, default=1, help="recipes trained side by side; times then say less")
    parser.add_argument("--folder", type=Path, help="for corpora and bundles; a stopped training resumes there")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if max(arguments.sizes) > max(SIZES):  # the number of patients decides the split
        parser.error(f"--sizes must be at most {max(SIZES)}; got {max(arguments.sizes)}")
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    done = {(row["recipe"], row["train_notes"], row.get("refit", False), *row["settings"]) for row in rows}
    every = [(recipe, size) for size in arguments.sizes for recipe in arguments.recipes]
    jobs = [job for job in every if (*job, arguments.refit, *arguments.set) not in done]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        corpora(folder, sorted({size for _, size in jobs}))
        with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
            for job in as_completed(
                [
                    pool.submit(run, recipe, arguments.set, size, arguments.refit, folder, arguments.jobs)
                    for recipe, size in jobs
                ]
            ):
                rows = sorted([*rows, job.result()], key=lambda row: (row["train_notes"], -row["micro_f1"]))
                print(json.dumps(job.result()), flush=True)
                write_json(arguments.out, rows)


if __name__ == "__main__":
    main()
