"""Steps are loaded in the order of the plan, by any number of threads."""

from __future__ import annotations

import threading
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import pytest
import torch

from nosology.training.batch_plan import BatchPlan
from nosology.training.data_loader import Batch, BatchLoader, MicroBatch, StepBatches, on_device


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


def test_steps_on_a_device_keep_their_order_and_weights():
    def batch(number):
        return Batch(torch.full((2, 3), number), torch.tensor([3, 2]), None, torch.ones(2, 4))

    steps = [
        StepBatches(0, i, 4, [MicroBatch(j, (0.25, 0.75)[j], batch(2 * i + j)) for j in range(2)]) for i in range(5)
    ]
    moved = list(on_device(iter(steps), torch.device("meta")))
    assert [(step.epoch, step.step, step.notes) for step in moved] == [(0, i, 4) for i in range(5)]
    parts = [part for step in moved for part in step.micro_batches]
    assert all(part.batch.tokens.is_meta and part.batch.targets.is_meta for part in parts)
    assert not any(part.batch.lengths.is_meta for part in parts)  # always on the CPU
    assert [(part.number, part.weight) for part in parts] == [(0, 0.25), (1, 0.75)] * 5
    first = next(on_device(iter(steps), torch.device("cpu")))
    assert torch.equal(first.micro_batches[1].batch.tokens, torch.full((2, 3), 1))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_gpu_copies_the_next_step_before_it_computes_this_one(monkeypatch, count):
    """With streams that write down what they would do."""
    calls: list[str] = []

    class Stream:
        def wait_stream(self, other):
            calls.append("copies wait for all launched steps")

        def wait_event(self, event):
            calls.append(f"step waits for copy {event.number}")

    class Event:
        number = -1

        def record(self):
            self.number = int(calls[-1].removeprefix("copy "))

    class Moving:
        def __init__(self, number):
            self.number = number

        def to(self, device):
            calls.append(f"copy {self.number}")
            return self

    current = Stream()
    for name, value in {"Stream": lambda device: Stream(), "Event": Event, "stream": lambda _: nullcontext()}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    steps = (StepBatches(0, i, 1, [MicroBatch(0, 1.0, Moving(i))]) for i in range(count))
    for step in on_device(steps, torch.device("cuda")):
        calls.append(f"compute {step.micro_batches[0].batch.number}")
    expected = []
    for number in range(count):
        expected += ["copies wait for all launched steps", f"copy {number}"]
        if number:
            expected += [f"step waits for copy {number - 1}", f"compute {number - 1}"]
    if count:
        expected += [f"step waits for copy {count - 1}", f"compute {count - 1}"]
    assert calls == expected
