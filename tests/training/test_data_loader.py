"""Steps are loaded in the order of the plan, by any number of threads."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import pytest

from nosology.training.batch_plan import BatchPlan
from nosology.training.data_loader import BatchLoader


@dataclass
class Rows:
    notes: list[int]
    prepared: int

    def to(self, device):
        return self


def loaded(threads: int, steps: int = 9) -> list[tuple]:
    plan = BatchPlan(np.arange(1, 41), np.zeros(40, np.int64), 8, 1000, 3)
    loader = BatchLoader(
        plan,
        lambda notes, prepared: Rows(notes.tolist(), prepared),
        lambda notes, rng: int(rng.integers(1 << 30)),
        threads=threads,
    )
    with closing(loader.steps(0, 2)) as found:
        return [
            (s.epoch, s.step, [(m.batch.notes, m.batch.prepared) for m in s.micro_batches])
            for s in islice(found, steps)
        ]


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_neither_order_nor_batches(threads):
    one = loaded(1)
    assert [(epoch, step) for epoch, step, _ in one[:4]] == [(0, 2), (0, 3), (0, 4), (1, 0)]
    assert loaded(threads) == one


def test_several_steps_are_prepared_at_the_same_time():
    together = threading.Barrier(3)  # passes only if three threads are inside at once
    calls = count()

    def make(notes, _):
        if next(calls) < 3:
            together.wait(timeout=60)
        return Rows(notes.tolist(), 0)

    plan = BatchPlan(np.full(24, 5), np.zeros(24, np.int64), 8, 1000, 3)
    with closing(BatchLoader(plan, make, threads=3).steps(0, 0)) as found:
        assert [step.step for step in islice(found, 1)] == [0]


def test_error_of_a_batch_reaches_the_reader():
    def make(notes, _):
        raise ValueError("broken")

    plan = BatchPlan(np.full(8, 5), np.zeros(8, np.int64), 8, 1000, 3)
    with closing(BatchLoader(plan, make, threads=4).steps(0, 0)) as found, pytest.raises(ValueError, match="broken"):
        next(found)
