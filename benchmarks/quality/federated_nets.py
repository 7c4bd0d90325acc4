"""Pooled against federated training of a net: python benchmarks/quality/federated_nets.py --patients N

A simulated hospital of 2016 to 2019 with ICD-10-CM codes, divided by patient (70/10/20). The rows are: `nosology train`
on the pooled notes (`pooled`), the same with the word vectors and the codes of the federation (`pooled, same start`:
random vectors, codes with `federation.min_notes` notes), and federations of 5 sites that are iid, of different size,
and skewed by Dirichlet. All rows are evaluated on the same test notes; thresholds are tuned on dev. Columns: micro F1,
MAP, difference of micro F1 from `pooled`, bytes of a round to and from all sites, seconds. 2,450 patients have about
4,000 notes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nosology.config import load_recipe
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.evaluation.measure import measure
from nosology.federated.rounds.simulation import partition_sites, run_simulation
from nosology.models.bundle import Bundle
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_federated_nets.json"
SKEWS = {"iid": ("iid", 1.0), "size": ("size", 1.0), "dirichlet 0.5": ("dirichlet", 0.5)}
SPLITS = (("train", 0.7), ("dev", 0.8), ("test", 1.0))


def build_corpus(patients: int, most: int, folder: Path) -> Corpus:
    """The simulated notes with their ICD-10-CM codes; most: only the most frequent codes of train, 0: all."""
    notes = [note for note in simulate_notes(patients, 2, years=(2016, 2019)) if note.codes]
    order = np.random.default_rng(2).permutation(sorted({note.patient for note in notes})).tolist()
    rank = {patient: i / len(order) for i, patient in enumerate(order)}
    notes = [
        replace(
            note,
            split=next(name for name, end in SPLITS if rank[note.patient] < end),
            codes=tuple(code for code in note.codes if code.system == "icd10cm"),
            evidence=(),
        )
        for note in notes
    ]
    counts = Counter(code for note in notes if note.split == "train" for code in note.codes)
    kept = {code for code, _ in counts.most_common(most or None)}
    notes = [replace(note, codes=tuple(code for code in note.codes if code in kept)) for note in notes]
    return write_corpus(notes, folder, source={"kind": "benchmark"}, filters=[], counts={})


class Rows:
    """The table of results."""

    def __init__(self, corpus: Corpus, folder: Path):
        self.corpus, self.folder = corpus, folder
        self.rows: dict[str, dict[str, float | None]] = {}

    def add(self, name: str, bundle: Bundle, seconds: float, cpu: float, history: list[dict] | None = None) -> None:
        """Adds a row and prints it."""
        metrics = measure(bundle, self.corpus, "test", self.folder / "report").evaluation.metrics
        row = {"micro_f1": metrics["micro_f1"], "map": metrics["map"], "codes": len(bundle.model.labels)}
        row["minus_pooled"] = metrics["micro_f1"] - self.rows.get("pooled", row)["micro_f1"]
        for way in ("bytes_to_sites", "bytes_from_sites"):
            row[way] = history[0][way] if history else None  # of a round without evaluation
        self.rows[name] = row | {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
        print(name, json.dumps(self.rows[name]), flush=True)


def read_history(bundle: Path) -> list[dict[str, int]]:
    """The bytes of each round."""
    header, *rows = [line.split(",") for line in (bundle / "history.csv").read_text().splitlines()]
    columns = [header.index(name) for name in ("bytes_to_sites", "bytes_from_sites")]
    return [{header[column]: int(row[column]) for column in columns} for row in rows]


def main() -> None:
    """Prints the table and adds it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patients", type=int, required=True)
    parser.add_argument("--recipe", default="dual_laat")
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--most", type=int, default=0, help="codes, those of most train notes; 0: all")
    parser.add_argument("--skews", nargs="+", default=list(SKEWS), choices=list(SKEWS))
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = build_corpus(options.patients, options.most, folder / "corpus")
        rows, settings = Rows(corpus, folder), options.settings
        federated = load_recipe(options.recipe, settings)
        same = [*settings, "vectors.epochs=0", f"labels.min_notes={federated.federation.min_notes}"]
        for name, changed in (("pooled", settings), ("pooled, same start", same)):
            started, cpu = time.monotonic(), time.process_time()
            bundle = train(load_recipe(options.recipe, changed), [corpus], folder / name)
            rows.add(name, bundle, time.monotonic() - started, time.process_time() - cpu)
        for skew in options.skews:
            sites = partition_sites([corpus], options.sites, *SKEWS[skew], federated.seed)
            started, cpu, out = time.monotonic(), time.process_time(), folder / skew
            bundle = run_simulation([corpus], sites, federated, out, "flower", print)
            name = f"{options.sites} sites, {skew}"
            rows.add(name, bundle, time.monotonic() - started, time.process_time() - cpu, read_history(out))
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    key = f"{options.recipe}, {options.patients} patients" + (f", {options.most} codes" if options.most else "")
    about = {
        "notes": len(corpus),
        "settings": settings,
        "federation": federated.federation.model_dump(mode="json"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
    }
    write_json(options.out, results | {key: about | {"rows": rows.rows}})


if __name__ == "__main__":
    main()
