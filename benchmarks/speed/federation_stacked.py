"""A whole federation on one device, through Flower and as one program: python benchmarks/speed/federation_stacked.py

20 sites of 6,000 notes (vectors of 1,024 numbers, 1,085 codes, batch 64, one hidden layer of 896), 100 rounds of one
epoch, FedAvg. Prints seconds of both, and how far their weights lie apart. In single precision rounding grows from
round to round, in double it does not. --rounds shortens it; --flower and --stacked run one of them alone.
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
from nosology.federated.rounds.agreement import key_of
from nosology.federated.rounds.hospital_site import Site
from nosology.federated.rounds.stacked import run_stacked
from nosology.models.bundle import Bundle
from nosology.models.heads.coded_vectors import CodedVectors
from nosology.training import cuda_graphs as repeated

RESULT = Path(__file__).parents[1] / "results" / "speed_federation_stacked.json"
CODES = [Code("icd10cm", f"{letter}{number:02d}") for letter in "ABCDEFGHIJK" for number in range(100)]


def sites(number: int, notes: int, dim: int, labels: int, device: str) -> list[Site]:
    """Sites with vectors whose codes follow from them, some dev notes beside."""
    lean = np.random.default_rng(0).normal(size=(dim, labels)).astype(np.float32) / np.sqrt(dim)
    made = []
    for i in range(number):
        rng = np.random.default_rng(i + 1)
        parts = {}
        for split, size in (("train", notes), ("dev", 200), ("test", 0)):
            vectors = rng.normal(size=(size, dim)).astype(np.float32)
            true = vectors @ lean + rng.normal(0, 0.5, (size, labels)).astype(np.float32) > 2.6
            parts[split] = CodedVectors(vectors, [tuple(CODES[j] for j in np.flatnonzero(row)) for row in true])
        identity = {"model": "none", "dim": dim}
        made.append(Site(f"site-{i:02d}", identity, key_of(identity), parts, None, torch.device(device)))
    return made


def through_flower(hospitals: list[Site], recipe: FederatedHeadsRecipe, out: Path) -> Bundle:
    """The bundle of the run through Flower's messages and strategy, all sites in this process."""
    from nosology.federated.rounds.client_app import make_app
    from nosology.federated.rounds.federation_server import run_federation
    from nosology.federated.rounds.in_process import SITE_NAME, InProcessGrid

    known = {site.name: site for site in hospitals}
    grid = InProcessGrid(make_app(lambda context, _: known[context.node_config[SITE_NAME]]), known)
    return run_federation(grid, recipe, out, say=print).bundle


def apart(one: dict, other: dict) -> float:
    """The largest difference of a weight."""
    return max(float(np.abs(np.asarray(one[name]) - np.asarray(other[name])).max()) for name in one)


def recorded_apart(site: Site, bundle: Bundle, recipe: FederatedHeadsRecipe) -> float:
    """How far steps that a GPU repeats and steps that are launched one by one are apart after a round at one site."""
    weights = {name: value.double().numpy() for name, value in bundle.model.net.state_dict().items()}
    recorded = site.train(weights, recipe, 1).weights
    with mock.patch.object(repeated, "_WORTH", 10**9):
        return apart(recorded, site.train(weights, recipe, 1).weights)


def main() -> None:
    """Prints the times and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--notes", type=int, default=6000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--labels", type=int, default=1085)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--precision", choices=("fp32", "fp64"), default="fp64")
    parser.add_argument("--flower", action="store_true", help="this way alone")
    parser.add_argument("--stacked", action="store_true", help="this way alone")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    federation = {"rounds": asked.rounds, "evaluate_every": asked.rounds, "min_notes": 1, "min_site_notes": 1}
    federation["min_sites"] = min(asked.sites, 10)
    recipe = load_recipe("heads-mlp", [f"training.precision={asked.precision}"])
    recipe = recipe.model_copy(update={"federation": type(recipe.federation)(**federation)})
    hospitals = sites(asked.sites, asked.notes, asked.dim, asked.labels, device)
    ways = {"stacked": lambda *a: run_stacked(*a, say=print), "flower": through_flower}
    ways = {name: way for name, way in ways.items() if getattr(asked, name) or not (asked.flower or asked.stacked)}
    found: dict[str, float | str] = {"device": torch.cuda.get_device_name() if device == "cuda" else "CPU"}
    bundles = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, way in ways.items():
            started, work = time.perf_counter(), time.process_time()
            bundles[name] = way(hospitals, recipe, Path(folder) / name)
            found[f"{name} seconds"] = time.perf_counter() - started
            found[f"{name} CPU seconds"] = time.process_time() - work
            found[f"{name} dev micro F1"] = bundles[name].provenance["found"]["dev_micro_f1"]
    if len(bundles) == 2:
        found["largest difference of a weight"] = apart(*(b.model.net.state_dict() for b in bundles.values()))
    found["recorded steps apart from launched ones"] = recorded_apart(hospitals[0], bundles[name], recipe)
    print(json.dumps(found, indent=2))
    told = {name: getattr(asked, name) for name in ("sites", "notes", "dim", "labels", "rounds", "precision")}
    asked.out.write_text(json.dumps(told | found, indent=2) + "\n")


if __name__ == "__main__":
    main()
