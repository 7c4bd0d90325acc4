"""A federation that is slow enough to be killed: python federation_program.py OUT STRATEGY"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.simulation import simulation_grid
from tests.federated.small_hospitals import recipe, sites

ROUNDS = 6


def settings(strategy: str):
    return recipe(rounds=ROUNDS, strategy=strategy, fraction_train=0.7, evaluate_every=2, server_learning_rate=0.02)


def slow_grid():
    """Four sites that train slowly."""
    grid = simulation_grid(sites(4))
    app = grid.app

    def slow(message, context):
        if message.metadata.message_type == "train":
            time.sleep(0.1)
        return app(message, context)

    grid.app = slow
    return grid


if __name__ == "__main__":
    FlowerFederation(slow_grid(), settings(sys.argv[2]), lambda line: print(line, flush=True)).run(sys.argv[1])
