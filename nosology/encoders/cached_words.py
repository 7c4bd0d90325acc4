"""Notes as token ids, read from the word caches of their corpora: no note is tokenized again. Does not import torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from nosology.corpora.word_cache import WordCache
from nosology.encoders.tokenizers import TokenIds, Vocabulary, WordTokenizer, has_letter

_DROPPED = -1  # in place of the id of a word that the tokenizer leaves out


@dataclass(frozen=True)
class CachedWords:
    """The words of selected notes: for each corpus its word cache and the rows of the notes in it."""

    parts: tuple[tuple[WordCache, np.ndarray], ...]

    def __add__(self, other: CachedWords) -> CachedWords:
        """The notes of both."""
        return CachedWords(self.parts + other.parts)

    def note_counts(self) -> dict[str, int]:
        """The number of notes with each word."""
        total: Counter[str] = Counter()
        for cache, rows in self.parts:
            counts = _note_counts(cache, rows)
            total.update({cache.words[word]: int(counts[word]) for word in np.flatnonzero(counts)})
        return total

    def encoded(self, tokenizer: WordTokenizer) -> EncodedWords:
        """The notes as `tokenizer.tokenize` returns them, without offsets."""
        if tokenizer.reference_padding:
            raise ValueError("padded notes are not read from a word cache")
        tables = [(cache, _token_ids(cache, tokenizer.vocabulary, tokenizer.alphabetic)) for cache, _ in self.parts]
        part = np.repeat(np.arange(len(self.parts), dtype=np.int32), [len(rows) for _, rows in self.parts])
        row = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in self.parts)])
        return EncodedWords(tables, part, row, tokenizer.limit)


def _note_counts(cache: WordCache, rows: np.ndarray) -> np.ndarray:
    """The number of notes with each word of a cache, of the notes in these rows."""
    counts = np.zeros(len(cache.words), np.int64)
    last = np.zeros(len(cache.words), np.int64)  # the last position of each word in the latest note that has it
    positions = np.arange(int(np.diff(cache.bounds).max(initial=0)))
    for row in rows:
        ids = cache.ids[cache.bounds[row] : cache.bounds[row + 1]]
        here = positions[: len(ids)]
        last[ids] = here
        counts[ids[last[ids] == here]] += 1  # each word once
    return counts


def _token_ids(cache: WordCache, vocabulary: Vocabulary, alphabetic: bool) -> np.ndarray:
    """The token id of each word of a cache."""
    ids = vocabulary.ids(cache.words)
    if alphabetic:
        ids[[not has_letter(word) for word in cache.words]] = _DROPPED
    return ids


@dataclass(frozen=True)
class EncodedWords(Sequence[TokenIds]):
    """Notes as token ids, each made from the cached words of the note when it is used."""

    tables: Sequence[tuple[WordCache, np.ndarray]]  # word caches, and the token id of each of their words
    part: np.ndarray  # (B,) the cache of each note
    row: np.ndarray  # (B,) its row in the cache
    limit: int  # tokens per note

    def __len__(self) -> int:
        return len(self.row)

    @overload
    def __getitem__(self, index: int) -> TokenIds: ...
    @overload
    def __getitem__(self, index: slice | np.ndarray) -> EncodedWords: ...
    def __getitem__(self, index: int | slice | np.ndarray) -> TokenIds | EncodedWords:
        if isinstance(index, slice | np.ndarray):
            return EncodedWords(self.tables, self.part[index], self.row[index], self.limit)
        cache, token_ids = self.tables[self.part[index]]
        row = self.row[index]
        ids = token_ids[cache.ids[cache.bounds[row] : cache.bounds[row + 1]]]
        return TokenIds(ids[ids != _DROPPED][: self.limit])
