"""Central against federated training of a head: python benchmarks/quality/federated.py --codiesp FOLDER | --patients N

CodiEsp English (train -> dev), or a simulated hospital of 2016 to 2019 divided by patient (70/10/20); the built-in
embedder, one head, 20 sites, 100 rounds. The rows are: the linear coder and the head on the pooled notes (`linear`,
`central`), and federations of sites that are iid, of different size, and skewed by Dirichlet(0.5) and (0.1), the last
also with FedProx, FedAdam and FedSGD. All rows are evaluated on the same notes. On CodiEsp the threshold is tuned on
the evaluated notes, as is usual there; on the simulated hospital it is tuned on dev. --most uses only the most frequent
codes of train: Xu and Dray (2025) demand ten notes of each code at each site, which rare codes do not have. --seeds
repeats all with other sites and weights; the table has means, and for each federation the difference from the central
row (mean, least, most).
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
from nosology.corpora.notes_file import read_notes
from nosology.corpora.simulate import simulate_notes
from nosology.evaluation.measure import measure
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.simulation import partition_sites, simulated_sites, simulation_grid
from nosology.federated.rounds.vectorized import VectorizedFederation
from nosology.models.bundle import Bundle
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_federated.json"
SHOWN = ("micro_f1", "macro_f1", "map")
ADAM = ["federation.strategy=fedadam", "federation.server_learning_rate=0.005"]
PARTITIONS = {  # name: skew, alpha, settings
    "iid": ("iid", 1.0, []),
    "size": ("size", 1.0, []),
    "dirichlet 0.5": ("dirichlet", 0.5, []),
    "dirichlet 0.1": ("dirichlet", 0.1, []),
    "dirichlet 0.1, fedprox": ("dirichlet", 0.1, ["federation.strategy=fedprox", "federation.mu=0.1"]),
    "dirichlet 0.1, fedadam": ("dirichlet", 0.1, ADAM),
    "iid, fedsgd": ("iid", 1.0, [*ADAM, "federation.optimizer=fedsgd"]),
    "dirichlet 0.1, fedsgd": ("dirichlet", 0.1, [*ADAM, "federation.optimizer=fedsgd"]),
}


def build_corpus(options: argparse.Namespace, folder: Path) -> tuple[Corpus, str]:
    """The corpus and its evaluated split."""
    if options.codiesp:
        notes = [n for s in ("train", "dev") for n in read_notes(options.codiesp / f"codiesp_en_{s}.jsonl")]
        split = "dev"
    else:
        simulated = [note for note in simulate_notes(options.patients, 2, years=(2016, 2019)) if note.codes]
        order = np.random.default_rng(2).permutation(sorted({note.patient for note in simulated})).tolist()
        rank = {patient: i / len(order) for i, patient in enumerate(order)}
        split_of = {p: "train" if r < 0.7 else "dev" if r < 0.8 else "test" for p, r in rank.items()}
        notes, split = [replace(note, split=split_of[note.patient]) for note in simulated], "test"
    counts = Counter(c for n in notes if n.split == "train" for c in n.codes if c.system == "icd10cm")
    frequent = {code for code, _ in counts.most_common(options.most)} if options.most else None
    chosen = [tuple(c for c in n.codes if (c in frequent if frequent else c.system == "icd10cm")) for n in notes]
    diagnoses = [replace(note, codes=codes, evidence=()) for note, codes in zip(notes, chosen)]
    return write_corpus(diagnoses, folder, source={"kind": "benchmark"}, filters=[], counts={}), split


def run_seed(corpus: Corpus, split: str, seed: int, options: argparse.Namespace, folder: Path) -> dict[str, dict]:
    """All rows with one seed."""
    settings = [f"seed={seed}", f"federation.rounds={options.rounds}", *options.settings]
    rows = {}

    def row(name: str, bundle: Bundle, seconds: float) -> None:
        metrics = measure(bundle, corpus, split, folder / "report").evaluation.metrics
        rows[name] = {key: metrics[key] for key in SHOWN} | {"seconds": seconds}
        print(f"seed {seed} {name:32}" + "".join(f"  {k} {v:.4f}" for k, v in rows[name].items()), flush=True)

    for name in ("linear", "central"):
        started = time.monotonic()
        recipe = load_recipe("linear", [f"seed={seed}"]) if name == "linear" else load_recipe(options.recipe, settings)
        bundle = train(recipe, [corpus], folder / name)
        row(name, bundle, time.monotonic() - started)
    for name in options.rows:
        skew, alpha, changed = PARTITIONS[name]
        small = [f"federation.{key}=1" for key in ("min_site_notes", "min_notes")]
        small += [f"federation.{key}={min(10, options.sites)}" for key in ("min_sites", "quorum")]
        recipe = load_recipe(options.recipe, [*settings, *small, *changed])
        sites = simulated_sites(
            [corpus], partition_sites([corpus], options.sites, skew, alpha, seed), recipe, options.cache
        )
        started = time.monotonic()
        if recipe.federation.strategy in ("fedavg", "fedprox") and torch.cuda.is_available():  # the same, faster
            bundle = VectorizedFederation(sites, recipe).run(folder / name).bundle
        else:
            bundle = FlowerFederation(simulation_grid(sites), recipe).run(folder / name).bundle
        row(name, bundle, time.monotonic() - started)
    return rows


def add_rows(path: Path, key: str, about: dict, rows: dict[str, dict]) -> None:
    """Writes rows under a key of a result file; other rows of the key stay if they were measured in the same way."""
    results = json.loads(path.read_text()) if path.exists() else {}
    before = dict(results.get(key, {}))
    kept = before.pop("rows", {})
    write_json(path, results | {key: about | {"rows": (kept if before == about else {}) | rows}})


def main() -> None:
    """Prints the table and adds it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--codiesp", type=Path, help="the folder of codiesp_en_train.jsonl and codiesp_en_dev.jsonl")
    data.add_argument("--patients", type=int, help="of a simulated hospital")
    parser.add_argument("--most", type=int, default=0, help="codes, those of most train notes; 0: all")
    parser.add_argument("--recipe", default="heads-mlp")
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=list(PARTITIONS), choices=list(PARTITIONS))
    parser.add_argument("--cache", type=Path, required=True, help="the folder of the vectors; reused by later runs")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    seeds = []
    changed = list(options.settings)
    options.settings = [*changed, f"vectors.cache='{options.cache}'"]
    with tempfile.TemporaryDirectory() as name:
        corpus, split = build_corpus(options, Path(name) / "corpus")
        for seed in range(options.seeds):
            seeds.append(run_seed(corpus, split, seed, options, Path(name) / str(seed)))
    table = {}
    for way in seeds[0]:
        table[way] = {key: float(np.mean([rows[way][key] for rows in seeds])) for key in (*SHOWN, "seconds")}
        gaps = [rows[way]["micro_f1"] - rows["central"]["micro_f1"] for rows in seeds]
        table[way]["micro F1 against central"] = [float(np.mean(gaps)), min(gaps), max(gaps)]
    print(json.dumps(table, indent=2))
    key = "codiesp" if options.codiesp else f"simulated hospital, {options.patients} patients"
    key += f", {options.most} codes" if options.most else ""
    about = {
        "recipe": options.recipe,
        "settings": changed,
        "sites": options.sites,
        "rounds": options.rounds,
        "notes": len(corpus),
        "seeds": options.seeds,
    }
    add_rows(options.out, key, about, table)


if __name__ == "__main__":
    main()
