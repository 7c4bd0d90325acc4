"""Pooled against federated training of a net: python benchmarks/quality/federated_nets.py --patients N

A simulated hospital of 2016 to 2019 with ICD-10-CM codes, divided by patient (70/10/20). The rows are: `nosology train`
on the pooled notes (`pooled`), federations of 5 sites that are iid, of different size, and skewed by Dirichlet, and
pooled training with random word vectors and the codes of the federation (`pooled, random vectors`: codes with
`federation.min_notes` notes). All rows are evaluated on the same test notes; thresholds are tuned on dev. Columns:
micro F1, MAP, difference of micro F1 from `pooled`, bytes of a round to and from all sites, seconds. 2,450 patients
have about 4,000 notes.

Every row is written to the results as soon as it is measured. The same command continues: rows that are there with the
same settings are not measured again, and with `--work FOLDER` a row that was stopped continues after its last epoch or
round. Sites train one after the other in this process, on the GPU if there is one.

docs/federation.md has the figures of 4,000 notes at 5 skewed sites, on one CPU core in 40 minutes:

    python benchmarks/quality/federated_nets.py --patients 2450 --most 200 --skews "dirichlet 0.5" --work WORK \
        --set vectors.max_words=300 --set federation.min_site_notes=2 --set federation.min_notes=2 \
        --set federation.evaluate_every=40
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nosology.config import load_recipe
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.corpora.simulate import simulate_notes
from nosology.evaluation.measure import measure
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.rounds.simulation import partition_sites, run_simulation
from nosology.models.bundle import Bundle
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_federated_nets.json"
SKEWS = {"iid": ("iid", 1.0), "size": ("size", 1.0), "dirichlet 0.5": ("dirichlet", 0.5)}
TRAFFIC = ("bytes_to_sites", "bytes_from_sites")
SPLITS = (("train", 0.7), ("dev", 0.8), ("test", 1.0))


def build_corpus(patients: int, most: int, folder: Path) -> Corpus:
    """The simulated notes with their ICD-10-CM codes; most: only the most frequent codes of train, 0: all."""
    if (folder / "corpus.json").is_file():
        return Corpus.open(folder)
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
    """The table of results: an entry of the results file, written after each row."""

    def __init__(self, path: Path, key: str, about: dict, corpus: Corpus, folder: Path):
        self.path, self.key, self.corpus, self.folder = path, key, corpus, folder
        saved = self._results().get(key, {})
        same = all(saved.get(name) == value for name, value in about.items())
        self.entry = saved if same else about | {"rows": {}}
        self.rows: dict[str, dict[str, float | None]] = self.entry["rows"]

    def _results(self) -> dict:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def add(self, name: str, make: Callable[[Path], tuple[Bundle, dict[str, int]]]) -> None:
        """Adds a row, prints and writes it; a row that is there is only printed. make: bundle and bytes of a round."""
        if name not in self.rows:
            started, cpu = time.monotonic(), time.process_time()
            bundle, traffic = make(self.folder / name)
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
            metrics = measure(bundle, self.corpus, "test", self.folder / "report").evaluation.metrics
            row = {"micro_f1": metrics["micro_f1"], "map": metrics["map"], "codes": len(bundle.model.labels)}
            row["minus_pooled"] = metrics["micro_f1"] - self.rows.get("pooled", row)["micro_f1"]
            row |= dict.fromkeys(TRAFFIC) | traffic
            self.rows[name] = row | {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
            write_json(self.path, self._results() | {self.key: self.entry})
        print(name, json.dumps(self.rows[name]), flush=True)


def first_round(bundle: Path) -> dict[str, int]:
    """The bytes of the first round of the net, which has no evaluation."""
    with (bundle / "history.csv").open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if not row["phase"])
    return {name: int(row[name]) for name in TRAFFIC}


def add_rows(rows: Rows, options: argparse.Namespace, federated: FederatedRecipe) -> None:
    """Measures the rows of the table."""
    corpus, settings = rows.corpus, options.settings
    pooled = load_recipe(options.recipe, settings)
    rows.add("pooled", lambda out: (train(pooled, [corpus], out), {}))
    for skew in options.skews:

        def federate(out: Path, skew: str = skew) -> tuple[Bundle, dict[str, int]]:
            sites = partition_sites([corpus], options.sites, *SKEWS[skew], federated.seed)
            return run_simulation([corpus], sites, federated, out, "flower", print), first_round(out)

        rows.add(f"{options.sites} sites, {skew}", federate)
    if federated.kind != "plant":  # it has no word2vec
        same = [*settings, "vectors.epochs=0", f"labels.min_notes={federated.federation.min_notes}"]
        random_start = load_recipe(options.recipe, same)
        rows.add("pooled, random vectors", lambda out: (train(random_start, [corpus], out), {}))


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
    parser.add_argument("--work", type=Path, help="folder for what a stopped run needs to continue")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        corpus = build_corpus(options.patients, options.most, folder / "corpus")
        federated = load_recipe(options.recipe, options.settings)
        key = f"{options.recipe}, {options.patients} patients" + (f", {options.most} codes" if options.most else "")
        about = {
            "notes": len(corpus),
            "settings": options.settings,
            "federation": federated.federation.model_dump(mode="json"),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        }
        add_rows(Rows(options.out, key, about, corpus, folder), options, federated)


if __name__ == "__main__":
    main()
