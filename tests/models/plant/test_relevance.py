"""Relevant words of a code: compared with scikit-learn, computed by hand, and in any order of notes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics import mutual_info_score

from nosology.models.plant.relevance import Relevance


def drawn(seed: int, notes: int = 60, words: int = 30, codes: int = 7) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    rng = np.random.default_rng(seed)
    x = rng.random((notes, words)) < rng.uniform(0.02, 0.9, words)
    y = rng.random((notes, codes)) < rng.uniform(0.02, 0.6, codes)
    y[:, 0] = x[:, 3]  # a word that says it all
    return sparse.csr_matrix(x.astype(np.int8)), sparse.csr_matrix(y.astype(np.int8))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_equals_scikit_learn_for_positive_pairs(seed):
    words, codes = drawn(seed)
    x, y = words.toarray(), codes.toarray()
    relevance = Relevance.of(words, codes, "mutual_information").matrix().toarray()
    normal = Relevance.of(words, codes, "normalised").matrix().toarray()
    every = Relevance.of(words, codes, "mutual_information", positive=False).matrix().toarray()
    for j in range(y.shape[1]):
        for v in range(x.shape[1]):
            together, apart = np.mean(x[:, v] * y[:, j]), x[:, v].mean() * y[:, j].mean()
            wanted = mutual_info_score(x[:, v], y[:, j]) if together > apart + 1e-12 else 0.0
            assert relevance[j, v] == pytest.approx(wanted, rel=1e-6, abs=1e-7)  # kept as float32
            assert every[j, v] == pytest.approx(mutual_info_score(x[:, v], y[:, j]), rel=1e-6, abs=1e-7)
            joint = np.histogram2d(x[:, v], y[:, j], bins=2)[0] / len(x)
            entropy = -sum(p * np.log(p) for p in joint.ravel() if p > 0)
            assert normal[j, v] == pytest.approx(wanted / entropy if wanted else 0.0, rel=1e-6, abs=1e-7)


def test_frequent_words_of_frequent_codes_in_many_notes():
    n = 160_000
    code = np.arange(n) % 5 < 2
    words = np.stack([code & (np.arange(n) % 20 > 0), np.arange(n) % 3 == 0], axis=1)
    relevance = Relevance.of(
        sparse.csr_matrix(words.astype(np.int8)), sparse.csr_matrix(code[:, None].astype(np.int8)), "mutual_information"
    )
    assert relevance.best(0)[0][0] == 0
    assert relevance.best(0)[1][0] == pytest.approx(mutual_info_score(words[:, 0], code), rel=1e-6)


def test_information_is_exact_in_float64():
    """The information itself, in float64, is scikit-learn's to 1e-9."""
    from nosology.models.plant.relevance import _information

    words, codes = drawn(5, notes=400)
    x, y = words.toarray().astype(int), codes.toarray().astype(int)
    for j in range(y.shape[1]):
        together = (x * y[:, [j]]).sum(0).astype(float)
        information = _information(together, x.sum(0).astype(float), float(y[:, j].sum()), len(x), "mutual_information")
        wanted = [mutual_info_score(x[:, v], y[:, j]) for v in range(x.shape[1])]
        np.testing.assert_allclose(information, wanted, atol=1e-9)


def test_information_of_a_small_table():
    # four notes: the word is in notes 0 and 1, the code on note 0 alone
    words = sparse.csr_matrix(np.array([[1], [1], [0], [0]], dtype=np.int8))
    codes = sparse.csr_matrix(np.array([[1], [0], [0], [0]], dtype=np.int8))
    gain = 0.25 * np.log(0.25 / 0.125) + 0.25 * np.log(0.25 / 0.375) + 0.5 * np.log(0.5 / 0.375)
    assert Relevance.of(words, codes, "mutual_information").best(0)[1][0] == pytest.approx(gain)


def test_words_are_sorted_by_score_then_id_and_cut(monkeypatch):
    words, codes = drawn(1)
    full, cut = Relevance.of(words, codes), Relevance.of(words, codes, top=4)
    for j in range(len(full)):
        numbers, scores = full.best(j)
        assert (np.diff(scores) <= 0).all()
        assert all(a < b for a, b, s, t in zip(numbers, numbers[1:], scores, scores[1:]) if s == t)
        np.testing.assert_array_equal(cut.best(j)[0], numbers[:4])
    assert full.best(0)[0][0] == 3 and full.best(0)[1][0] == pytest.approx(1.0)
    monkeypatch.setattr("nosology.models.plant.relevance._CELLS", 45)  # a code at a time
    np.testing.assert_array_equal(Relevance.of(words, codes).words, full.words)


def test_order_of_notes_does_not_matter_and_arrays_round_trip():
    words, codes = drawn(2)
    order = np.random.default_rng(0).permutation(words.shape[0])
    a, b = Relevance.of(words, codes), Relevance.of(words[order], codes[order])
    np.testing.assert_array_equal(a.words, b.words)
    c = Relevance.from_arrays(a.arrays())
    np.testing.assert_array_equal(c.matrix().toarray(), a.matrix().toarray())
    assert a.words.dtype == np.uint16


def test_codes_and_words_of_all_or_no_notes_have_no_relevance():
    words = sparse.csr_matrix(np.array([[1, 0, 1], [1, 0, 0]], dtype=np.int8))
    codes = sparse.csr_matrix(np.array([[1, 0, 1], [1, 0, 0]], dtype=np.int8))
    relevance = Relevance.of(words, codes)
    assert [len(relevance.best(j)[0]) for j in range(3)] == [0, 0, 1]
