"""Robust rules against a false site: python benchmarks/quality/federated_attacks.py --patients N

A simulated hospital of 2016 to 2019, divided by patient (70/10/20), at five sites; the third site is false. Attacks:
`labels` (its train and dev notes have each code replaced by another one: the most frequent code by the rarest, and so
on), `scaled` (the change of its weights is multiplied by 10), `flipped` (by -10), `inverted` (by -1). Rules: the
weighted mean (fedavg), the mean of updates no longer than the median norm, trimmed mean, median, Krum, Multi-Krum. A
head learns from hashed words (hashed_sites.py); other recipes read words. All rows are evaluated on the same true test
notes of all sites, with the threshold that the federation has tuned. The table has means of micro F1 over seeds, which
change sites, first weights and batches. With `--skew dirichlet` sites have other codes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from federated_nets import build_corpus
from hashed_sites import hash_notes, hashed_sites

from nosology.config import load_recipe
from nosology.core import FederationError
from nosology.core.files import write_json
from nosology.corpora.corpus import Corpus, write_corpus
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.learner import LocalSite
from nosology.federated.rounds.simulation import partition_sites, simulated_sites, simulation_grid
from nosology.federated.rounds.site_results import SiteUpdate

RESULT = Path(__file__).parents[1] / "results" / "quality_federated_attacks.json"
RULES = {
    "fedavg": [],
    "norm bound": ["federation.norm_multiple=1"],
    "trimmed mean": ["federation.strategy=trimmed_mean"],
    "median": ["federation.strategy=median"],
    "krum": ["federation.strategy=krum"],
    "multi krum": ["federation.strategy=multi_krum"],
}
FACTORS = {"scaled": 10.0, "flipped": -10.0, "inverted": -1.0}  # of the change of the weights
ATTACKS = ("none", "labels", *FACTORS)
SITES = 5
ALPHA = 0.5  # of --skew dirichlet


def false_labels(corpus: Corpus, sites: dict[str, str], false: str, folder: Path) -> Corpus:
    """The corpus with codes replaced in the train and dev notes of the false site."""
    ranked = [code for code, _ in Counter(c for n in corpus.notes("train", text=False) for c in n.codes).most_common()]
    other = dict(zip(ranked, reversed(ranked)))
    notes = (
        replace(note, codes=tuple(dict.fromkeys(other.get(code, code) for code in note.codes)))
        if sites[note.id] == false and note.split != "test"
        else note
        for note in corpus.notes()
    )
    return write_corpus(notes, folder, source={"kind": "benchmark"}, filters=[], counts={})


def scale_updates(site: LocalSite, factor: float) -> None:
    """Makes a site multiply the change of its weights."""
    train: Callable[..., SiteUpdate] = site.train

    def train_falsely(weights: dict[str, np.ndarray], *arguments: object) -> SiteUpdate:
        update = train(weights, *arguments)
        changes = {name: update.arrays[name] - before for name, before in weights.items()}
        scaled = {name: before + before.dtype.type(factor) * changes[name] for name, before in weights.items()}
        return replace(update, arrays=scaled)

    site.train = train_falsely


def make_sites(
    corpus: Corpus, vectors: np.ndarray, names: dict[str, str], recipe: FederatedRecipe, folder: Path
) -> Sequence[LocalSite]:
    """The sites of a corpus; vectors: of its notes, for heads."""
    if recipe.kind == "heads":
        return hashed_sites(list(corpus.notes()), vectors, names)
    return simulated_sites([corpus], names, recipe, folder)


def run_seed(
    corpus: Corpus, vectors: np.ndarray, seed: int, options: argparse.Namespace, folder: Path
) -> dict[str, dict[str, float]]:
    """Micro F1 of all rules (first key) and attacks (second key) with one seed."""
    names = partition_sites([corpus], SITES, options.skew, ALPHA, seed)
    false = sorted(set(names.values()))[2]
    flipped = false_labels(corpus, names, false, folder / "flipped")
    common = [f"seed={seed}", f"federation.rounds={options.rounds}", f"federation.evaluate_every={options.rounds}"]
    common += [f"federation.{name}=1" for name in ("min_site_notes", "min_notes")]
    common += [f"federation.{name}={SITES}" for name in ("min_sites", "quorum")]
    scores: dict[str, dict[str, float]] = {}
    for attack in options.attacks:
        for rule in options.rules:
            recipe = load_recipe(options.recipe, [*common, *options.settings, *RULES[rule]])
            used = flipped if attack == "labels" else corpus
            sites = make_sites(used, vectors, names, recipe, folder)
            if attack in FACTORS:
                scale_updates(next(site for site in sites if site.name == false), FACTORS[attack])
            started = time.process_time()
            score = federated_score(sites, recipe, folder / f"{rule} {attack}")
            scores.setdefault(rule, {})[attack] = score
            seconds = time.process_time() - started
            print(f"seed {seed}  {rule:26} {attack:9} micro F1 {score:.4f}  {seconds:.0f} CPU s", flush=True)
    return scores


def federated_score(sites: Sequence[LocalSite], recipe: FederatedRecipe, folder: Path) -> float:
    """Micro F1 on the test notes of all sites; 0 if the attack has made the weights unusable."""
    try:
        bundle = FlowerFederation(simulation_grid(sites), recipe).run(folder).bundle
    except FederationError as error:
        print(error, flush=True)
        return 0.0
    return bundle.provenance["found"]["test"]["micro_f1"]


def main() -> None:
    """Prints the table and adds it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patients", type=int, required=True)
    parser.add_argument("--most", type=int, default=50, help="codes, those of most train notes; 0: all")
    parser.add_argument("--recipe", default="heads-mlp")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--skew", default="iid", choices=("iid", "size", "dirichlet"))
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=ATTACKS)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as in nosology train")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        corpus = build_corpus(options.patients, options.most, Path(name) / "corpus")
        notes, vectors = len(corpus), hash_notes(list(corpus.notes()))
        seeds = [run_seed(corpus, vectors, seed, options, Path(name) / str(seed)) for seed in range(options.seeds)]
    table = {
        rule: {attack: float(np.mean([scores[rule][attack] for scores in seeds])) for attack in options.attacks}
        for rule in options.rules
    }
    print("| " + " | ".join(["rule", *options.attacks]) + " |")
    for rule, row in table.items():
        print("| " + " | ".join([rule, *(f"{score:.3f}" for score in row.values())]) + " |")
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    about = {"recipe": options.recipe, "settings": options.settings, "notes": notes, "codes": options.most}
    about |= {"sites": SITES, "skew": options.skew, "rounds": options.rounds, "seeds": options.seeds}
    key = f"{options.recipe}, {options.skew}, {options.patients} patients"
    old = results.get(key, {}).get("micro_f1", {})  # of other rules and attacks
    merged = old | {rule: old.get(rule, {}) | row for rule, row in table.items()}
    write_json(options.out, results | {key: about | {"micro_f1": merged}})


if __name__ == "__main__":
    main()
