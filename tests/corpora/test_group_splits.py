from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iterstrat.ml_stratifiers import IterativeStratification
from scipy import sparse

from nosology.corpora import group_splits
from nosology.corpora.group_splits import group_folds, sample_groups, stratify

SHARES = np.array([0.7, 0.15, 0.15])


def labels(notes: int, codes: int, seed: int) -> sparse.csr_matrix:
    """A long-tailed 0/1 matrix: code j is about as frequent as 1 / (j + 1)."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, codes + 1)
    how_many = np.maximum(1, rng.poisson(4, notes))
    rows = np.repeat(np.arange(notes), how_many)
    columns = rng.choice(codes, p=frequency / frequency.sum(), size=len(rows))
    matrix = sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(notes, codes))
    matrix.data[:] = 1
    return matrix


def distance(matrix: sparse.csr_matrix, part: np.ndarray) -> float:
    """The mean difference of a label's frequency in a part and in the whole (Sechidis et al.'s label distribution)."""
    overall = np.asarray(matrix.mean(axis=0)).ravel()
    return float(np.mean([np.abs(np.asarray(matrix[part == p].mean(axis=0)).ravel() - overall) for p in range(3)]))


@pytest.mark.parametrize(("notes", "codes"), [(400, 30), (1500, 100), (1500, 700)])
def test_labels_are_spread_at_least_as_evenly_as_by_the_oracle(notes, codes):
    ours, oracle = [], []
    for seed in range(3):
        matrix = labels(notes, codes, seed)
        part = stratify(matrix, np.ones(notes), SHARES, np.random.default_rng(seed))
        other = IterativeStratification(matrix.toarray().astype(bool), SHARES.copy(), np.random.RandomState(seed))
        ours.append(distance(matrix, part))
        oracle.append(distance(matrix, other))
        assert np.abs(np.bincount(part) / notes - SHARES).max() < 0.01
        labels_per_note = [matrix[part == p].sum() / (part == p).sum() for p in range(3)]
        assert max(labels_per_note) < 1.05 * min(labels_per_note)
    assert np.mean(ours) <= np.mean(oracle)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 60), st.integers(0, 8), st.integers(0, 10**6))
def test_every_group_has_a_part_and_shares_are_met_up_to_one_group(groups, codes, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, groups)
    matrix = sparse.csr_matrix(rng.integers(0, 2, (groups, codes)) * sizes[:, None])
    part = stratify(matrix, sizes, SHARES, np.random.default_rng(seed))
    assert part.shape == (groups,)
    assert set(part) == {0, 1, 2}
    got = np.bincount(part, weights=sizes, minlength=3)
    assert np.abs(got - SHARES * sizes.sum()).max() <= 2 * sizes.max()


def test_targets_are_met_where_possible():
    labels = sparse.csr_matrix(np.repeat(np.eye(2), 50, axis=0))
    targets = np.array([[50.0, 0], [0, 50]])
    part = stratify(labels, np.ones(100), np.array([0.5, 0.5]), np.random.default_rng(0), targets=targets)
    assert part.tolist() == [0] * 50 + [1] * 50


def test_groups_without_labels_are_placed_by_size():
    part = stratify(sparse.csr_matrix((100, 0)), np.ones(100), SHARES, np.random.default_rng(0))
    assert np.bincount(part).tolist() == [70, 15, 15]


def test_no_part_is_empty_with_enough_groups():
    for parts in range(1, 8):
        shares = np.full(parts, 1 / parts) if parts < 4 else np.array([0.97] + [0.03 / (parts - 1)] * (parts - 1))
        part = stratify(labels(7, 3, 0), np.ones(7), shares, np.random.default_rng(0))
        assert set(part) == set(range(parts))


GROUPS = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=80)


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.integers(1, 5), st.integers(0, 1000), st.booleans())
def test_group_folds_keep_groups_together(groups, folds, seed, balanced):
    fold = group_folds(groups, folds, seed, balanced=balanced)
    assert fold.shape == (len(groups),) and 0 <= fold.min() <= fold.max() < folds
    assert len(set(zip(groups, fold.tolist()))) == len(set(groups))
    assert np.array_equal(group_folds(groups[::-1], folds, seed, balanced=balanced), fold[::-1])


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.integers(1, 5), st.integers(0, 1000))
def test_balanced_folds_differ_by_at_most_the_largest_group(groups, folds, seed):
    sizes = np.bincount(group_folds(groups, folds, seed), minlength=folds)
    assert sizes.max() - sizes.min() <= max(Counter(groups).values())


def test_hashed_folds_do_not_depend_on_other_groups():
    fold = dict(zip("abcdefgh", group_folds("abcdefgh", 3, 1, balanced=False).tolist()))
    assert group_folds("hc", 3, 1, balanced=False).tolist() == [fold["h"], fold["c"]]


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.floats(0.01, 0.99), st.integers(0, 1000))
def test_sampled_groups_have_at_most_their_share_unless_each_group_is_larger(groups, share, seed):
    sizes = Counter(groups)
    sample = sample_groups(sizes, share, seed)
    assert len(set(sample)) == len(sample) < len(sizes)
    if len(sizes) > 1:
        assert sample
        limit = max(1, round(share * len(groups)))
        assert sum(sizes[name] for name in sample) <= max(limit, min(sizes.values()))


def test_assignments_are_stable_across_versions():
    groups = list("aabcccdeff")
    assert group_folds(groups, 3, 7).tolist() == [1, 1, 0, 0, 0, 0, 2, 1, 2, 2]
    assert group_folds(groups, 3, 7, balanced=False).tolist() == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert sample_groups(Counter(groups), 0.4, 7) == ["c", "e"]


@pytest.mark.parametrize("targets", [None, np.outer(SHARES, np.arange(1, 9))])
def test_progress_ends_at_its_total_also_with_groups_without_labels(monkeypatch, targets):
    counters, count = [], group_splits.counting

    @contextmanager
    def kept(title, **options):
        with count(title, **options) as counter:
            yield counter
            counters.append((counter.count, options["total"]))

    monkeypatch.setattr(group_splits, "counting", kept)
    counts = sparse.csr_matrix(np.pad(labels(40, 8, 1).toarray(), ((0, 5), (0, 0))))
    stratify(counts, np.ones(45), SHARES, np.random.default_rng(1), targets=targets)
    ((done, total),) = counters
    assert done == total > 45
