"""Batches of an epoch: every note once, groups separate, similar lengths together, decided by seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.training.batch_plan import BatchPlan, derive_seed
from nosology.training.data_loader import pad_notes
from tests.timing import assert_cpu_seconds


@given(
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=120),
    batch=st.integers(1, 9),
    micro_tokens=st.integers(1, 400),
    micro_batches=st.integers(1, 4),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_every_note_is_in_one_micro_batch_within_the_limits(lengths, batch, micro_tokens, micro_batches, seed, data):
    groups = np.array(data.draw(st.lists(st.sampled_from([9, 10, -1]), min_size=len(lengths), max_size=len(lengths))))
    lengths = np.array(lengths)
    plan = BatchPlan(lengths, groups, batch, micro_tokens, seed, micro_batches)
    epoch = plan.epoch(4)
    micro_batches_of_epoch = [rows for step in epoch for rows in step]
    assert sorted(np.concatenate(micro_batches_of_epoch)) == list(range(len(lengths)))
    assert len(epoch) == len(plan)
    for step in epoch:
        notes = np.concatenate(step)
        assert len(notes) <= batch
        assert len(set(groups[notes])) == 1
        assert (np.diff(lengths[notes]) <= 0).all()  # longest first
        assert len(step) >= min(micro_batches, len(notes))
        for rows in step:
            width = pad_notes([np.ones(n, dtype=int) for n in lengths[rows]])[0].shape[1]
            assert len(rows) == 1 or len(rows) * width <= micro_tokens
        fewest = fewest_micro_batches(lengths[notes], micro_tokens)
        assert len(step) == min(micro_batches * -(-fewest // micro_batches), len(notes))
    assert 0 <= epoch.padding_share() <= 1


def fewest_micro_batches(lengths: np.ndarray, micro_tokens: int) -> int:
    """How many micro-batches notes need, the longest first."""
    count = room = 0
    for length in lengths:
        if room < 1:
            count, room = count + 1, max(1, micro_tokens // (-(-max(1, length) // 8) * 8))
        room -= 1
    return count


@pytest.mark.parametrize(("micro_tokens", "share"), [(10**6, 0.508), (16_384, 0.52)])
def test_processes_that_share_a_step_have_equal_work(micro_tokens, share):
    lengths = np.random.default_rng(0).lognormal(7.3, 0.45, 1600).astype(int)
    plan = BatchPlan(lengths, np.zeros(len(lengths), int), 32, micro_tokens, 0, micro_batches=2)
    work = [[plan.widths[rows[0]] * len(rows) for rows in step] for step in plan.epoch(0)]
    longest = sum(max(sum(step[::2]), sum(step[1::2])) for step in work)
    assert all(len(step) % 2 == 0 for step in work) and longest < share * sum(map(sum, work))


def test_each_group_has_at_most_one_partial_batch():
    plan = BatchPlan(np.arange(1, 208), np.arange(207) % 2, 10, 10**6, 0)
    sizes = sorted(len(step[0]) for step in plan.epoch(0))
    assert sizes == [3, 4] + [10] * 20


def test_batches_depend_on_seed_and_epoch():
    rng = np.random.default_rng(0)
    lengths, groups = rng.integers(1, 500, 300), rng.integers(0, 2, 300)

    def as_lists(seed: int, epoch: int) -> list:
        return [[rows.tolist() for rows in step] for step in BatchPlan(lengths, groups, 8, 2000, seed).epoch(epoch)]

    assert as_lists(1, 2) == as_lists(1, 2)
    assert as_lists(1, 2) != as_lists(1, 3)
    assert as_lists(1, 2) != as_lists(2, 2)


def test_groups_and_lengths_are_shuffled_over_the_epoch():
    lengths = np.repeat([10, 1000], 1600)
    groups = np.tile([0, 1], 1600)
    steps = BatchPlan(lengths, groups, 32, 10**9, 0).epoch(0)
    for values in (groups, lengths):
        first = np.array([values[step[0][0]] for step in steps])
        assert 30 < (np.diff(first) != 0).sum() < 70  # of 99; a sorted epoch has 1


def test_micro_batches_is_a_minimum():
    steps = BatchPlan(np.full(20, 8), np.zeros(20), 16, 10**6, 0, micro_batches=3).epoch(0)
    assert sorted([len(rows) for rows in step] for step in steps) == [[1, 1, 2], [6, 6, 4]]


def test_padding_is_below_5_percent():
    lengths = np.minimum(np.random.default_rng(0).lognormal(7.3, 0.5, 20_000).astype(int), 4000)
    groups = np.zeros(len(lengths), dtype=int)
    assert BatchPlan(lengths, groups, 32, 10**6, 0).epoch(0).padding_share() < 0.05
    unsorted = lengths[: 20_000 // 32 * 32].reshape(-1, 32)
    assert 1 - unsorted.sum() / (unsorted.max(1) * 32).sum() > 0.4  # without sorting by length


def test_plan_of_300_000_notes_takes_less_than_a_second():
    rng = np.random.default_rng(0)
    plan = BatchPlan(rng.integers(50, 4000, 300_000), rng.integers(0, 2, 300_000), 32, 100_000, 0)
    assert sum(len(step) for step in plan.epoch(0)) >= len(plan)
    assert_cpu_seconds(lambda: sum(len(step) for step in plan.epoch(1)), 1)


def test_different_shapes_are_an_error():
    with pytest.raises(ValueError, match=r"must be \(N,\)"):
        BatchPlan(np.ones(3), np.ones(4), 2, 10, 0)


def test_derived_seeds_differ_if_any_part_differs():
    parts = [(a, b, c) for a in range(6) for b in range(6) for c in range(6)]
    assert (
        len({derive_seed("micro", *part) for part in parts} | {derive_seed("step", *part) for part in parts}) == 2 * 216
    )
    assert derive_seed("plan", 0, 1) == 17781382795574845466  # the same on every machine
