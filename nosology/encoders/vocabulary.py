"""Words as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nosology.text.tokens import tokens, words_of

PAD, UNKNOWN = 0, 1  # what stands after a note's end, and for a word that is not in the vocabulary
SPECIALS = 2


@dataclass(frozen=True, slots=True)
class Read:
    """The tokens of a note as numbers (T,); token i stands at text[starts[i]:ends[i]] of the original text."""

    ids: np.ndarray  # int32
    starts: np.ndarray  # int64
    ends: np.ndarray  # int64

    def __len__(self) -> int:
        return len(self.ids)


class Vocabulary:
    """Words and their numbers: 0 is the pad, 1 every unknown word, then the words in their order."""

    def __init__(self, words: Sequence[str]):
        self.words = tuple(words)
        self._numbers = {word: number for number, word in enumerate(self.words, SPECIALS)}
        if len(self._numbers) != len(self.words):
            raise ValueError("a vocabulary must not hold a word twice")

    @classmethod
    def build(cls, texts: Iterable[str], min_notes: int = 3, also: Iterable[str] = ()) -> Vocabulary:
        """The words of at least `min_notes` of the texts, those of most texts first, and every word of `also`.

        The texts are read once, one at a time; no text is kept.
        """
        notes: Counter[str] = Counter()
        for text in texts:
            notes.update(set(words_of(text)))
        kept = {word for word, count in notes.items() if count >= min_notes} | set(also)
        return cls(sorted(kept, key=lambda word: (-notes[word], word)))

    def __len__(self) -> int:
        return len(self.words) + SPECIALS

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def ids(self, words: Sequence[str]) -> np.ndarray:
        """The numbers (T,) of words, int32."""
        number = self._numbers.get
        return np.fromiter((number(word, UNKNOWN) for word in words), dtype=np.int32, count=len(words))

    def read(self, text: str, limit: int | None = None) -> Read:
        """The first `limit` words of a text; numbers are words as any other."""
        found = tokens(text)
        return Read(self.ids(found.words[:limit]), found.starts[:limit], found.ends[:limit])

    def to_json(self) -> list[str]:
        """The words in their order."""
        return list(self.words)

    @classmethod
    def from_json(cls, value: list[str]) -> Vocabulary:
        """The vocabulary that `to_json` gave."""
        return cls(value)


@dataclass(frozen=True)
class WordReader:
    """Reads a note as its first `limit` words."""

    vocabulary: Vocabulary
    limit: int

    kind = "words"

    def read(self, text: str) -> Read:
        """The words of a note (T,)."""
        return self.vocabulary.read(text, self.limit)

    def to_json(self) -> dict[str, Any]:
        """All that the reader is made of."""
        return {"kind": self.kind, "limit": self.limit, "words": self.vocabulary.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WordReader:
        """The reader that `to_json` gave."""
        return cls(Vocabulary.from_json(value["words"]), value["limit"])
