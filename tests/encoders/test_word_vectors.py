from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from gensim.models import Word2Vec

from nosology.core import ConfigError
from nosology.encoders.tokenizers import PAD, Vocabulary, WordTokenizer
from nosology.encoders.word_vectors import train_word_vectors
from tests.encoders.counts import note_counts

SEEN = ["fever and cough today", "fever with cough again", "heart failure was seen", "failure of the heart"] * 30
VOCABULARY = Vocabulary.build(note_counts(SEEN), min_notes=1, extra_words=["appendectomy"])


def vectors(texts=SEEN, vocabulary=VOCABULARY, max_words=4000, **settings):
    notes = [WordTokenizer(vocabulary, max_words).tokenize(text) for text in texts]
    return train_word_vectors(notes, len(vocabulary), **{"size": 12, "epochs": 3} | settings)


def test_one_worker_equals_gensim_on_words():
    rng = np.random.default_rng(1)
    words = [f"w{i}" for i in range(300)]
    texts = [" ".join(rng.choice(words, size, p=np.arange(1, 301) / 45150)) for size in (0, 1, 40, 700, 12_000, 25_003)]
    vocabulary = Vocabulary.build(note_counts(texts), min_notes=2)
    known = [[word for word in text.split() if word in vocabulary] for text in texts]
    sentences = [note[start : start + 10_000] for note in known for start in range(0, len(note), 10_000)]
    expected = Word2Vec(sentences, vector_size=12, epochs=3, min_count=1, seed=5, workers=1).wv
    trained = vectors(texts, vocabulary, 50_000, seed=5)[vocabulary.ids(expected.index_to_key)]
    np.testing.assert_allclose(trained, expected.get_normed_vectors(), atol=1e-6)


def test_several_workers_learn_the_same_similarities():
    rng = np.random.default_rng(0)
    groups = [[f"{letter}{i}" for i in range(8)] for letter in "ab"]
    texts = [" ".join(rng.choice(groups[i // 2 % 2], 12)) for i in range(600)]  # both workers see both groups
    vocabulary = Vocabulary.build(note_counts(texts), min_notes=1)
    trained = vectors(texts, vocabulary, epochs=10, workers=2)
    a, b = (trained[vocabulary.ids(group)] for group in groups)
    assert (a @ a.T).mean() > (a @ b.T).mean() + 0.3
    assert not np.array_equal(trained, vectors(texts, vocabulary, epochs=10))


def test_words_have_unit_vectors_and_padding_is_zero():
    trained = vectors()
    assert trained.shape == (len(VOCABULARY), 12)
    assert trained.dtype == np.float32
    assert not trained[PAD].any()
    np.testing.assert_allclose(np.linalg.norm(trained[1:], axis=1), 1, atol=1e-6)


def test_same_seed_gives_same_vectors():
    np.testing.assert_array_equal(vectors(seed=3), vectors(seed=3))
    assert not np.allclose(vectors(seed=3), vectors(seed=4))


def test_another_process_gives_the_same_vectors():
    program = (
        "import hashlib; from tests.encoders.test_word_vectors import vectors;"
        "print(hashlib.sha256(vectors().tobytes()).hexdigest())"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": "77"})
    assert run.stdout.strip() == hashlib.sha256(vectors().tobytes()).hexdigest()


def test_words_outside_the_notes_keep_random_vectors():
    # A vocabulary may know more words than the notes have: these keep their random direction.
    wider = Vocabulary([*VOCABULARY.words, "dialysis"])
    trained, random = vectors(vocabulary=wider), vectors(vocabulary=wider, epochs=0)
    unseen = wider.ids(["appendectomy", "dialysis"])
    np.testing.assert_array_equal(trained[unseen], random[unseen])
    seen = wider.ids(["fever", "heart"])
    assert not np.allclose(trained[seen], random[seen])


def test_words_after_max_words_are_ignored():
    tail = [text + " appendectomy" for text in SEEN]
    words = max(len(text.split()) for text in SEEN)
    column = VOCABULARY.ids(["appendectomy"])[0]
    assert np.array_equal(vectors(tail, max_words=words - 1)[column], vectors(epochs=0)[column])
    assert not np.allclose(vectors(tail)[column], vectors(epochs=0)[column])


def test_words_of_similar_context_are_similar():
    rng = np.random.default_rng(0)
    groups = [[f"{letter}{i}" for i in range(8)] for letter in "ab"]
    texts = [" ".join(rng.choice(groups[i % 2], 12)) for i in range(600)]
    vocabulary = Vocabulary.build(note_counts(texts), min_notes=1)
    trained = vectors(texts, vocabulary, epochs=10)
    a, b = (trained[vocabulary.ids(group)] for group in groups)
    assert (a @ a.T).mean() > (a @ b.T).mean() + 0.3


def test_notes_without_known_words_leave_random_vectors():
    np.testing.assert_array_equal(vectors(["zzz"]), vectors(epochs=0))
    np.testing.assert_array_equal(vectors([]), vectors(epochs=0))


def test_missing_gensim_raises_config_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ConfigError, match=r"gensim.*pip install 'nosology\[train\]'"):
        vectors()
