"""Steps are loaded in the order of the plan, by any number of threads."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import pytest
import torch

from nosology.models.hmhan.hmhan_net import ReportBatch, SyntheticBatch
from nosology.training.batch_plan import BatchPlan
from nosology.training.data_loader import Batch, BatchLoader, MicroBatch, StepBatches, _tensors, on_device


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

    steps = [StepBatches(0, i, 4, [MicroBatch(j, 0.5, batch(2 * i + j)) for j in range(2)]) for i in range(5)]
    moved = list(on_device(iter(steps), torch.device("meta")))
    assert [(step.epoch, step.step, step.notes) for step in moved] == [(0, i, 4) for i in range(5)]
    parts = [part for step in moved for part in step.micro_batches]
    assert all(part.batch.tokens.is_meta and part.batch.targets.is_meta for part in parts)
    assert not any(part.batch.lengths.is_meta for part in parts)  # always on the CPU
    assert [part.number for part in parts] == [0, 1] * 5
    first = next(on_device(iter(steps), torch.device("cpu")))
    assert torch.equal(first.micro_batches[1].batch.tokens, torch.full((2, 3), 1))


def test_all_tensors_of_a_batch_are_found():
    values = [torch.zeros(size) for size in range(1, 8)]
    synthetic = SyntheticBatch(*values[4:7])
    batch = ReportBatch(values[0], values[1], targets=values[2], states=values[3], synthetic=synthetic)
    assert sorted(tensor.numel() for tensor in _tensors(batch)) == [1, 2, 3, 4, 5, 6, 7]
