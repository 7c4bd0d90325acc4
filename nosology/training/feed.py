"""The batches of a training run, made ready in a thread while the device works on the step before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import count, islice
from typing import Any

import numpy as np

from nosology.training.batch import Batch
from nosology.training.batch_plan import Plan, seed_of

Prepare = Callable[[np.ndarray, np.random.Generator], Any]  # all notes of a step -> what its micro-batches share
MakeBatch = Callable[[np.ndarray, Any], Batch]  # notes of a micro-batch, and what they share

_AHEAD = 2  # steps made ready


@dataclass(frozen=True)
class Part:
    """A micro-batch."""

    number: int  # within the step
    share: float  # of the step's notes; 0: it is computed for nothing, so that processes stay in step
    batch: Batch


@dataclass(frozen=True)
class Work:
    """What one process has to do in one step."""

    epoch: int
    step: int  # within the epoch
    notes: int  # of all processes
    parts: list[Part]  # equally many in all processes


@dataclass(frozen=True)
class Feed:
    """The plan's steps as batches, dealt to the processes in turn."""

    plan: Plan
    make_batch: MakeBatch
    prepare: Prepare | None = None
    rank: int = 0
    world: int = 1
    pinned: bool = False  # in memory that a GPU copies from while the program goes on

    def steps(self, epoch: int, step: int) -> Iterator[Work]:
        """All steps from one on, without end; the thread ends when the iterator is closed."""
        places = ((e, s) for e in count(epoch) for s in range(step if e == epoch else 0, len(self.plan)))
        planned = lru_cache(maxsize=1)(self.plan.epoch)
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
            waiting: deque[Future[Work]] = deque()
            try:
                while True:
                    for place in islice(places, 1 + _AHEAD - len(waiting)):
                        waiting.append(pool.submit(self._work, planned, *place))
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _work(self, planned: Callable[[int], Any], epoch: int, step: int) -> Work:
        micros = planned(epoch)[step]
        notes = np.concatenate(micros)
        rng = np.random.default_rng(seed_of("step", self.plan.seed, epoch, step))
        shared = self.prepare(notes, rng) if self.prepare else None
        parts = []
        for number in range(self.rank, -(-len(micros) // self.world) * self.world, self.world):
            share = len(micros[number]) / len(notes) if number < len(micros) else 0.0
            number = min(number, len(micros) - 1)  # a process without a part works along on the last
            batch = self.make_batch(micros[number], shared)
            parts.append(Part(number, share, _pin(batch) if self.pinned else batch))
        return Work(epoch, step, len(notes), parts)


def _pin(batch: Batch) -> Batch:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: v.pin_memory() for name, v in values.items() if hasattr(v, "pin_memory")})
