"""The two simulation engines, flower and vectorized: python benchmarks/speed/federation_engines.py

20 sites of 6,000 notes (vectors of 1,024 numbers, 1,085 codes, batch 64, one hidden layer of 896), 100 rounds of one
epoch, FedAvg. Prints the seconds of both, and the largest difference between their weights. In single precision
rounding errors grow from round to round, in double precision they do not. --flower or --vectorized runs one engine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from nosology.config import load_recipe
from nosology.core import Code
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.federation_loop import Report
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.federation_setup import embedder_key
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.simulation import simulation_grid
from nosology.federated.rounds.vectorized import VectorizedFederation
from nosology.models.bundle import Bundle
from nosology.models.heads.heads_net import CodedVectors
from nosology.training import cuda_graphs

RESULT = Path(__file__).parents[1] / "results" / "speed_federation_engines.json"
CODES = [Code("icd10cm", f"{letter}{number:02d}") for letter in "ABCDEFGHIJK" for number in range(100)]


def sites(number: int, notes: int, dim: int, labels: int, device: str) -> list[HeadsSite]:
    """Sites whose codes follow from their vectors, with some dev notes."""
    directions = np.random.default_rng(0).normal(size=(dim, labels)).astype(np.float32) / np.sqrt(dim)
    hospitals = []
    for i in range(number):
        rng = np.random.default_rng(i + 1)
        parts = {}
        for split, size in (("train", notes), ("dev", 200), ("test", 0)):
            vectors = rng.normal(size=(size, dim)).astype(np.float32)
            true = vectors @ directions + rng.normal(0, 0.5, (size, labels)).astype(np.float32) > 2.6
            parts[split] = CodedVectors(vectors, [tuple(CODES[j] for j in np.flatnonzero(row)) for row in true])
        identity = {"model": "none", "dim": dim}
        hospitals.append(
            HeadsSite(f"site-{i:02d}", identity, embedder_key(identity), parts, None, torch.device(device))
        )
    return hospitals


def run_flower(hospitals: list[HeadsSite], recipe: FederatedHeadsRecipe, out: Path, report: Report) -> Bundle:
    """The bundle of the Flower engine."""
    return FlowerFederation(simulation_grid(hospitals), recipe, report).run(out).bundle


def run_vectorized(hospitals: list[HeadsSite], recipe: FederatedHeadsRecipe, out: Path, report: Report) -> Bundle:
    """The bundle of the vectorized engine."""
    return VectorizedFederation(hospitals, recipe, report).run(out).bundle


def largest_difference(first: dict, second: dict) -> float:
    """The largest difference of a weight."""
    return max(float(np.abs(np.asarray(first[name]) - np.asarray(second[name])).max()) for name in first)


def graph_difference(site: HeadsSite, bundle: Bundle, recipe: FederatedHeadsRecipe) -> float:
    """The largest difference after a round at one site with and without CUDA graphs."""
    weights = {name: value.double().numpy() for name, value in bundle.model.net.state_dict().items()}
    graphed = site.train(weights, recipe, 1).arrays
    with mock.patch.object(cuda_graphs, "_MIN_CALLS", 10**9):
        return largest_difference(graphed, site.train(weights, recipe, 1).arrays)


def main() -> None:
    """Prints the times and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--notes", type=int, default=6000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--labels", type=int, default=1085)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--precision", choices=("fp32", "fp64"), default="fp64")
    parser.add_argument("--flower", action="store_true", help="only this engine")
    parser.add_argument("--vectorized", action="store_true", help="only this engine")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    federation = {"rounds": options.rounds, "evaluate_every": options.rounds, "min_notes": 1, "min_site_notes": 1}
    federation["min_sites"] = min(options.sites, 10)
    recipe = load_recipe("heads-mlp", [f"training.precision={options.precision}"])
    recipe = recipe.model_copy(update={"federation": type(recipe.federation)(**federation)})
    hospitals = sites(options.sites, options.notes, options.dim, options.labels, device)
    engines = {"vectorized": run_vectorized, "flower": run_flower}
    engines = {
        name: run
        for name, run in engines.items()
        if getattr(options, name) or not (options.flower or options.vectorized)
    }
    result: dict[str, float | str] = {"device": torch.cuda.get_device_name() if device == "cuda" else "CPU"}
    bundles = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, run in engines.items():
            started, work = time.perf_counter(), time.process_time()
            bundles[name] = run(hospitals, recipe, Path(folder) / name, report=print)
            result[f"{name} seconds"] = time.perf_counter() - started
            result[f"{name} CPU seconds"] = time.process_time() - work
            result[f"{name} dev micro F1"] = bundles[name].provenance["found"]["dev_micro_f1"]
    if len(bundles) == 2:
        result["largest difference of a weight"] = largest_difference(
            *(b.model.net.state_dict() for b in bundles.values())
        )
    result["largest difference with CUDA graphs"] = graph_difference(hospitals[0], bundles[name], recipe)
    print(json.dumps(result, indent=2))
    about = {name: getattr(options, name) for name in ("sites", "notes", "dim", "labels", "rounds", "precision")}
    options.out.write_text(json.dumps(about | result, indent=2) + "\n")


if __name__ == "__main__":
    main()
