"""TF-IDF vectors of notes over words and word pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field
from scipy import sparse

from nosology.core.settings import Settings
from nosology.text import Tokens, tokenize
from nosology.text.tokens import words_of

SHORT_SHARE = 0.05  # of the training notes have shorter rows than `Tfidf.shortest`


class TfidfSettings(Settings):
    """How notes become vectors."""

    renamed: ClassVar[dict[str, str]] = {"words_a_note": "words_per_note"}

    min_notes: int = Field(1, ge=1)  # words in fewer training notes are ignored
    words_per_note: int = Field(400, ge=1)  # mean number of distinct words; the most common words are ignored first
    pair_min_notes: int = Field(2, ge=1)  # the same for pairs of neighbouring words
    pair_weight: float = Field(0.3, ge=0, le=1000)  # factor of pairs; 0: no pairs
    max_words: int = Field(200_000, ge=1)  # the most frequent ones
    max_pairs: int = Field(400_000, ge=0)
    pair_sample: int = Field(40_000, ge=1)  # pairs are chosen on at most this many notes


class Occurrences(NamedTuple):
    """The features of a note at their positions: features[i] covers length[i] tokens, starting with token first[i]."""

    features: np.ndarray
    first: np.ndarray
    length: np.ndarray
    tokens: Tokens


class Tfidf:
    """Log term frequency times inverse document frequency, pairs scaled by `pair_weight`, rows of unit length.

    A note shorter than almost all training notes has a shorter row: with unit length, its few words would weigh much
    more than in training notes. Its norm is halfway between the two, in logarithms.

    Features 0 .. W-1 are words; feature W + i is the pair `pairs[i]` = first word * W + second word.
    """

    def __init__(self, words: list[str], pairs: np.ndarray, scale: np.ndarray, shortest: float):
        self.words = words
        self.pairs = np.asarray(pairs, dtype=np.int64)  # sorted
        self.scale = np.asarray(scale, dtype=np.float32)  # (W + P,) idf, times the weight of its kind
        self.shortest = shortest  # a row shorter than this is divided by the geometric mean of both
        self._id = {word: i for i, word in enumerate(words)}

    def __len__(self) -> int:
        return len(self.scale)

    @classmethod
    def fit(cls, texts: Iterable[str], settings: TfidfSettings) -> tuple[Tfidf, sparse.csr_matrix]:
        """The vectoriser of these notes, and their vectors (B, features). The texts are streamed; none is stored."""
        ids: defaultdict[str, int] = defaultdict()
        ids.default_factory = ids.__len__
        notes = [np.fromiter(map(ids.__getitem__, words_of(text)), dtype=np.int32) for text in texts]
        word_notes = _document_frequency(notes, len(ids))
        rare = np.where(word_notes <= _max_frequency(word_notes, len(notes), settings.words_per_note), word_notes, 0)
        chosen = _most_frequent(rare, settings.min_notes, settings.max_words)
        renumber = np.full(len(ids) + 1, -1, dtype=np.int64)
        renumber[chosen] = np.arange(len(chosen))
        notes = [renumber[note] for note in notes]
        pairs, pair_notes = _frequent_pairs(notes, len(chosen), settings)
        spelling = list(ids)
        idf = np.concatenate(
            [_idf(word_notes[chosen], len(notes)), _idf(pair_notes, len(notes)) * settings.pair_weight]
        )
        fitted = cls([spelling[i] for i in chosen], pairs, idf, 0.0)
        lengths = [length for note in notes if (length := np.linalg.norm(fitted._values(note)[1])) > 0]
        if lengths:
            fitted.shortest = float(np.quantile(lengths, SHORT_SHARE, method="lower"))
        return fitted, _stack([fitted._vector(note) for note in notes], len(fitted))

    @classmethod
    def from_counts(
        cls, words: Mapping[str, int], pairs: Mapping[tuple[str, str], int], n_notes: int, settings: TfidfSettings
    ) -> Tfidf:
        """The vectoriser of notes with these document frequencies, without `shortest`; words are in sorted order."""
        spelling = sorted(words)
        word_notes = np.array([words[word] for word in spelling], dtype=np.int64)
        rare = np.where(word_notes <= _max_frequency(word_notes, n_notes, settings.words_per_note), word_notes, 0)
        chosen = _most_frequent(rare, settings.min_notes, settings.max_words)
        number = {spelling[word]: i for i, word in enumerate(chosen.tolist())}
        known = {
            number[first] * len(number) + number[second]: notes
            for (first, second), notes in pairs.items()
            if first in number and second in number
        }
        keys = np.array(sorted(known), dtype=np.int64)
        pair_notes = np.array([known[key] for key in keys.tolist()], dtype=np.int64)
        frequent = _most_frequent(pair_notes, settings.pair_min_notes, settings.max_pairs)
        idf = np.concatenate(
            [_idf(word_notes[chosen], n_notes), _idf(pair_notes[frequent], n_notes) * settings.pair_weight]
        )
        return cls([spelling[word] for word in chosen.tolist()], keys[frequent], idf, 0.0)

    def lengths(self, texts: Iterable[str]) -> np.ndarray:
        """The norm (B,) of the vector of each note before it is scaled to unit length."""
        return np.array([np.linalg.norm(self._values(self._ids(words_of(text)))[1]) for text in texts])

    def transform(self, texts: Iterable[str]) -> sparse.csr_matrix:
        """The vectors (B, features) of notes; a note without a known word is all zeros."""
        return _stack([self._vector(self._ids(words_of(text))) for text in texts], len(self))

    def occurrences(self, text: str) -> Occurrences:
        """Every occurrence of every feature of a note, words first."""
        tokens = tokenize(text)
        ids = self._ids(tokens.words)
        words = np.flatnonzero(ids >= 0)
        pair_features, pair_first = self._pairs_of(ids)
        return Occurrences(
            np.concatenate([ids[words], pair_features]),
            np.concatenate([words, pair_first]),
            np.repeat([1, 2], [len(words), len(pair_first)]),
            tokens,
        )

    def _ids(self, words: list[str]) -> np.ndarray:
        get = self._id.get
        return np.fromiter((get(word, -1) for word in words), dtype=np.int64, count=len(words))

    def _pairs_of(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pair features of a token sequence, and the positions of their first words."""
        if not len(self.pairs):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        keys, first = _pair_keys(ids, len(self.words))
        at = np.minimum(np.searchsorted(self.pairs, keys), len(self.pairs) - 1)
        known = self.pairs[at] == keys
        return len(self.words) + at[known], first[known]

    def _vector(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The features of a token sequence in ascending order, and their values in a row of unit length or less."""
        features, values = self._values(ids)
        length = np.linalg.norm(values)
        length = np.sqrt(length * max(length, self.shortest))
        return features.astype(np.int32), (values / length if length > 0 else values).astype(np.float32)

    def _values(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        features, counts = np.unique(np.concatenate([ids[ids >= 0], self._pairs_of(ids)[0]]), return_counts=True)
        return features, (1 + np.log(counts)) * self.scale[features]


def keep_largest(matrix: sparse.csr_matrix, k: int) -> sparse.csr_matrix:
    """The matrix with only the k largest absolute values of each row (CSR) or column (CSC), changed in place."""
    for start, end in zip(matrix.indptr[:-1], matrix.indptr[1:]):
        if end - start > k:
            part = matrix.data[start:end]
            part[np.argpartition(-np.abs(part), k)[k:]] = 0
    matrix.eliminate_zeros()
    return matrix


def _pair_keys(ids: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray]:
    first = np.flatnonzero((ids[:-1] >= 0) & (ids[1:] >= 0))
    return ids[first] * n_words + ids[first + 1], first


def _frequent_pairs(notes: list[np.ndarray], n_words: int, settings: TfidfSettings) -> tuple[np.ndarray, np.ndarray]:
    """The most frequent pairs, sorted, and the number of notes with each, estimated from a sample."""
    step = -(-len(notes) // settings.pair_sample)  # every step-th note
    if not settings.pair_weight or not settings.max_pairs or not notes:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = np.concatenate([np.unique(_pair_keys(note, n_words)[0]) for note in notes[::step]])
    pairs, pair_notes = np.unique(keys, return_counts=True)
    chosen = _most_frequent(pair_notes, settings.pair_min_notes, settings.max_pairs)
    return pairs[chosen], np.minimum(pair_notes[chosen] * step, len(notes))


def _document_frequency(notes: list[np.ndarray], n_words: int) -> np.ndarray:
    total = np.zeros(n_words, dtype=np.int64)
    for note in notes:
        total[np.unique(note)] += 1
    return total


def _max_frequency(word_notes: np.ndarray, n_notes: int, words_per_note: int) -> float:
    """The largest document frequency with which notes have at most `words_per_note` distinct words on average.

    Long notes share most of their words; these separate no codes and take most of the time. In short notes all words
    are features, because a common word may name a common disease.
    """
    ascending = np.sort(word_notes)
    fitting = np.cumsum(ascending) <= words_per_note * n_notes
    return np.inf if fitting.all() else ascending[np.argmin(fitting)] - 1


def _most_frequent(counts: np.ndarray, at_least: int, at_most: int) -> np.ndarray:
    """The positions of the largest counts, ascending."""
    chosen = np.flatnonzero(counts >= at_least)
    if len(chosen) > at_most:
        chosen = np.sort(chosen[np.argsort(-counts[chosen], kind="stable")[:at_most]])
    return chosen


def _idf(document_frequency: np.ndarray, n_notes: int) -> np.ndarray:
    return np.log((1 + n_notes) / (1 + document_frequency)) + 1


def _stack(rows: list[tuple[np.ndarray, np.ndarray]], width: int) -> sparse.csr_matrix:
    if not rows:
        return sparse.csr_matrix((0, width), dtype=np.float32)
    indptr = np.concatenate([[0], np.cumsum([len(features) for features, _ in rows])])
    indices, values = (np.concatenate(parts) for parts in zip(*rows))
    return sparse.csr_matrix((values, indices, indptr), shape=(len(rows), width))
