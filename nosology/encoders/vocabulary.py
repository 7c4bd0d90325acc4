"""Words as numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from nosology.text.tokens import lower, tokenize, words_of

PAD, UNKNOWN = 0, 1  # what stands after a note's end, and for a word that is not in the vocabulary
SPECIALS = 2
_LITERAL = re.compile(r"[a-z0-9]+")
_DIGIT = re.compile(r"\d|[^\d]+")


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
    def build(
        cls, texts: Iterable[str], min_notes: int = 3, also: Iterable[str] = (), most: int | None = None
    ) -> Vocabulary:
        """The words of at least `min_notes` of the texts, those of most texts first, and every word of `also`.

        The texts are read once, one at a time; no text is kept. Of more than `most` words the last are left out.
        """
        notes: Counter[str] = Counter()
        for text in texts:
            notes.update(set(words_of(text)))
        kept = {word for word, count in notes.items() if count >= min_notes} | set(also)
        return cls(sorted(kept, key=lambda word: (-notes[word], word))[:most])

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
        found = tokenize(text)
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
    """Reads a note as its first `limit` words.

    literal: as the authors of DualLAAT do. Words are of a-z and 0-9, numbers standing alone are left out (but at the
    very ends of a text), a note is filled up with pads to the limit, and descriptions are cut at blanks alone.
    """

    vocabulary: Vocabulary
    limit: int
    literal: bool = False

    kind = "words"

    def read(self, text: str) -> Read:
        """The words of a note (T,); none, and no pads either, where a text has no word."""
        return self._literal(text) if self.literal else self.vocabulary.read(text, self.limit)

    def description(self, text: str, limit: int | None = None) -> np.ndarray:
        """The numbers (T,) of the first `limit` words of a code's description, int32."""
        if self.literal:
            return self.vocabulary.ids(text.lower().split()[:limit])
        words = chain.from_iterable(map(self._known, words_of(text)))
        return self.vocabulary.ids(list(islice(words, limit)))

    def _known(self, word: str) -> list[str]:
        """The word, or, of an unknown one with digits, its digits and what stands between them.

        Codes that differ only in a number would else be the same to a reader who does not know the number.
        """
        return [word] if word in self.vocabulary or word.isalpha() else _DIGIT.findall(word)

    def _literal(self, text: str) -> Read:
        found = list(islice(_literal_words(lower(text)), self.limit))
        if not found:
            return Read(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
        ids = np.full(self.limit, PAD, dtype=np.int32)
        starts, ends = np.full((2, self.limit), len(text), dtype=np.int64)  # a pad stands nowhere: an empty place
        ids[: len(found)] = self.vocabulary.ids([match[0] for match in found])
        starts[: len(found)] = [match.start() for match in found]
        ends[: len(found)] = [match.end() for match in found]
        return Read(ids, starts, ends)

    def to_json(self) -> dict[str, Any]:
        """All that the reader is made of."""
        words = self.vocabulary.to_json()
        return {"kind": self.kind, "limit": self.limit, "literal": self.literal, "words": words}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> WordReader:
        """The reader that `to_json` gave."""
        return cls(Vocabulary.from_json(value["words"]), value["limit"], value.get("literal", False))


def _literal_words(text: str) -> Iterator[re.Match[str]]:
    """The words of a text in lower case, as the authors of DualLAAT take them."""
    for match in _LITERAL.finditer(text):
        # They look for blanks on both sides of a number: at the first and at the last character there is none.
        if not match[0].isdigit() or match.start() == 0 or match.end() == len(text):
            yield match
