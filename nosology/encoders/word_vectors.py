"""Word vectors trained with word2vec on the training notes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from nosology.core import ConfigError
from nosology.encoders.tokenizers import PAD, Vocabulary
from nosology.text.tokens import words_of

_MAX_SENTENCE = 10_000  # words; word2vec ignores what follows in one sentence


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
    """Unit vectors (V, size) of the words of a vocabulary, float32; zeros for padding.

    texts: returns a new iterator over the notes at each call. The first `max_words` words of each note are used; words
    outside the vocabulary are skipped. A word that does not occur in the notes, and every word if `epochs` = 0, gets a
    random vector. With one worker, the same seed gives the same vectors; more workers are faster, but not reproducible.
    """
    vectors = random_vectors(len(vocabulary), size, seed)
    if epochs:
        for word, vector in _word2vec(_Sentences(texts, vocabulary, max_words), size, epochs, seed, workers):
            length = np.linalg.norm(vector)
            if length > 0:
                vectors[vocabulary.ids([word])[0]] = vector / length
    return vectors


def random_vectors(n: int, size: int, seed: int) -> np.ndarray:
    """Random unit vectors (n, size), float32; zeros for padding."""
    drawn = np.random.default_rng([seed, 0x776F7264]).standard_normal((n, size))
    vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    vectors[PAD] = 0
    return vectors


class _Sentences:
    """The known words of each note; iterable as often as word2vec needs."""

    def __init__(self, texts: Callable[[], Iterable[str]], vocabulary: Vocabulary, max_words: int):
        self.texts, self.vocabulary, self.max_words = texts, vocabulary, max_words

    def __iter__(self) -> Iterator[list[str]]:
        for text in self.texts():
            known = [word for word in words_of(text)[: self.max_words] if word in self.vocabulary]
            for start in range(0, len(known), _MAX_SENTENCE):
                yield known[start : start + _MAX_SENTENCE]


def _word2vec(
    sentences: _Sentences, size: int, epochs: int, seed: int, workers: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Each word of the sentences with its vector."""
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
        min_count=1,  # the vocabulary is already filtered
        seed=seed,
        workers=workers,
    )
    for word in model.wv.key_to_index:
        yield word, model.wv[word]
