"""Words of a text and where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nosology.core import Span
from nosology.text.edits import CleanedText

# Letters and digits of any script; a combining accent belongs to its letter, an underscore to no word.
_WORD = re.compile(r"([^\W_][^\W_\u0300-\u036f]*(?:[\u0300-\u036f]+[^\W_]*)*)")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The words of a text, lower-cased unless asked otherwise; word i stands at text[starts[i]:ends[i]]."""

    words: list[str]
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    def spans(self) -> Iterator[Span]:
        """The place of each word."""
        return map(Span, self.starts.tolist(), self.ends.tolist())


def lower(text: str) -> str:
    """The text in lower case and of the same length, so that offsets stay."""
    # Only U+0130 grows when lower-cased, to an i and a combining dot.
    return text.replace("\u0130", "i").lower()


def words_of(text: str) -> list[str]:
    """The words alone, in lower case."""
    return _WORD.findall(lower(text))


def tokenize(text: str | CleanedText, *, lower_case: bool = True) -> Tokens:
    """The words of a text; of a cleaned text, its words with their places in the original."""
    if isinstance(text, CleanedText):
        found = tokenize(text.text, lower_case=lower_case)
        return Tokens(found.words, text.starts[found.starts], text.ends[found.ends - 1])
    # Splitting and adding up lengths takes half the time of asking each match for its place.
    pieces = _WORD.split(lower(text) if lower_case else text)
    bounds = np.cumsum(np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)))
    return Tokens(pieces[1::2], bounds[0:-1:2], bounds[1::2])
