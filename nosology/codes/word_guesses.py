"""Words of similar spelling: what a misspelt or unfinished word of a search may mean."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

_MAX_LONGER, _MAX_GUESSES = 200, 4
_SHORT = 6  # words with fewer letters may differ in one letter, others in two


class WordGuesses:
    """Guesses among words that are known, the most frequent first."""

    def __init__(self, words: Sequence[str]):
        self.words = words

    @lru_cache(maxsize=4096)  # noqa: B019
    def guess(self, word: str) -> list[tuple[str, float]]:
        """The known words that start with a word, else those of similar spelling, with the strength of the match."""
        if len(word) > 2 and (longer := [other for other in self.words if other.startswith(word)]):
            return [(other, 0.9) for other in longer[:_MAX_LONGER]]
        return self.similar(word)

    @lru_cache(maxsize=4096)  # noqa: B019
    def similar(self, word: str) -> list[tuple[str, float]]:
        """The known words at the smallest distance, of at most two letters."""
        if len(word) < 4 or not word.isalpha():
            return []
        most = 1 if len(word) < _SHORT else 2
        near = np.flatnonzero(
            (np.abs(self._letters - _letter_counts([word])).sum(axis=1) <= 2 * most)
            & (np.abs(self._lengths - len(word)) <= most)
        )
        distances = {i: distance for i in near.tolist() if (distance := _distance(word, self.words[i])) <= most}
        closest = min(distances.values(), default=0)
        guesses = [self.words[i] for i in sorted(distances) if distances[i] == closest]
        guesses.sort(key=lambda other: other[0] != word[0])
        return [(other, 0.95 if i == 0 else 0.85) for i, other in enumerate(guesses[:_MAX_GUESSES])]

    @cached_property
    def _letters(self) -> np.ndarray:
        return _letter_counts(self.words)

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.fromiter(map(len, self.words), dtype=np.int32, count=len(self.words))


def _letter_counts(words: Sequence[str]) -> np.ndarray:
    """How often each letter (by its code modulo 32) is in each word."""
    counts = np.zeros((len(words), 32), dtype=np.int8)
    letters = np.frombuffer("".join(words).encode("utf-32-le"), dtype=np.uint32) % 32
    owners = np.repeat(np.arange(len(words)), [len(word) for word in words])
    np.add.at(counts, (owners, letters), 1)
    return counts


def _distance(first: str, second: str) -> int:
    """The number of letters to insert, delete, replace or exchange with the next."""
    before: list[int] = []
    last = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            value = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and b == first[i - 2]:
                value = min(value, before[j - 2] + 1)
            row.append(value)
        before, last = last, row
    return last[-1]
