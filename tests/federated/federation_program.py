"""A federation that is slow enough to be killed: python federation_program.py OUT STRATEGY"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from nosology.federated.rounds.federation_server import run_federation
from nosology.federated.rounds.in_process import SITE_NAME
from tests.federated.worlds import grid_of, recipe, sites

ROUNDS = 6


def settings(strategy: str):
    return recipe(rounds=ROUNDS, strategy=strategy, fraction_train=0.7, evaluate_every=2, server_rate=0.02)


def slow_grid():
    """The sites of the test, each of which takes its time."""
    grid = grid_of(sites(4))
    app = grid.app

    def slow(message, context):
        if message.metadata.message_type == "train":
            time.sleep(0.1)
        assert context.node_config[SITE_NAME]
        return app(message, context)

    grid.app = slow
    return grid


if __name__ == "__main__":
    run_federation(slow_grid(), settings(sys.argv[2]), sys.argv[1], say=lambda line: print(line, flush=True))
