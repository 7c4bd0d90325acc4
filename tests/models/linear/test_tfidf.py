"""TF-IDF vectors, compared with scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from nosology.models.linear.tfidf import Tfidf, TfidfSettings
from nosology.text import tokenize

NOTES = [
    "Chest pain. No chest pain at rest; troponin negative.",
    "Heart failure with chest pain",
    "heart failure, heart failure, HEART failure!",
    "",
    "Fiebre y tos",
]


def as_dict(tfidf, row):
    spelling = tfidf.words + [
        f"{tfidf.words[key // len(tfidf.words)]} {tfidf.words[key % len(tfidf.words)]}" for key in tfidf.pairs
    ]
    return {spelling[i]: v for i, v in zip(row.indices, row.data)}


@pytest.mark.parametrize("min_notes", [1, 2])
def test_equals_scikit_learn(min_notes):
    options = TfidfSettings(min_notes=min_notes, pair_min_notes=min_notes, pair_weight=1.0)
    tfidf, vectors = Tfidf.fit(NOTES, options)
    oracle = TfidfVectorizer(
        ngram_range=(1, 2),
        min_df=min_notes,
        sublinear_tf=True,
        tokenizer=lambda t: tokenize(t).words,
        token_pattern=None,
    )
    expected = oracle.fit_transform(NOTES)
    names = oracle.get_feature_names_out()
    for i in range(len(NOTES)):
        row = expected[i]
        wanted = {names[j]: v for j, v in zip(row.indices, row.data)}
        assert as_dict(tfidf, vectors[i]) == pytest.approx(wanted, rel=1e-5)


def test_pair_weight_scales_pairs_only():
    light, _ = Tfidf.fit(NOTES, TfidfSettings(pair_weight=0.5, pair_min_notes=1))
    heavy, _ = Tfidf.fit(NOTES, TfidfSettings(pair_weight=1.0, pair_min_notes=1))
    words = len(light.words)
    assert light.scale[:words] == pytest.approx(heavy.scale[:words])
    assert light.scale[words:] == pytest.approx(heavy.scale[words:] / 2)


def test_limits_select_the_most_frequent():
    tfidf, _ = Tfidf.fit(NOTES, TfidfSettings(max_words=2, max_pairs=1, pair_min_notes=1))
    assert len(tfidf.words) == 2
    assert set(tfidf.words) <= {"heart", "failure", "chest", "pain"}
    assert len(tfidf.pairs) == 1
    none, _ = Tfidf.fit(NOTES, TfidfSettings(pair_weight=0))
    assert len(none.pairs) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="ab c.\n", max_size=30), min_size=1, max_size=6))
def test_fit_returns_the_vectors_of_transform(texts):
    tfidf, vectors = Tfidf.fit(texts, TfidfSettings(pair_min_notes=1))
    again = tfidf.transform(texts)
    assert np.array_equal(vectors.toarray(), again.toarray())
    lengths = np.sqrt(again.multiply(again).sum(1))
    assert np.all(np.isclose(lengths, 1, atol=1e-5) | (lengths == 0))


def test_occurrences_have_the_right_positions():
    text = "Heart failure; no heart\nfailure"
    tfidf, _ = Tfidf.fit(NOTES, TfidfSettings(pair_min_notes=1))
    occurrences = tfidf.occurrences(text)
    for feature, first, length in zip(occurrences.features, occurrences.first, occurrences.length):
        words = occurrences.tokens.words[first : first + length]
        if length == 1:
            assert tfidf.words[feature] == words[0]
        else:
            key = tfidf.pairs[feature - len(tfidf.words)]
            assert [tfidf.words[key // len(tfidf.words)], tfidf.words[key % len(tfidf.words)]] == words
    assert occurrences.length.tolist().count(2) == 2


def test_all_words_of_short_notes_are_features():
    tfidf, _ = Tfidf.fit(["the cough", "the fever", "the gout"], TfidfSettings())
    assert set(tfidf.words) == {"the", "cough", "fever", "gout"}


def test_most_common_words_of_long_notes_are_ignored():
    notes = ["the and cough", "the and fever", "the gout"]  # 2.7 distinct words per note
    for words_per_note, expected in ((2, {"and", "cough", "fever", "gout"}), (1, {"cough", "fever", "gout"})):
        tfidf, vectors = Tfidf.fit(notes, TfidfSettings(words_per_note=words_per_note, pair_weight=0))
        assert set(tfidf.words) == expected
        assert vectors.nnz / len(notes) <= words_per_note


def test_very_short_note_has_a_shorter_row():
    long = [f"word{i} " + " ".join(f"w{j}" for j in range(i, i + 200)) for i in range(40)]
    tfidf, _ = Tfidf.fit(long, TfidfSettings())
    lengths = [np.linalg.norm(tfidf.transform([text]).data) for text in (long[20], "w20 w21", "w20")]
    assert lengths[0] == pytest.approx(1, abs=0.05)
    assert 0 < lengths[2] < lengths[1] < 0.5
