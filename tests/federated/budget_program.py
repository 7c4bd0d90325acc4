"""A site that is killed while it trains: python budget_program.py LEDGER CORPUS"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.simulation import simulation_grid
from tests.federated.small_hospitals import recipe, sites

NOISE = {"record_noise": 2.0, "record_clip": 0.5}


def settings(rounds: int = 3, noise: dict = NOISE):
    """A recipe of small hospitals with noise for each note."""
    checked = recipe("mlp", rounds, privacy=noise, optimizer="adamw")
    return checked.model_copy(update={"model": checked.model.model_copy(update={"norm": "layer"})})


def grid_with_ledger(ledger: Path, corpus: Path, hospitals=None, **policy: str):
    """Three sites, the first of which has a ledger and a corpus."""
    grid = simulation_grid(hospitals or sites(3))
    config = {"ledger": str(ledger), "corpus": str(corpus)} | policy
    grid._contexts[grid.get_node_ids()[0]].node_config |= config
    return grid


if __name__ == "__main__":
    hospitals = sites(3)
    calls, train = [], hospitals[0].train

    def killed(*arguments):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(*arguments)

    hospitals[0].train = killed
    grid = grid_with_ledger(Path(sys.argv[1]), Path(sys.argv[2]), hospitals)
    with tempfile.TemporaryDirectory(dir=Path(sys.argv[1]).parent) as folder:
        FlowerFederation(grid, settings()).run(Path(folder) / "bundle")
