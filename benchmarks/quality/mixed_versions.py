"""What ICD-9 years add to a DualLAAT coder for ICD-10: rare codes, codes never seen, and batches of another size.

    python benchmarks/quality/mixed_versions.py --patients 12000 --seeds 3 [--jobs 3] [--arms icd10 mixed large_batch]

A simulated hospital of 2008 to 2019 is divided by patient (70/10/20). Arm `icd10` learns from the ICD-10 notes of the
train patients, `mixed` from their ICD-9 notes as well; both take equally many steps, choose their weights on the same
ICD-10 dev notes and are measured on the same ICD-10 test notes over every ICD-10 code of the data. Rare: under 10 notes
in the whole of the ICD-10 data (paper 001, section 3.1). One ICD-10 code in twenty is taken out of all training notes;
how well the test notes' codes among these are ranked, by description alone, is the zero-shot MAP; beside it stands the
MAP of ranking them by how often they really occur. `large_batch` is `mixed` with batches of 256 instead of 32 and
sqrt(8) times the learning rate. Seeds change the notes' division, the codes taken out and all of the training.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from nosology.codes.label_space import LabelSpace
from nosology.config import load_recipe
from nosology.core import Code, Note
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.evaluation import Evaluation, approximate_randomisation, evaluate, paired_t_test
from nosology.models.measure import measure
from nosology.training.run import train

RESULT = Path(__file__).parents[1] / "results" / "quality_mixed_versions.json"
SHOWN = ("micro_f1", "macro_f1", "map", "p@8")
SETS = ("rare", "frequent", "full")
PART = 250  # patients simulated by one process at a time
LARGE = 256


def hospital(patients: int) -> list[Note]:
    """The notes of the hospital, made by all cores."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        parts = pool.map(_part, range(0, patients, PART), [min(PART, patients)] * math.ceil(patients / PART))
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


def run_seed(notes: list[Note], seed: int, arms: list[str], sets: list[str], settings: list[str], epochs: int) -> dict:
    """All arms on one division of the notes."""
    notes = divide(notes, seed)
    nine = [note for note in notes if note.codes[0].system.startswith("icd9") and note.split == "train"]
    ten = [note for note in notes if note.codes[0].system.startswith("icd10")]
    codes = sorted({code for note in ten for code in note.codes})
    hidden = {codes[i] for i in np.random.default_rng([seed, 2]).choice(len(codes), len(codes) // 20, replace=False)}
    counts = Counter(code for note in ten for code in note.codes)
    found: dict = {
        "icd9_train_notes": len(nine),
        "icd10_notes": dict(Counter(note.split for note in ten)),
        "icd10_codes": len(codes),
        "rare_codes": sum(counts[code] < 10 for code in codes),
        "hidden_codes": len(hidden),
    }
    evaluations: dict[str, Evaluation] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = _write(ten, folder / "whole")
        seen = _write([note for note in (without(note, hidden) for note in ten) if note.codes], folder / "ten")
        old = _write(nine, folder / "nine")
        found["zero_shot_by_frequency"] = _by_frequency(whole, hidden, counts)
        for arm in arms:
            corpora = [seen] if arm == "icd10" else [seen, old]
            n = sum(note.split == "train" for note in ten)
            passes = round(epochs * (n + len(nine)) / n) if arm == "icd10" else epochs  # equally many steps
            changed = [*settings, f"seed={seed}", f"training.epochs={passes}"]
            if arm == "large_batch":
                changed += [f"training.batch={LARGE}", f"training.learning_rate={1e-3 * math.sqrt(LARGE / 32)}"]
            started = time.monotonic()
            bundle = train(load_recipe("dual_laat", changed), corpora, folder / arm)
            row = {
                "seconds": time.monotonic() - started,
                "train_notes": bundle.provenance["n_train"],
            } | bundle.provenance["found"]
            for chosen in sets:
                measured = measure(bundle, whole, "test", folder / "r", codes=chosen, tune=True).evaluation
                row[chosen] = {key: measured.metrics[key] for key in SHOWN}
                if chosen == "rare":
                    evaluations[arm] = measured
            row["zero_shot_map"] = measure(bundle, whole, "test", folder / "r", codes=hidden).evaluation.metrics["map"]
            found[arm] = row
            print(f"seed {seed} {arm}: {json.dumps(row)}", flush=True)
        if {"icd10", "mixed"} <= evaluations.keys():
            gap = approximate_randomisation(evaluations["mixed"], evaluations["icd10"], "micro_f1")
            found["rare_micro_f1_p"] = gap.p
    return found


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
    for arm in ("icd10", "mixed", "large_batch"):
        rows = [found[arm] for found in seeds if arm in found]
        if rows:
            table[arm] = {
                f"{s} {key}": float(np.mean([r[s][key] for r in rows])) for s in SETS if s in rows[0] for key in SHOWN
            }
            table[arm]["zero_shot_map"] = float(np.mean([row["zero_shot_map"] for row in rows]))
    table["zero_shot_by_frequency"] = float(np.mean([found["zero_shot_by_frequency"] for found in seeds]))
    if "icd10" in table and "mixed" in table:
        key = "rare micro_f1"
        table["rare_micro_f1_gain"] = table["mixed"][key] / table["icd10"][key] - 1
        if len(seeds) > 1:
            pairs = [[found[arm]["rare"]["micro_f1"] for found in seeds] for arm in ("mixed", "icd10")]
            test = paired_t_test(*pairs)
            table["rare_micro_f1_t_test"] = {"difference": test.value, "p": test.p, "low": test.low, "high": test.high}
    return table


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patients", type=int, default=12_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained side by side")
    parser.add_argument("--arms", nargs="+", default=["icd10", "mixed"], choices=["icd10", "mixed", "large_batch"])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--epochs", type=int, default=10, help="of the mixed arms")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    started = time.monotonic()
    notes = hospital(asked.patients)
    print(f"{len(notes)} notes simulated in {time.monotonic() - started:.0f} s", flush=True)
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        told = (asked.arms, asked.sets, asked.settings, asked.epochs)
        jobs = [pool.submit(run_seed, notes, seed, *told) for seed in range(asked.seeds)]
        seeds = [job.result() for job in jobs]
    table = summary(seeds)
    print(json.dumps(table, indent=2))
    result = {"patients": asked.patients, "epochs": asked.epochs, "settings": asked.settings}
    write_json(asked.out, result | {"summary": table, "seeds": seeds})


if __name__ == "__main__":
    main()
