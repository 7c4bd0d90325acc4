"""What ICD-9 years add to a DualLAAT coder for ICD-10: rare codes, codes never seen, and batches of another size.

    python benchmarks/quality/mixed_versions.py [@benchmarks/quality/conv.args] --patients 9000 --seeds 3 [--jobs 3]
        [--arms icd10 ...] [--out FILE]

conv.args has the settings of a convolution of the paper's width, for a GPU (several threads compute the word vectors,
so repetitions differ slightly). Without them the settings of the recipe are used.

A simulated hospital of 2008 to 2019 is split by patient (70/10/20). All arms choose their weights on the same ICD-10
dev notes and are measured on the same ICD-10 test notes over every ICD-10 code of the data, with one threshold per code
set chosen on dev. Arms:

icd10             ICD-10 notes of the train patients, for --epochs epochs as in the paper
mixed             their ICD-9 notes as well, for as many epochs
icd10_long        icd10 with as many steps as mixed
large_batch       icd10 with batches eight times as large and sqrt(8) times the learning rate
large_batch_long  the same with as many steps as icd10: eight times the epochs and the patience
linear            the linear coder on the notes of icd10

Rare codes have fewer than 10 notes in the ICD-10 data (Liu and Nguyen 2026, section 3.1). 5% of the ICD-10 codes are
removed from all training notes; the zero-shot MAP measures how they are ranked by their descriptions, compared with a
ranking by their true frequency, for all of them and for the rare ones. Seeds change the split, the removed codes and
the training. Results are saved per seed (FILE_0.json, ...): an arm with the same patients, epochs and settings is not
run again; for other settings name another FILE.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.core.files import write_json
from nosology.core.label_space import LabelSpace
from nosology.core.parallel import cores
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.evaluation import Evaluation, evaluate, paired_t_test
from nosology.evaluation.measure import measure
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_mixed_versions.json"
SHOWN = ("micro_f1", "macro_f1", "map", "p@8")
SETS = ("rare", "frequent", "full")
COMPARED = (("mixed", "icd10"), ("mixed", "icd10_long"), ("large_batch", "icd10"), ("large_batch_long", "icd10"))
ARMS = ("icd10", "icd10_long", "mixed", "large_batch", "large_batch_long", "linear")
UNSEEN = ("zero_shot", "zero_shot_rare")
PART = 250  # patients simulated by one process at a time
LARGE = 8  # times as many notes per step


def hospital(patients: int) -> list[Note]:
    """The notes of the hospital, simulated on all cores."""
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn")) as pool:
        starts = range(0, patients, PART)
        parts = pool.map(_part, starts, [min(PART, patients - first) for first in starts])
        return [note for part in parts for note in part]


def _part(first: int, patients: int) -> list[Note]:
    return [note for note in simulate_notes(patients, 0, first=first) if note.codes]


def divide(notes: list[Note], seed: int) -> list[Note]:
    """The notes with their splits: all of a patient's in one."""
    patients = sorted({note.patient for note in notes})
    order = np.random.default_rng([seed, 1]).permutation(len(patients))
    split = {patients[i]: "train" if r < 0.7 else "dev" if r < 0.8 else "test" for i, r in zip(order, _ranks(patients))}
    return [replace(note, split=split[note.patient]) for note in notes]


def _ranks(items: list) -> np.ndarray:
    return np.arange(len(items)) / len(items)


def without(note: Note, codes: set[Code]) -> Note:
    """The note without some of its codes, unless it is a test note."""
    if note.split == "test":
        return note
    return replace(note, codes=tuple(code for code in note.codes if code not in codes), evidence=())


def run_seed(notes: list[Note], seed: int, arguments: argparse.Namespace) -> dict:
    """The results of all arms on one split of the notes; arms in the seed's file are not run again."""
    path = arguments.out.with_name(f"{arguments.out.stem}_{seed}.json")
    settings = {"patients": arguments.patients, "epochs": arguments.epochs, "settings": arguments.settings}
    results = json.loads(path.read_text()) if path.exists() else settings
    if not results.items() >= settings.items():
        raise SystemExit(f"{path} has arms with other patients, epochs or settings; name another file with --out")
    notes = divide(notes, seed)
    nine = [note for note in notes if note.codes[0].system.startswith("icd9") and note.split == "train"]
    ten = [note for note in notes if note.codes[0].system.startswith("icd10")]
    codes = sorted({code for note in ten for code in note.codes})
    hidden = {codes[i] for i in np.random.default_rng([seed, 2]).choice(len(codes), len(codes) // 20, replace=False)}
    counts = Counter(code for note in ten for code in note.codes)
    results |= {
        "icd9_train_notes": len(nine),
        "icd10_notes": dict(Counter(note.split for note in ten)),
        "icd10_codes": len(codes),
        "rare_codes": sum(counts[code] < 10 for code in codes),
        "hidden_codes": len(hidden),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = _write(ten, folder / "whole")
        seen = _write([note for note in (without(note, hidden) for note in ten) if note.codes], folder / "ten")
        old = _write(nine, folder / "nine")
        unseen = dict(zip(UNSEEN, (hidden, {code for code in hidden if counts[code] < 10})))
        for name, chosen in unseen.items():
            results[f"{name}_by_frequency"] = _by_frequency(whole, chosen, counts)
        n = sum(note.split == "train" for note in ten)
        longer = {
            "icd10_long": round(arguments.epochs * (n + len(nine)) / n),
            "large_batch_long": LARGE * arguments.epochs,
        }
        for arm in arguments.arms:
            if arm in results:
                continue
            changed = [
                *arguments.settings,
                f"seed={seed}",
                f"training.epochs={longer.get(arm, arguments.epochs)}",
            ]
            recipe = load_recipe("linear", [f"seed={seed}"]) if arm == "linear" else load_recipe("dual_laat", changed)
            if arm.startswith("large_batch"):
                usual = recipe.training
                scaled = {"batch": LARGE * usual.batch, "learning_rate": math.sqrt(LARGE) * usual.learning_rate}
                if arm == "large_batch_long":  # its epochs have few steps
                    scaled["patience"] = LARGE * usual.patience
                recipe = recipe.model_copy(update={"training": usual.model_copy(update=scaled)})
            started = time.monotonic()
            bundle = train(recipe, [seen, old] if arm == "mixed" else [seen], folder / arm)
            provenance = bundle.provenance
            row = {"seconds": time.monotonic() - started, "train_notes": provenance["n_train"]} | provenance["found"]
            for chosen in arguments.sets:
                measured = measure(bundle, whole, "test", folder / "r", codes=chosen, tune=True).evaluation
                row[chosen] = {key: measured.metrics[key] for key in SHOWN}
                if chosen == "rare":
                    row["rare_counts"] = note_counts(measured)
            if arm != "linear":
                for name, chosen in unseen.items():
                    ranked = measure(bundle, whole, "test", folder / "r", codes=chosen).evaluation
                    row[f"{name}_map"] = ranked.metrics["map"]
            results[arm] = row
            write_json(path, results)
            print(f"seed {seed} {arm}: {json.dumps(row | {'rare_counts': None})}", flush=True)
    return results


def note_counts(evaluation: Evaluation) -> list[list[int]]:
    """Right, predicted and true codes of each note."""
    gold, predicted = evaluation.scored.gold, evaluation.predicted
    return np.stack([np.diff(m.tocsr().indptr) for m in (gold.multiply(predicted), predicted, gold)], axis=1).tolist()


def swapped(first: list[list[int]], second: list[list[int]], times: int = 10_000) -> float:
    """The share of random swaps, note by note, after which two coders' micro F1 differ as much as they do."""
    a, b = np.array(first, dtype=float), np.array(second, dtype=float)

    def gap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return 2 * one[..., 0] / (one[..., 1] + one[..., 2]) - 2 * other[..., 0] / (other[..., 1] + other[..., 2])

    moved = np.random.default_rng(0).integers(0, 2, (times, len(a))) @ (b - a)
    far = np.abs(gap(a.sum(0) + moved, b.sum(0) - moved)) >= abs(gap(a.sum(0), b.sum(0))) - 1e-12
    return float((far.sum() + 1) / (times + 1))


def _write(notes: list[Note], folder: Path) -> Corpus:
    return write_corpus(notes, folder, source={"kind": "simulated"}, filters=[], counts={})


def _by_frequency(corpus: Corpus, hidden: set[Code], counts: Counter) -> float:
    """The MAP of ranking the hidden codes of each test note by their number of notes."""
    labels = LabelSpace(sorted(hidden))
    gold = [[code for code in note.codes if code in hidden] for note in corpus.notes("test", text=False)]
    gold = [codes for codes in gold if codes]
    often = np.array([counts[code] for code in labels.codes], dtype=np.float32)
    scores = np.broadcast_to(often / (1 + often.max()), (len(gold), len(labels))).copy()
    return evaluate(labels, gold, scores, 0.5)["map"]


def summary(seeds: list[dict]) -> dict:
    """Means over the seeds, and what the ICD-9 notes add."""
    table: dict = {}
    for arm in ARMS:
        rows = [results[arm] for results in seeds if arm in results]
        if not rows:
            continue
        table[arm] = {f"{s} {key}": _mean([r[s][key] for r in rows]) for s in SETS if s in rows[0] for key in SHOWN}
        if arm != "linear":
            table[arm] |= {f"{name}_map": _mean([row[f"{name}_map"] for row in rows]) for name in UNSEEN}
    for name in UNSEEN:
        table[f"{name}_by_frequency"] = _mean([results[f"{name}_by_frequency"] for results in seeds])
    for first, second in COMPARED:
        if first in table and second in table:
            table[f"{first} against {second}, rare micro F1"] = _compared(seeds, first, second)
    return table


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def _compared(seeds: list[dict], first: str, second: str) -> dict:
    """The relative gain, Student's t over the seeds, and for each seed the test by swapping notes."""
    pairs = [[results[arm]["rare"]["micro_f1"] for results in seeds] for arm in (first, second)]
    result: dict = {"relative gain": _mean(pairs[0]) / _mean(pairs[1]) - 1}
    if len(seeds) > 1:
        result["p over seeds"] = paired_t_test(*pairs).p
    result["p of each seed"] = [
        swapped(results[first]["rare_counts"], results[second]["rare_counts"]) for results in seeds
    ]
    return result


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], fromfile_prefix_chars="@")
    parser.add_argument("--patients", type=int, default=9_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained side by side")
    parser.add_argument("--arms", nargs="+", default=["icd10", "icd10_long", "mixed"], choices=ARMS)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    started = time.monotonic()
    notes = hospital(arguments.patients)
    print(f"{len(notes)} notes simulated in {time.monotonic() - started:.0f} s", flush=True)
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(run_seed, notes, seed, arguments) for seed in range(arguments.seeds)]
        seeds = [job.result() for job in jobs]
    table = summary(seeds)
    print(json.dumps(table, indent=2))
    settings = {"patients": arguments.patients, "epochs": arguments.epochs, "settings": arguments.settings}
    write_json(arguments.out, settings | {"summary": table})


if __name__ == "__main__":
    main()
