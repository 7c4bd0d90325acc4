"""Overhead of Flower in a simulated round: python benchmarks/speed/federation.py [--sites 20] [--notes 1000]

Compares a round on the in-process grid (messages, validation, strategy, checkpoint) with the bare loop: `train_epochs`
at each site and a weighted mean in numpy. Both alternate in one process. Times are processor seconds, so that other
processes matter less; the ratio is the result.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from nosology.core import Code
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.federation_setup import embedder_key
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.federated.rounds.local_training import loop_settings, round_epochs
from nosology.federated.rounds.messages import from_record, to_record
from nosology.federated.rounds.simulation import simulation_grid
from nosology.models.heads.heads_net import CodedVectors, build_head, train_epochs

RESULTS = Path(__file__).parents[1] / "results" / "speed_federation_overhead.json"
GOAL = 1.3


def make_hospitals(sites: int, notes: int, dim: int, codes: int) -> list[HeadsSite]:
    """Sites with random vectors and, of each note, about 15 codes; every code is at every site."""
    rng = np.random.default_rng(0)
    names = [Code("icd10cm", f"A{i:04d}") for i in range(codes)]
    hospitals = []
    for site in range(sites):
        chosen = rng.random((notes, codes)) < 15 / codes
        chosen[np.arange(codes) % notes, np.arange(codes)] = True
        coded = [tuple(names[j] for j in np.flatnonzero(row)) for row in chosen]
        train = CodedVectors(rng.normal(size=(notes, dim)).astype(np.float32), coded)
        few = CodedVectors(train.vectors[:8], coded[:8])
        parts = {"train": train, "dev": few, "test": few}
        identity = {"model": "random", "dim": dim}
        hospitals.append(
            HeadsSite(f"site-{site:02d}", identity, embedder_key(identity), parts, device=torch.device("cpu"))
        )
    return hospitals


def bare_round(
    sites: list[HeadsSite], recipe: FederatedHeadsRecipe, weights: dict[str, np.ndarray], number: int
) -> None:
    """The arithmetic of a round."""
    settings, net = loop_settings(recipe), build_head(recipe.model, len(sites[0].scaler.mean), len(sites[0].labels), 0)
    start = {name: torch.from_numpy(array) for name, array in weights.items()}
    total = {name: np.zeros_like(array) for name, array in weights.items()}
    notes = sum(len(site.tensors("train")) for site in sites)
    for site in sites:
        net.load_state_dict(start)
        tensors = site.tensors("train")
        train_epochs(net, tensors, settings, round_epochs(recipe.federation, number), seed=recipe.seed)
        for name, tensor in net.state_dict().items():
            total[name] += tensor.numpy() * np.float32(len(tensors) / notes)


def parts(weights: dict[str, np.ndarray]) -> dict[str, float]:
    """Processor milliseconds of the steps for the weights of one site."""
    record = to_record(weights)

    def each(work, times: int = 20) -> float:
        started = time.process_time()
        for _ in range(times):
            work()
        return (time.process_time() - started) / times * 1e3

    return {
        "weights to Flower's arrays (np.save)": each(lambda: to_record(weights)),
        "Flower's arrays to weights (np.load)": each(lambda: from_record(record)),
        "checking for NaN": each(lambda: [np.isfinite(array).all() for array in weights.values()]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("sites", 20), ("notes", 1000), ("dim", 1024), ("codes", 650), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    federation = {"rounds": options.rounds + 2, "min_sites": 1, "quorum": 1, "min_notes": 1, "min_site_notes": 1}
    federation |= {"evaluate_every": 10**6}
    recipe = FederatedHeadsRecipe.model_validate({"kind": "heads", "federation": federation})
    sites = make_hospitals(options.sites, options.notes, options.dim, options.codes)
    with_flower: list[float] = []
    bare: list[float] = []
    clock = [0.0]
    first = build_head(recipe.model, options.dim, options.codes, 0).state_dict()
    weights = {name: tensor.numpy() for name, tensor in first.items()}

    def report(line: str) -> None:
        if not line.startswith("round "):
            return
        with_flower.append(time.process_time() - clock[0])
        started = time.process_time()
        bare_round(sites, recipe, weights, len(with_flower))
        bare.append(time.process_time() - started)
        clock[0] = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        FlowerFederation(simulation_grid(sites), recipe, report).run(Path(folder) / "bundle")
    measured = slice(1, -1)  # the first round standardizes the vectors, the last one evaluates
    ratios = [flower / loop for flower, loop in zip(with_flower[measured], bare[measured])]
    size = sum(array.size for array in weights.values())
    result = {
        "parameters": size,
        "sites": options.sites,
        "notes": options.notes,
        "round_s": float(np.median(with_flower[measured])),
        "bare_s": float(np.median(bare[measured])),
        "ratio": float(np.median(ratios)),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "a site, ms": parts(weights),
    }
    print(
        f"{size:,} parameters, {options.sites} sites of {options.notes:,} notes, {options.dim} numbers each, one thread"
    )
    print(f"{'a round through Flower':<42}{result['round_s']:>9.2f} s")
    print(f"{'the bare loop':<42}{result['bare_s']:>9.2f} s")
    print(f"{'ratio (goal: ' + str(GOAL) + ' at most)':<42}{result['ratio']:>9.3f}")
    for name, value in result["a site, ms"].items():
        print(f"{name:<42}{value:>9.2f} ms per site")
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
