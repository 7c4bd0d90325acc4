"""Word vectors that are trained with word2vec (gensim) on token ids. Does not import torch.

One worker is reproducible. Several workers are processes that update the same vectors in shared memory without locks
(Hogwild, Recht et al. 2011): their order of updates, and so the result, differs from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from nosology.core import ConfigError
from nosology.core.parallel import parallel_map
from nosology.core.progress import ProgressCounter, counting
from nosology.encoders.tokenizers import PAD, SPECIALS, TokenIds

if TYPE_CHECKING:
    from gensim.models import Word2Vec

_MAX_SENTENCE = 10_000  # words; word2vec ignores what follows in one sentence
_INPUT, _OUTPUT, _DONE = "input", "output", "done"  # shared files: both matrices of word2vec, and notes per process


def train_word_vectors(
    notes: Sequence[TokenIds],
    words: int,
    *,
    size: int = 100,
    epochs: int = 5,
    seed: int = 0,
    workers: int = 1,
) -> np.ndarray:
    """Unit vectors (words, size) of the words of a vocabulary, float32; zeros for padding.

    notes: ids of the vocabulary; unknown words are skipped. A word that does not occur in the notes, and every word if
    `epochs` = 0, gets a random vector. With one worker, the same seed gives the same vectors; more workers are faster,
    but not reproducible.
    """
    vectors = random_vectors(words, size, seed)
    sentences = Sentences(notes, words)
    counts = sentences.word_counts() if epochs else {}
    if counts:
        ids, trained = _word2vec(sentences, counts, size, epochs, seed, max(1, min(workers, len(notes))))
        length = np.linalg.norm(trained, axis=1, keepdims=True)
        vectors[ids] = np.where(length > 0, trained / np.where(length > 0, length, 1), vectors[ids])
    return vectors


def random_vectors(n: int, size: int, seed: int) -> np.ndarray:
    """Random unit vectors (n, size), float32; zeros for padding."""
    drawn = np.random.default_rng([seed, 0x776F7264]).standard_normal((n, size))
    vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    vectors[PAD] = 0
    return vectors


def initial_matrices(words: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Both matrices (words, size) of an untrained word2vec, float32: vectors of words, and of their contexts."""
    drawn = np.random.default_rng([seed, 0x776F7264]).random((words, size)) - 0.5
    return (drawn / size).astype(np.float32), np.zeros((words, size), np.float32)


def train_matrices(
    notes: Sequence[TokenIds],
    matrices: tuple[np.ndarray, np.ndarray],
    *,
    epochs: int,
    done: float,
    end: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Both matrices of word2vec after some epochs on these notes: a part of a longer training.

    done, end: the share of all training before and after these epochs; they give the learning rates.
    """
    vectors, contexts = (matrix.copy() for matrix in matrices)
    words, size = vectors.shape
    sentences = Sentences(notes, words)
    if counts := sentences.word_counts():
        model = _model(counts, size, epochs, seed)
        ids = np.array(model.wv.index_to_key, np.int64)
        model.wv.vectors, model.syn1neg = vectors[ids], contexts[ids]
        first, last = model.alpha, model.min_alpha
        start_alpha, end_alpha = (first - share * (first - last) for share in (done, end))
        model.train(
            sentences, total_examples=len(sentences), epochs=epochs, start_alpha=start_alpha, end_alpha=end_alpha
        )
        vectors[ids], contexts[ids] = model.wv.vectors, model.syn1neg
    return vectors, contexts


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """The vectors (words, size) of length 1, float32; zeros for padding."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = (vectors / np.where(length > 0, length, 1)).astype(np.float32)
    unit[PAD] = 0
    return unit


class Sentences:
    """The ids of the known words of each note, to be read once per epoch of word2vec; counts the notes that were read.

    The ids are strings, always the same objects: gensim takes numbers for positions in its own vocabulary.
    """

    def __init__(self, notes: Sequence[TokenIds], words: int, counter: ProgressCounter | None = None):
        self.notes, self.counter = notes, counter or ProgressCounter()
        self.names = [str(word) for word in range(words)]

    def __iter__(self) -> Iterator[list[str]]:
        for note in self.notes:
            known = list(map(self.names.__getitem__, note.ids[note.ids >= SPECIALS].tolist()))
            for start in range(0, len(known), _MAX_SENTENCE):
                yield known[start : start + _MAX_SENTENCE]
            self.counter.advance()

    def word_counts(self) -> dict[str, int]:
        """The number of occurrences of each word that occurs, by first occurrence, as word2vec numbers them."""
        counts = np.zeros(len(self.names), np.int64)
        order: dict[int, None] = {}
        for note in self.notes:
            new = note.ids[counts[note.ids] == 0]
            order.update(dict.fromkeys(new.tolist()))
            np.add.at(counts, note.ids, 1)
        return {self.names[word]: int(counts[word]) for word in order if word >= SPECIALS}

    def __len__(self) -> int:
        """The number of sentences."""
        lengths = (int(np.count_nonzero(note.ids >= SPECIALS)) for note in self.notes)
        return sum(-(-length // _MAX_SENTENCE) for length in lengths)


def _word2vec(
    sentences: Sentences, counts: dict[str, int], size: int, epochs: int, seed: int, workers: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ids (W,) of the words that occur, and their vectors (W, size)."""
    shown = {"title": f"word vectors, {epochs} epochs", "total": epochs * len(sentences.notes)}
    if workers == 1:
        model = _model(counts, size, epochs, seed)
        with counting(**shown, counter=sentences.counter):
            model.train(sentences, total_examples=len(sentences), epochs=epochs)
        return np.array(model.wv.index_to_key, np.int64), model.wv.vectors
    with TemporaryDirectory(prefix="nosology-vectors-") as name:
        folder = Path(name)
        model = _model(counts, size, epochs, seed)
        _share(folder / _INPUT, model.wv.vectors)
        _share(folder / _OUTPUT, model.syn1neg)
        counter = _SharedCounter(_share(folder / _DONE, np.zeros(workers, np.int64)))
        parts = [
            (folder, sentences.notes[i::workers], len(sentences.names), counts, size, epochs, seed, i)
            for i in range(workers)
        ]
        with counting(**shown, counter=counter):
            list(parallel_map(_train_part, parts, workers))
        return np.array(model.wv.index_to_key, np.int64), np.array(_shared(folder / _INPUT, model.wv.vectors))


def _model(counts: dict[str, int], size: int, epochs: int, seed: int) -> Word2Vec:
    """An untrained model of these words; for the same arguments always the same."""
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise ConfigError("word vectors need gensim, which is not installed: pip install 'nosology[train]'") from error
    # The vocabulary is already filtered.
    model = Word2Vec(vector_size=size, epochs=epochs, min_count=1, seed=seed, workers=1)
    model.build_vocab_from_freq(counts)
    return model


def _train_part(
    folder: Path,
    notes: Sequence[TokenIds],
    words: int,
    counts: dict[str, int],
    size: int,
    epochs: int,
    seed: int,
    part: int,
) -> None:
    """Trains the shared vectors on the notes of one process."""
    model = _model(counts, size, epochs, seed)
    model.random = np.random.RandomState([seed % 2**32, part])
    model.wv.vectors = _shared(folder / _INPUT, model.wv.vectors)
    model.syn1neg = _shared(folder / _OUTPUT, model.syn1neg)
    done = _shared(folder / _DONE, np.zeros(0, np.int64))
    sentences = Sentences(notes, words, _PartCounter(done, part))
    model.train(sentences, total_examples=len(sentences), epochs=epochs)


def _share(path: Path, values: np.ndarray) -> np.ndarray:
    """The values in a file that other processes change."""
    values.tofile(path)
    return _shared(path, values)


def _shared(path: Path, like: np.ndarray) -> np.ndarray:
    """The array in a file, of the type and width of `like`; changes reach all processes."""
    return np.asarray(np.memmap(path, like.dtype, "r+")).reshape(-1, *like.shape[1:])


class _SharedCounter(ProgressCounter):
    """The sum of the counts of all processes."""

    def __init__(self, done: np.ndarray):
        super().__init__()
        self.done = done

    def value(self) -> int:
        return int(self.done.sum())


class _PartCounter(ProgressCounter):
    """The count of one process in shared memory."""

    def __init__(self, done: np.ndarray, part: int):
        super().__init__()
        self.done, self.part = done, part

    def advance(self, n: int = 1) -> None:
        self.done[self.part] += n
