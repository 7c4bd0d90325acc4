import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.corpora.duplicates import exact_pairs, jaccard, near_pairs, shingle_fingerprint

WORDS = [f"word{number}" for number in range(3000)]


def text(rng: np.random.Generator, words: int = 200) -> list[str]:
    return [WORDS[number] for number in rng.integers(0, len(WORDS), words)]


def true_jaccard(left: list[str], right: list[str]) -> float:
    sets = [{tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (left, right)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def changed(words: list[str], positions: list[int]) -> list[str]:
    return [f"other{position}" if position in positions else word for position, word in enumerate(words)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abcdefg"), min_size=5, max_size=40), st.lists(st.integers(0, 39), max_size=5))
def test_jaccard_equals_that_of_the_shingle_sets(words, positions):
    other = changed(words, positions)
    got = jaccard(shingle_fingerprint(" ".join(words)).shingles, shingle_fingerprint(" ".join(other)).shingles)
    assert got == pytest.approx(true_jaccard(words, other))


def test_case_blanks_and_punctuation_do_not_count():
    prints = [
        shingle_fingerprint("Chest pain,\r\n  [**Name**] admitted"),
        shingle_fingerprint("chest PAIN name ___ admitted."),
    ]
    assert exact_pairs(prints).tolist() == [[0, 1]]


def test_notes_without_words_have_no_duplicates():
    prints = [shingle_fingerprint(""), shingle_fingerprint(" ... "), shingle_fingerprint("")]
    assert len(exact_pairs(prints)) == 0
    assert len(near_pairs(prints)[0]) == 0


def test_short_notes_are_duplicates_only_if_equal():
    prints = [shingle_fingerprint("no change"), shingle_fingerprint("No change."), shingle_fingerprint("no new change")]
    assert exact_pairs(prints).tolist() == [[0, 1]]
    assert len(near_pairs(prints)[0]) == 0


@pytest.mark.parametrize("threshold", [0.7, 0.8, 0.9])
def test_nearly_all_pairs_above_the_threshold_are_found_and_none_below(threshold):
    rng = np.random.default_rng(1)
    notes, truth = [], set()
    for number in range(300):
        words = text(rng)
        other = changed(words, rng.choice(200, rng.integers(1, 9), replace=False).tolist())
        notes += [words, other]
        if true_jaccard(words, other) >= threshold:
            truth.add((2 * number, 2 * number + 1))
    pairs, similarity = near_pairs([shingle_fingerprint(" ".join(words)) for words in notes], threshold)
    detected = set(map(tuple, pairs.tolist()))
    assert detected <= truth
    assert len(detected) >= 0.98 * len(truth) > 0
    for (left, right), value in zip(pairs, similarity):
        assert value == pytest.approx(true_jaccard(notes[left], notes[right]))


def test_notes_of_a_template_are_not_near_duplicates():
    rng = np.random.default_rng(2)
    template = text(rng, 150)
    prints = [shingle_fingerprint(" ".join(template + text(rng, 100))) for _ in range(300)]
    assert len(near_pairs(prints)[0]) == 0


def test_many_near_duplicates_form_one_connected_cluster():
    from scipy import sparse

    rng = np.random.default_rng(3)
    base = text(rng, 400)
    prints = [shingle_fingerprint(" ".join([*changed(base, [int(rng.integers(400))]), f"tail{n}"])) for n in range(400)]
    pairs, _ = near_pairs(prints)
    assert len(pairs) < 400 * 399 / 2
    graph = sparse.coo_matrix((np.ones(len(pairs)), tuple(pairs.T)), shape=(400, 400))
    assert sparse.csgraph.connected_components(graph, directed=False)[0] == 1
