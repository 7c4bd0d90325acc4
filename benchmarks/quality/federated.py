"""Central against federated training of a head: python benchmarks/quality/federated.py --codiesp FOLDER | --patients N

CodiEsp English (train -> dev), or a simulated hospital of 2016 to 2019 divided by patient (70/10/20); the built-in
embedder, one head, 20 sites, 100 rounds. Each row is a way to train: the linear coder on the pooled notes, the head on
the pooled notes (`central`), and federations of sites that are alike, of unlike size, and skewed by Dirichlet(0.5) and
(0.1), the last also with FedProx and FedAdam; `fedadam over sgd` has one plain step a site in the place of AdamW.
All are measured on the same notes. On CodiEsp the threshold is found on the notes that are measured, as is usual there;
on the simulated hospital on dev. --most keeps the codes of most train notes alone: paper 000 asks for ten notes of each
code at each site, which rare codes cannot have. --seeds repeats all with other sites and weights; the table has means,
and for each federation the difference from the central row, mean, least and most.
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
from nosology.federated.rounds.federation_server import run_federation
from nosology.federated.rounds.simulation import dealt_sites, grid_of, simulated_sites
from nosology.federated.rounds.stacked import run_stacked
from nosology.models.bundle import Bundle
from nosology.models.train import train

RESULT = Path(__file__).parents[1] / "results" / "quality_federated.json"
SHOWN = ("micro_f1", "macro_f1", "map")
ADAM = ["federation.strategy=fedadam", "federation.server_rate=0.005"]
WAYS = {  # name: skew, alpha, settings
    "iid": ("iid", 1.0, []),
    "unlike size": ("size", 1.0, []),
    "dirichlet 0.5": ("dirichlet", 0.5, []),
    "dirichlet 0.1": ("dirichlet", 0.1, []),
    "dirichlet 0.1, fedprox": ("dirichlet", 0.1, ["federation.strategy=fedprox", "federation.mu=0.1"]),
    "dirichlet 0.1, fedadam": ("dirichlet", 0.1, ADAM),
    "iid, fedadam over sgd": ("iid", 1.0, [*ADAM, "federation.optimizer=sgd"]),
    "dirichlet 0.1, fedadam over sgd": ("dirichlet", 0.1, [*ADAM, "federation.optimizer=sgd"]),
}


def corpus_of(asked: argparse.Namespace, folder: Path) -> tuple[Corpus, str]:
    """The notes, and the split that is measured."""
    if asked.codiesp:
        notes = [n for s in ("train", "dev") for n in read_notes(asked.codiesp / f"codiesp_en_{s}.jsonl")]
        split = "dev"
    else:
        made = [note for note in simulate_notes(asked.patients, 2, years=(2016, 2019)) if note.codes]
        order = np.random.default_rng(2).permutation(sorted({note.patient for note in made})).tolist()
        rank = {patient: i / len(order) for i, patient in enumerate(order)}
        place = {p: "train" if r < 0.7 else "dev" if r < 0.8 else "test" for p, r in rank.items()}
        notes, split = [replace(note, split=place[note.patient]) for note in made], "test"
    counts = Counter(c for n in notes if n.split == "train" for c in n.codes if c.system == "icd10cm")
    kept = {code for code, _ in counts.most_common(asked.most)} if asked.most else None
    chosen = [tuple(c for c in n.codes if (c in kept if kept else c.system == "icd10cm")) for n in notes]
    diagnoses = [replace(note, codes=codes, evidence=()) for note, codes in zip(notes, chosen)]
    return write_corpus(diagnoses, folder, source={"kind": "benchmark"}, filters=[], counts={}), split


def run_seed(corpus: Corpus, split: str, seed: int, asked: argparse.Namespace, folder: Path) -> dict[str, dict]:
    """All ways with one seed."""
    told = [f"seed={seed}", f"federation.rounds={asked.rounds}", *asked.settings]
    found = {}

    def row(name: str, bundle: Bundle, seconds: float) -> None:
        metrics = measure(bundle, corpus, split, folder / "report").evaluation.metrics
        found[name] = {key: metrics[key] for key in SHOWN} | {"seconds": seconds}
        print(f"seed {seed} {name:32}" + "".join(f"  {k} {v:.4f}" for k, v in found[name].items()), flush=True)

    for name in ("linear", "central"):
        started = time.monotonic()
        recipe = load_recipe("linear", [f"seed={seed}"]) if name == "linear" else load_recipe(asked.recipe, told)
        bundle = train(recipe, [corpus], folder / name)
        row(name, bundle, time.monotonic() - started)
    for name in asked.ways:
        skew, alpha, changed = WAYS[name]
        small = [f"federation.{key}=1" for key in ("min_site_notes", "min_notes")]
        small += [f"federation.{key}={min(10, asked.sites)}" for key in ("min_sites", "quorum")]
        recipe = load_recipe(asked.recipe, [*told, *small, *changed])
        sites = simulated_sites([corpus], dealt_sites([corpus], asked.sites, skew, alpha, seed), recipe, asked.cache)
        started = time.monotonic()
        if recipe.federation.strategy in ("fedavg", "fedprox") and torch.cuda.is_available():  # the same, faster
            bundle = run_stacked(sites, recipe, folder / name)
        else:
            bundle = run_federation(grid_of(sites), recipe, folder / name).bundle
        row(name, bundle, time.monotonic() - started)
    return found


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
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--cache", type=Path, required=True, help="the folder of the vectors; kept")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    seeds = []
    changed = list(asked.settings)
    asked.settings = [*changed, f"vectors.cache='{asked.cache}'"]
    with tempfile.TemporaryDirectory() as name:
        corpus, split = corpus_of(asked, Path(name) / "corpus")
        for seed in range(asked.seeds):
            seeds.append(run_seed(corpus, split, seed, asked, Path(name) / str(seed)))
    table = {}
    for way in seeds[0]:
        table[way] = {key: float(np.mean([found[way][key] for found in seeds])) for key in (*SHOWN, "seconds")}
        gaps = [found[way]["micro_f1"] - found["central"]["micro_f1"] for found in seeds]
        table[way]["micro F1 against central"] = [float(np.mean(gaps)), min(gaps), max(gaps)]
    print(json.dumps(table, indent=2))
    results = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    key = "codiesp" if asked.codiesp else f"simulated hospital, {asked.patients} patients"
    key += f", {asked.most} codes" if asked.most else ""
    told = {
        "recipe": asked.recipe,
        "settings": changed,
        "sites": asked.sites,
        "rounds": asked.rounds,
        "notes": len(corpus),
    }
    write_json(asked.out, results | {key: told | {"seeds": asked.seeds, "rows": table}})


if __name__ == "__main__":
    main()
