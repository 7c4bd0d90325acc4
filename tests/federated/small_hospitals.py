"""Small hospitals whose codes can be learned: vectors of width 8, 12 codes."""

from __future__ import annotations

import numpy as np
import torch

from nosology.core import Code
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.federation_setup import embedder_key
from nosology.federated.rounds.heads_site import HeadsSite
from nosology.models.heads.heads_net import CodedVectors

torch.set_num_threads(1)
DIM, CODES = 8, [Code("icd10cm", f"A{i:02d}") for i in range(12)]
IDENTITY = {"model": "test", "revision": "1", "dim": DIM}


def notes(n: int, seed: int, share: float = 0.3) -> CodedVectors:
    """Notes whose codes follow from their vectors."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(2.0, 3.0, (n, DIM)).astype(np.float32)
    directions = np.random.default_rng(7).normal(size=(DIM, len(CODES)))
    scores = (vectors - 2) @ directions
    chosen = scores > np.quantile(scores, 1 - share, axis=0)
    return CodedVectors(vectors, [tuple(CODES[j] for j in np.flatnonzero(row)) for row in chosen])


def site(
    name: str, seed: int, n: int = 40, code_list: frozenset[Code] | None = None, identity: dict = IDENTITY
) -> HeadsSite:
    """A hospital of n train notes."""
    parts = {"train": notes(n, seed), "dev": notes(20, seed + 1000), "test": notes(16, seed + 2000)}
    if code_list is not None:
        parts = {
            split: CodedVectors(part.vectors, [tuple(c for c in codes if c in code_list) for codes in part.codes])
            for split, part in parts.items()
        }
    identity = identity | {"dim": DIM}
    return HeadsSite(name, identity, embedder_key(identity), parts, code_list, torch.device("cpu"))


def sites(n: int = 4) -> list[HeadsSite]:
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
        "timeout": 5.0,
        "max_retries": 0,
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
