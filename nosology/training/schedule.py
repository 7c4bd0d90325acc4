"""How long to train, and the learning rate at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nosology.training.settings import LoopSettings

_STEPS = 3000  # where a recipe leaves the epochs open: about so many steps,
_FEWEST, _MOST = 10, 60  # but every note is seen so many times at least and at most
_WARMUP_SHARE = 10  # the warm-up takes a tenth of all steps at most


@dataclass(frozen=True)
class Schedule:
    """The steps of a training run and what share of the full learning rate each has."""

    kind: str  # linear, cosine or constant
    epochs: int
    steps: int  # in all
    warmup: int  # steps

    def factor(self, step: int) -> float:
        """The share of the learning rate at a step, counted from 0: up from 1 / warmup to 1, then down towards 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        if self.kind == "linear":
            return 1 - done
        return (1 + math.cos(math.pi * done)) / 2 if self.kind == "cosine" else 1.0


def resolve(settings: LoopSettings, steps_an_epoch: int) -> Schedule:
    """The schedule of a training set.

    Epochs 0 stands for as many as make 3,000 steps, at least 10 and at most 60: a large corpus is seen ten times, a
    corpus of a few hundred notes sixty times. Early stopping may end either sooner.
    """
    epochs = settings.epochs or min(max(math.ceil(_STEPS / steps_an_epoch), _FEWEST), _MOST)
    steps = epochs * steps_an_epoch
    return Schedule(settings.schedule, epochs, steps, min(settings.warmup, steps // _WARMUP_SHARE))
