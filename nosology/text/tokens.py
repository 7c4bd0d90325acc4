"""Tokenization: the words of a text and their offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nosology.core import Span
from nosology.text.cleaning import CleanedText, lower

# Letters and digits of any script, with combining accents; underscores belong to no word.
_WORD = re.compile(r"([^\W_][^\W_\u0300-\u036f]*(?:[\u0300-\u036f]+[^\W_]*)*)")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The words of a text, in lower case by default; word i is text[starts[i]:ends[i]]."""

    words: list[str]
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    def spans(self) -> Iterator[Span]:
        """The span of each word."""
        return map(Span, self.starts.tolist(), self.ends.tolist())


def words_of(text: str) -> list[str]:
    """The words in lower case, without offsets."""
    return _WORD.findall(lower(text))


def tokenize(text: str | CleanedText, *, lower_case: bool = True) -> Tokens:
    """The words of a text; the offsets of a cleaned text refer to its original."""
    if isinstance(text, CleanedText):
        tokens = tokenize(text.text, lower_case=lower_case)
        return Tokens(tokens.words, text.starts[tokens.starts], text.ends[tokens.ends - 1])
    # `split` and a sum of lengths take half the time of `finditer`.
    pieces = _WORD.split(lower(text) if lower_case else text)
    bounds = np.cumsum(np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)))
    return Tokens(pieces[1::2], bounds[0:-1:2], bounds[1::2])
