"""Small hospitals whose codes can be learned: vectors of width 8, 12 codes."""

from __future__ import annotations

import numpy as np
import torch

from nosology.core import Code
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.agreement import key_of
from nosology.federated.rounds.client_app import make_app
from nosology.federated.rounds.hospital_site import Site
from nosology.federated.rounds.in_process import SITE_NAME, InProcessGrid
from nosology.models.heads.coded_vectors import CodedVectors

torch.set_num_threads(1)
DIM, CODES = 8, [Code("icd10cm", f"A{i:02d}") for i in range(12)]
IDENTITY = {"model": "test", "revision": "1", "dim": DIM}


def notes(n: int, seed: int, share: float = 0.3) -> CodedVectors:
    """Notes whose codes follow from their vectors."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(2.0, 3.0, (n, DIM)).astype(np.float32)
    taste = np.random.default_rng(7).normal(size=(DIM, len(CODES)))
    scores = (vectors - 2) @ taste
    chosen = scores > np.quantile(scores, 1 - share, axis=0)
    return CodedVectors(vectors, [tuple(CODES[j] for j in np.flatnonzero(row)) for row in chosen])


def site(name: str, seed: int, n: int = 40, only: frozenset[Code] | None = None, identity: dict = IDENTITY) -> Site:
    """A hospital of n train notes."""
    parts = {"train": notes(n, seed), "dev": notes(20, seed + 1000), "test": notes(16, seed + 2000)}
    if only is not None:
        parts = {
            k: CodedVectors(v.vectors, [tuple(c for c in codes if c in only) for codes in v.codes])
            for k, v in parts.items()
        }
    identity = identity | {"dim": DIM}
    return Site(name, identity, key_of(identity), parts, only, torch.device("cpu"))


def sites(n: int = 4) -> list[Site]:
    """Hospitals of several sizes."""
    return [site(f"site-{i:02d}", seed=i, n=30 + 7 * i) for i in range(n)]


def recipe(head: str = "deep", rounds: int = 3, training: dict | None = None, **federation) -> FederatedHeadsRecipe:
    """A recipe for small hospitals."""
    defaults = {
        "rounds": rounds,
        "min_sites": 1,
        "quorum": 1,
        "min_site_notes": 1,
        "min_notes": 1,
        "wait": 5.0,
        "repeats": 0,
    }
    widths = {"mlp": [16], "deep": [16, 12, 12], "res": [16, 12, 12]}[head]
    return FederatedHeadsRecipe.model_validate(
        {
            "kind": "heads",
            "model": {"head": head, "widths": widths},
            "training": {
                "epochs": 3,
                "batch": 8,
                "learning_rate": 1e-2,
                "schedule": "cosine",
                "warmup": 0,
                "precision": "fp32",
                "micro_batches": 1,
            }
            | (training or {}),
            "federation": defaults | federation,
        }
    )


def grid_of(hospitals: list[Site]) -> InProcessGrid:
    """A grid of hospitals."""
    by_name = {hospital.name: hospital for hospital in hospitals}
    app = make_app(lambda context, recipe: by_name[context.node_config[SITE_NAME]])
    return InProcessGrid(app, by_name)
