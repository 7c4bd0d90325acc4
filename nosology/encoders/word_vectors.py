"""Word vectors, learned from the notes that a coder is trained on and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from nosology.core import ConfigError
from nosology.encoders.vocabulary import PAD, Vocabulary
from nosology.text.tokens import words_of

_LONGEST = 10_000  # words; word2vec leaves out what stands after them in one sentence


def train_word_vectors(
    texts: Callable[[], Iterable[str]],
    vocabulary: Vocabulary,
    *,
    size: int = 100,
    epochs: int = 5,
    max_words: int = 4000,
    seed: int = 0,
    workers: int = 1,
) -> np.ndarray:
    """Vectors (V, size) of the words of a vocabulary, float32, each of length 1; the pad's are zeros.

    texts: gives the notes anew each time it is called; the first `max_words` words of each are read, words outside the
    vocabulary are passed over. A word that word2vec has not seen, and every word with `epochs` = 0, gets a random
    direction. The same seed gives the same vectors with one worker; several are faster, and no two runs are alike.
    """
    vectors = random_vectors(len(vocabulary), size, seed)
    if epochs:
        learned = _word2vec(_Sentences(texts, vocabulary, max_words), size, epochs, seed, workers)
        for word, vector in learned:
            length = np.linalg.norm(vector)
            if length > 0:
                vectors[vocabulary.ids([word])[0]] = vector / length
    return vectors


def random_vectors(n: int, size: int, seed: int) -> np.ndarray:
    """Random directions (n, size), float32, each of length 1; the pad's are zeros."""
    drawn = np.random.default_rng([seed, 0x776F7264]).standard_normal((n, size))
    vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    vectors[PAD] = 0
    return vectors


class _Sentences:
    """Each note as a list of known words, as often as word2vec asks for them."""

    def __init__(self, texts: Callable[[], Iterable[str]], vocabulary: Vocabulary, max_words: int):
        self.texts, self.vocabulary, self.max_words = texts, vocabulary, max_words

    def __iter__(self) -> Iterator[list[str]]:
        for text in self.texts():
            known = [word for word in words_of(text)[: self.max_words] if word in self.vocabulary]
            for start in range(0, len(known), _LONGEST):
                yield known[start : start + _LONGEST]


def _word2vec(
    sentences: _Sentences, size: int, epochs: int, seed: int, workers: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Each word that the sentences have, with its vector."""
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise ConfigError("word vectors need gensim, which is not installed: pip install nosology[train]") from error

    if next(iter(sentences), None) is None:
        return
    model = Word2Vec(
        sentences,
        vector_size=size,
        epochs=epochs,
        min_count=1,  # the vocabulary has chosen already
        seed=seed,
        workers=workers,
    )
    yield from zip(model.wv.index_to_key, model.wv.vectors)
