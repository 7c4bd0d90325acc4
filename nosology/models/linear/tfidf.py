"""Words and word pairs of a note as one sparse unit vector."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from pydantic import Field
from scipy import sparse

from nosology.core.settings import Settings
from nosology.text import Tokens, tokenize

SHORT_SHARE = 0.05  # of the training notes may be shorter than `Tfidf.shortest`


class TfidfSettings(Settings):
    """How notes become vectors."""

    min_notes: int = Field(1, ge=1)  # a word in fewer training notes is no feature
    words_a_note: int = Field(400, ge=1)  # if notes have more different words on average, the commonest are left out
    pair_min_notes: int = Field(2, ge=1)  # the same for a pair of neighbouring words
    pair_weight: float = Field(0.3, ge=0)  # pairs count less than words; 0 leaves them out
    max_words: int = Field(200_000, ge=1)  # the most frequent are kept
    max_pairs: int = Field(400_000, ge=0)
    pair_sample: int = Field(40_000, ge=1)  # pairs are chosen on at most this many notes


@dataclass(frozen=True)
class Occurrences:
    """The features of one note where they stand: features[i] covers length[i] tokens from token first[i] on."""

    tokens: Tokens
    features: np.ndarray
    first: np.ndarray
    length: np.ndarray


class Tfidf:
    """Log term frequency times inverse document frequency, pairs scaled by `pair_weight`, rows of unit length.

    A note shorter than almost all training notes keeps a shorter row: stretched to unit length, its few words would
    weigh many times what they do in the notes that the weights come from. Half the way (in logarithms) is gone.

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
        """The vectoriser of these notes, and their vectors (B, features). The texts are read once and not kept."""
        ids: defaultdict[str, int] = defaultdict()
        ids.default_factory = ids.__len__
        notes = [np.fromiter(map(ids.__getitem__, tokenize(text).words), dtype=np.int32) for text in texts]
        word_notes = _document_frequency(notes, len(ids))
        rare = np.where(word_notes <= _commonest(word_notes, len(notes), settings.words_a_note), word_notes, 0)
        kept = _most_frequent(rare, settings.min_notes, settings.max_words)
        renumber = np.full(len(ids) + 1, -1, dtype=np.int64)
        renumber[kept] = np.arange(len(kept))
        notes = [renumber[note] for note in notes]
        pairs, pair_notes = _frequent_pairs(notes, len(kept), settings)
        spelling = list(ids)
        idf = np.concatenate([_idf(word_notes[kept], len(notes)), _idf(pair_notes, len(notes)) * settings.pair_weight])
        fitted = cls([spelling[i] for i in kept], pairs, idf, 0.0)
        lengths = [length for note in notes if (length := np.linalg.norm(fitted._values(note)[1])) > 0]
        if lengths:
            fitted.shortest = float(np.quantile(lengths, SHORT_SHARE, method="lower"))
        return fitted, _stack([fitted._vector(note) for note in notes], len(fitted))

    def transform(self, texts: Iterable[str]) -> sparse.csr_matrix:
        """The vectors (B, features) of notes; a note without a known word is all zeros."""
        return _stack([self._vector(self._ids(tokenize(text).words)) for text in texts], len(self))

    def occurrences(self, text: str) -> Occurrences:
        """Every feature of a note at every place where it stands, words first."""
        found = tokenize(text)
        ids = self._ids(found.words)
        words = np.flatnonzero(ids >= 0)
        pair_features, pair_first = self._pairs_of(ids)
        return Occurrences(
            found,
            np.concatenate([ids[words], pair_features]),
            np.concatenate([words, pair_first]),
            np.repeat([1, 2], [len(words), len(pair_first)]),
        )

    def _ids(self, words: list[str]) -> np.ndarray:
        get = self._id.get
        return np.fromiter((get(word, -1) for word in words), dtype=np.int64, count=len(words))

    def _pairs_of(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pair features of a token sequence and the places of their first words."""
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


def _pair_keys(ids: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray]:
    first = np.flatnonzero((ids[:-1] >= 0) & (ids[1:] >= 0))
    return ids[first] * n_words + ids[first + 1], first


def _frequent_pairs(notes: list[np.ndarray], n_words: int, settings: TfidfSettings) -> tuple[np.ndarray, np.ndarray]:
    """The pairs to keep, sorted, and the number of notes each stands in (scaled up where only a sample was read)."""
    step = -(-len(notes) // settings.pair_sample)  # every step-th note
    if not settings.pair_weight or not settings.max_pairs or not notes:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = np.concatenate([np.unique(_pair_keys(note, n_words)[0]) for note in notes[::step]])
    pairs, pair_notes = np.unique(keys, return_counts=True)
    kept = _most_frequent(pair_notes, settings.pair_min_notes, settings.max_pairs)
    return pairs[kept], np.minimum(pair_notes[kept] * step, len(notes))


def _document_frequency(notes: list[np.ndarray], n_words: int) -> np.ndarray:
    total = np.zeros(n_words, dtype=np.int64)
    for note in notes:
        total[np.unique(note)] += 1
    return total


def _commonest(word_notes: np.ndarray, n_notes: int, words_a_note: int) -> float:
    """The document frequency up to which words fit into `words_a_note` different words a note on average.

    Long notes share most of their words; these tell no code apart and take most of the time. Short notes keep them all,
    since there a common word may name a common disease.
    """
    ascending = np.sort(word_notes)
    fitting = np.cumsum(ascending) <= words_a_note * n_notes
    return np.inf if fitting.all() else ascending[np.argmin(fitting)] - 1


def _most_frequent(counts: np.ndarray, at_least: int, at_most: int) -> np.ndarray:
    """Positions of the counts to keep, ascending."""
    kept = np.flatnonzero(counts >= at_least)
    if len(kept) > at_most:
        kept = np.sort(kept[np.argsort(-counts[kept], kind="stable")[:at_most]])
    return kept


def _idf(document_frequency: np.ndarray, n_notes: int) -> np.ndarray:
    return np.log((1 + n_notes) / (1 + document_frequency)) + 1


def _stack(rows: list[tuple[np.ndarray, np.ndarray]], width: int) -> sparse.csr_matrix:
    if not rows:
        return sparse.csr_matrix((0, width), dtype=np.float32)
    indptr = np.concatenate([[0], np.cumsum([len(features) for features, _ in rows])])
    indices, values = (np.concatenate(parts) for parts in zip(*rows))
    return sparse.csr_matrix((values, indices, indptr), shape=(len(rows), width))
