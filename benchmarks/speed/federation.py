"""What Flower costs in a simulated round: python benchmarks/speed/federation.py [--sites 20] [--notes 1000]

A round through the in-process grid (messages, guard, strategy, round on disk) beside the bare loop that does the same
arithmetic: `train_epochs` at each site and a weighted mean in numpy. Both take turns in one process; times are
processor seconds, so that a busy machine matters less, and the ratio is what to look at. The parts below are timed by
themselves.
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
from nosology.federated.rounds.agreement import key_of
from nosology.federated.rounds.federation_server import run_federation
from nosology.federated.rounds.hospital_site import Site, epochs_of, loop_settings
from nosology.federated.rounds.records import from_record, to_record
from nosology.federated.rounds.simulation import grid_of
from nosology.models.heads.coded_vectors import CodedVectors, new_head
from nosology.models.heads.vector_loop import train_epochs

RESULTS = Path(__file__).parents[1] / "results" / "speed_federation_overhead.json"
GOAL = 1.3


def hospitals(sites: int, notes: int, dim: int, codes: int) -> list[Site]:
    """Sites with random vectors and, of each note, about 15 codes; every code is at every site."""
    rng = np.random.default_rng(0)
    names = [Code("icd10cm", f"A{i:04d}") for i in range(codes)]
    made = []
    for site in range(sites):
        chosen = rng.random((notes, codes)) < 15 / codes
        chosen[np.arange(codes) % notes, np.arange(codes)] = True
        coded = [tuple(names[j] for j in np.flatnonzero(row)) for row in chosen]
        train = CodedVectors(rng.normal(size=(notes, dim)).astype(np.float32), coded)
        few = CodedVectors(train.vectors[:8], coded[:8])
        parts = {"train": train, "dev": few, "test": few}
        identity = {"model": "random", "dim": dim}
        made.append(Site(f"site-{site:02d}", identity, key_of(identity), parts, device=torch.device("cpu")))
    return made


def bare_round(sites: list[Site], recipe: FederatedHeadsRecipe, weights: dict[str, np.ndarray], number: int) -> None:
    """The arithmetic of a round and nothing else."""
    settings, net = loop_settings(recipe), new_head(recipe.model, len(sites[0].scaler.mean), len(sites[0].labels), 0)
    start = {name: torch.from_numpy(array) for name, array in weights.items()}
    total = {name: np.zeros_like(array) for name, array in weights.items()}
    notes = sum(len(site.ready("train")) for site in sites)
    for site in sites:
        net.load_state_dict(start)
        ready = site.ready("train")
        train_epochs(net, ready, settings, epochs_of(recipe.federation, number), seed=recipe.seed)
        for name, tensor in net.state_dict().items():
            total[name] += tensor.numpy() * np.float32(len(ready) / notes)


def parts(weights: dict[str, np.ndarray]) -> dict[str, float]:
    """Processor milliseconds of what is done to one site's weights."""
    record = to_record(weights)

    def each(work, times: int = 20) -> float:
        started = time.process_time()
        for _ in range(times):
            work()
        return (time.process_time() - started) / times * 1e3

    return {
        "weights to Flower's arrays (np.save)": each(lambda: to_record(weights)),
        "Flower's arrays to weights (np.load)": each(lambda: from_record(record)),
        "looking for NaN": each(lambda: [np.isfinite(array).all() for array in weights.values()]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("sites", 20), ("notes", 1000), ("dim", 1024), ("codes", 650), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    words = parser.parse_args()
    torch.set_num_threads(1)
    federation = {"rounds": words.rounds + 2, "min_sites": 1, "quorum": 1, "min_notes": 1, "min_site_notes": 1}
    federation |= {"evaluate_every": 10**6}
    recipe = FederatedHeadsRecipe.model_validate({"kind": "heads", "federation": federation})
    sites = hospitals(words.sites, words.notes, words.dim, words.codes)
    with_flower: list[float] = []
    bare: list[float] = []
    clock = [0.0]
    first = new_head(recipe.model, words.dim, words.codes, 0).state_dict()
    weights = {name: tensor.numpy() for name, tensor in first.items()}

    def say(line: str) -> None:
        if not line.startswith("round "):
            return
        with_flower.append(time.process_time() - clock[0])
        started = time.process_time()
        bare_round(sites, recipe, weights, len(with_flower))
        bare.append(time.process_time() - started)
        clock[0] = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        run_federation(grid_of(sites), recipe, Path(folder) / "bundle", say=say)
    measured = slice(1, -1)  # the first round standardises the vectors, the last evaluates
    ratios = [mine / its for mine, its in zip(with_flower[measured], bare[measured])]
    size = sum(array.size for array in weights.values())
    found = {
        "parameters": size,
        "sites": words.sites,
        "notes": words.notes,
        "round_s": float(np.median(with_flower[measured])),
        "bare_s": float(np.median(bare[measured])),
        "ratio": float(np.median(ratios)),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "a site, ms": parts(weights),
    }
    print(f"{size:,} parameters, {words.sites} sites of {words.notes:,} notes, {words.dim} numbers each, one thread")
    print(f"{'a round through Flower':<42}{found['round_s']:>9.2f} s")
    print(f"{'the bare loop':<42}{found['bare_s']:>9.2f} s")
    print(f"{'ratio (goal: ' + str(GOAL) + ' at most)':<42}{found['ratio']:>9.3f}")
    for name, value in found["a site, ms"].items():
        print(f"{name:<42}{value:>9.2f} ms a site")
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
