from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from nosology.core import ConfigError
from nosology.encoders.tokenizers import PAD, Vocabulary
from nosology.encoders.word_vectors import train_word_vectors

SEEN = ["fever and cough today", "fever with cough again", "heart failure was seen", "failure of the heart"] * 30
VOCABULARY = Vocabulary.build(SEEN, min_notes=1, extra_words=["appendectomy"])


def vectors(texts=SEEN, vocabulary=VOCABULARY, **settings):
    return train_word_vectors(lambda: iter(texts), vocabulary, **{"size": 12, "epochs": 3} | settings)


def test_every_word_has_a_vector_of_length_one_and_the_pad_has_none():
    found = vectors()
    assert found.shape == (len(VOCABULARY), 12)
    assert found.dtype == np.float32
    assert not found[PAD].any()
    np.testing.assert_allclose(np.linalg.norm(found[1:], axis=1), 1, atol=1e-6)


def test_the_seed_decides():
    np.testing.assert_array_equal(vectors(seed=3), vectors(seed=3))
    assert not np.allclose(vectors(seed=3), vectors(seed=4))


def test_another_process_gives_the_same():
    program = (
        "import hashlib; from tests.encoders.test_word_vectors import vectors;"
        "print(hashlib.sha256(vectors().tobytes()).hexdigest())"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": "77"})
    assert run.stdout.strip() == hashlib.sha256(vectors().tobytes()).hexdigest()


def test_only_the_given_notes_are_learned_from():
    # A vocabulary may know more words than the notes have: these keep their random direction.
    wider = Vocabulary([*VOCABULARY.words, "dialysis"])
    found, random = vectors(vocabulary=wider), vectors(vocabulary=wider, epochs=0)
    unseen = wider.ids(["appendectomy", "dialysis"])
    np.testing.assert_array_equal(found[unseen], random[unseen])
    seen = wider.ids(["fever", "heart"])
    assert not np.allclose(found[seen], random[seen])


def test_words_after_the_cut_are_not_read():
    tail = [text + " appendectomy" for text in SEEN]
    words = max(len(text.split()) for text in SEEN)
    column = VOCABULARY.ids(["appendectomy"])[0]
    assert np.array_equal(vectors(tail, max_words=words - 1)[column], vectors(epochs=0)[column])
    assert not np.allclose(vectors(tail)[column], vectors(epochs=0)[column])


def test_words_of_like_use_come_to_lie_close():
    rng = np.random.default_rng(0)
    groups = [[f"{letter}{i}" for i in range(8)] for letter in "ab"]
    texts = [" ".join(rng.choice(groups[i % 2], 12)) for i in range(600)]
    vocabulary = Vocabulary.build(texts, min_notes=1)
    found = vectors(texts, vocabulary, epochs=10)
    a, b = (found[vocabulary.ids(group)] for group in groups)
    assert (a @ a.T).mean() > (a @ b.T).mean() + 0.3


def test_notes_without_a_known_word_leave_random_vectors():
    np.testing.assert_array_equal(vectors(["zzz"]), vectors(epochs=0))
    np.testing.assert_array_equal(vectors([]), vectors(epochs=0))


def test_a_missing_gensim_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ConfigError, match=r"gensim.*pip install nosology\[train\]"):
        vectors()
