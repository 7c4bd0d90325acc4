"""Tests of the candidate retriever: codes are retrieved by words, descriptions and frequency."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nosology.core.label_space import column_sums
from nosology.models.dual_laat import candidate_retriever as retriever
from nosology.models.dual_laat.candidate_retriever import CandidateRetriever

WORDS, CODES, OWN = 400, 60, 3  # words of a note's vocabulary, codes, words that only a code's notes have
FIRST_OWN = WORDS - CODES * OWN


def corpus(notes: int, seed: int = 0) -> tuple[list[np.ndarray], sparse.csr_matrix, np.ndarray]:
    """Notes in which each code shows by two of its three words; a description is one of them and a common word."""
    rng = np.random.default_rng(seed)
    gold = rng.random((notes, CODES)) < np.linspace(0.02, 0.2, CODES)
    ids = []
    for row in gold:
        shown = [FIRST_OWN + code * OWN + rng.permutation(OWN)[:2] for code in np.flatnonzero(row)]
        ids.append(rng.permutation(np.concatenate([rng.integers(1, FIRST_OWN, 80), *shown])).astype(np.int32))
    texts = np.stack([FIRST_OWN + np.arange(CODES) * OWN, rng.integers(2, 9, CODES), np.zeros(CODES)], axis=1)
    return ids, sparse.csr_matrix(gold), texts.astype(np.int64)


def recall(fitted: CandidateRetriever, ids: list[np.ndarray], gold: sparse.csr_matrix, k: int) -> float:
    recalled = sum(np.isin(true.indices, fitted.retrieve(note, k)).sum() for note, true in zip(ids, gold))
    return recalled / gold.nnz


@pytest.fixture(scope="module")
def fitted() -> CandidateRetriever:
    return CandidateRetriever.fit(*corpus(400))


def test_gold_codes_are_among_the_candidates(fitted):
    ids, gold, _ = corpus(100, seed=1)
    assert recall(fitted, ids, gold, 15) > 0.95
    by_frequency = np.argsort(-fitted.bias)[:15]
    assert np.isin(gold.indices, by_frequency).mean() < 0.6, "codes are not retrieved by frequency alone"


def test_candidates_are_sorted_by_score(fitted):
    ids, _, _ = corpus(5, seed=2)
    for note in ids:
        scores = fitted.scores(note)
        assert scores.shape == (CODES,)
        best = fitted.retrieve(note, 10)
        assert np.array_equal(scores[best], np.sort(scores)[::-1][:10])
    assert sorted(fitted.retrieve(ids[0], 999).tolist()) == list(range(CODES))
    assert fitted.retrieve(ids[0], 0).shape == (0,)


def test_score_is_the_sum_over_distinct_words(fitted):
    note = np.array([5, 300, 5, 5, 301, 0, 1, 100_000])
    expected = fitted.bias + column_sums(fitted.weights[[5, 300, 301]])
    assert fitted.scores(note) == pytest.approx(expected, abs=1e-5)
    assert fitted.scores(np.array([], dtype=np.int32)) == pytest.approx(fitted.bias)


def test_number_of_words_per_code_is_limited(fitted):
    assert np.diff(fitted.weights.tocsc().indptr).max() <= retriever._WORDS + 2


def test_fit_does_not_depend_on_the_chunk_size(monkeypatch, fitted):
    monkeypatch.setattr(retriever, "_CODES", 7)
    again = CandidateRetriever.fit(*corpus(400))
    assert abs(again.weights - fitted.weights).max() < 1e-6
    assert np.array_equal(again.bias, fitted.bias)


def test_frequent_codes_rank_first_without_known_words(fitted):
    assert fitted.bias[-1] > fitted.bias[0] > 0
    assert fitted.retrieve(np.array([1, 1]), 5).min() > CODES // 2


def test_for_codes_keeps_the_scores(fitted):
    ids, _, texts = corpus(3, seed=3)
    columns = np.random.default_rng(0).permutation(CODES)[:20]
    other = fitted.for_codes(columns.tolist(), texts[columns])
    for note in ids:
        assert other.scores(note) == pytest.approx(fitted.scores(note)[columns], abs=1e-5)


def test_new_code_is_retrieved_by_its_description(fitted):
    _, _, texts = corpus(1)
    words = np.array([[FIRST_OWN, FIRST_OWN + 7, 0], [FIRST_OWN + 50, FIRST_OWN + 51, 0], [10**6, 1, 0]])
    other = fitted.for_codes([*range(CODES), -1, -1, -1], np.concatenate([texts, words]))
    note = np.array([3, 4, FIRST_OWN + 50, FIRST_OWN + 51])
    assert CODES + 1 in other.retrieve(note, 3)
    assert CODES + 1 not in other.retrieve(np.array([3, 4]), 30)
    assert other.scores(note)[CODES + 2] == 0, "unknown words are ignored"
    again = other.for_codes([CODES + 1, -1], words[1:])
    assert again.scores(note) == pytest.approx(other.scores(note)[[CODES + 1, CODES + 2]])


def test_retriever_without_codes_returns_nothing(fitted):
    none = fitted.for_codes([], np.zeros((0, 1), dtype=np.int64))
    assert none.retrieve(np.array([4]), 3).shape == (0,)
    assert none.for_codes([-1], np.array([[300]])).retrieve(np.array([300]), 3).tolist() == [0]


def test_arrays_round_trip(fitted):
    arrays = fitted.arrays()
    assert all(array.dtype != object for array in arrays.values())
    again = CandidateRetriever.from_arrays(arrays)
    note = corpus(1, seed=4)[0][0]
    assert np.array_equal(again.scores(note), fitted.scores(note))
    assert again.unseen == pytest.approx(fitted.unseen) and np.array_equal(again.rarity, fitted.rarity)


def test_indices_out_of_range_are_refused(fitted):
    arrays = fitted.arrays()
    arrays["indices"] = arrays["indices"] + CODES
    with pytest.raises(ValueError, match="ind"):
        CandidateRetriever.from_arrays(arrays)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 12), max_size=8), min_size=1, max_size=12), st.integers(1, 6), st.integers(0, 9)
)
def test_fit_accepts_any_notes(notes, codes, seed):
    rng = np.random.default_rng(seed)
    gold = sparse.csr_matrix(rng.random((len(notes), codes)) < 0.3)
    texts = rng.integers(0, 14, (codes, 3))
    fitted = CandidateRetriever.fit([np.array(note, dtype=np.int32) for note in notes], gold, texts)
    for note in notes:
        assert np.isfinite(fitted.scores(np.array(note, dtype=np.int32))).all()
        assert len(set(fitted.retrieve(np.array(note, dtype=np.int32), 4).tolist())) == min(4, codes)


def test_retrieval_among_26_000_codes_takes_milliseconds():
    rng = np.random.default_rng(0)
    words, codes = rng.integers(0, 50_000, 1_300_000), rng.integers(0, 26_000, 1_300_000)
    weights = sparse.csr_matrix((rng.random(1_300_000, np.float32), (words, codes)), shape=(50_000, 26_000))
    fitted = CandidateRetriever(weights, np.zeros(26_000, np.float32), np.zeros(50_000, np.float32), 1.0)
    note = rng.integers(2, 50_000, 1500)
    fitted.retrieve(note, 300)
    taken = []
    for _ in range(5):
        started = time.thread_time()
        fitted.retrieve(note, 300)
        taken.append(time.thread_time() - started)
    assert min(taken) < 0.02
