"""Sampled labels of a training step, and their targets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nosology.training.label_sampling import label_targets, sample_labels
from tests.timing import assert_cpu_seconds


@st.composite
def steps(draw):
    """A pool of ids and notes with labels from it."""
    pool = np.array(draw(st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True)))
    notes = draw(st.lists(st.lists(st.sampled_from(pool.tolist()), max_size=6, unique=True), min_size=1, max_size=8))
    return pool, notes


@given(steps(), st.integers(1, 50), st.integers(0, 3))
def test_sampled_labels_are_all_positives_and_true_negatives(step, size, seed):
    pool, notes = step
    ids = np.array([i for note in notes for i in note], dtype=np.int64)
    bounds = np.cumsum([0, *map(len, notes)])
    labels = sample_labels(ids, pool, size, np.random.default_rng(seed))
    positives = set(ids.tolist())
    assert len(set(labels.tolist())) == len(labels) == max(len(positives), min(size, len(pool)))
    assert set(labels[: len(positives)].tolist()) == positives
    assert set(labels[len(positives) :].tolist()) <= set(pool.tolist()) - positives
    targets = label_targets(labels, ids, bounds)
    assert targets.dtype == np.float32
    assert targets.tolist() == [[float(label in note) for label in labels] for note in notes]


def test_label_targets_ignore_ids_without_a_column():
    ids, bounds = np.array([5, 2, 7, 2]), np.array([0, 1, 3, 4])
    labels = np.array([2, 7, 9])
    assert label_targets(labels, ids, bounds).tolist() == [[0, 0, 0], [1, 1, 0], [1, 0, 0]]  # 5 has no column
    assert label_targets(labels, ids, bounds[1:]).tolist() == [[1, 1, 0], [1, 0, 0]]


def test_sampled_labels_depend_on_the_generator():
    ids, pool = np.arange(5), np.arange(1000)
    draws = [sample_labels(ids, pool, 100, np.random.default_rng(seed)).tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_negatives_are_sampled_uniformly():
    pool, rng = np.arange(100, 300), np.random.default_rng(0)
    sampled = np.concatenate([sample_labels(np.array([100, 150]), pool, 50, rng)[2:] for _ in range(2000)])
    times = np.bincount(sampled, minlength=300)[pool]
    assert times[[0, 50]].tolist() == [0, 0]
    others = np.delete(times, [0, 50])
    expected = 2000 * 48 / 198
    assert abs(others - expected).max() < 6 * np.sqrt(expected)


def test_sampling_for_256_notes_takes_under_5_ms():
    rng = np.random.default_rng(0)
    ids, bounds, pool = rng.integers(0, 26_000, 256 * 16), np.arange(0, 256 * 16 + 1, 16), np.arange(26_000)
    assert_cpu_seconds(lambda: label_targets(sample_labels(ids, pool, 8192, rng), ids, bounds), 0.005)
