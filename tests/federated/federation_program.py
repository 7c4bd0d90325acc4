"""A federation that is killed within a round: python federation_program.py OUT STRATEGY"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.simulation import simulation_grid
from tests.federated.small_hospitals import recipe, sites

ROUNDS = 6


def settings(strategy: str):
    return recipe(rounds=ROUNDS, strategy=strategy, fraction_train=0.7, evaluate_every=2, server_learning_rate=0.02)


class KilledFederation:
    """A federation whose process ends by SIGKILL when the second site of round 4 trains."""

    def __init__(self, strategy: str):
        grid = simulation_grid(sites(4))
        self.app, grid.app = grid.app, self.reply
        self.federation = FlowerFederation(grid, settings(strategy), self.report)
        self.trained: int | None = None  # sites of round 4

    def report(self, line: str) -> None:
        if line.startswith("round 3/"):
            self.trained = 0

    def reply(self, message, context):
        if self.trained is not None and message.metadata.message_type == "train":
            self.trained += 1
            if self.trained == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.app(message, context)


if __name__ == "__main__":
    KilledFederation(sys.argv[2]).federation.run(sys.argv[1])
