"""Tokenization: the words of a text and their offsets; tables of words and rules (data/)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import numpy as np

from nosology.core import Span
from nosology.text.cleaning import CleanedText, lower

# Letters and digits of any script, with combining accents; underscores belong to no word.
_WORD = re.compile(r"([^\W_][^\W_\u0300-\u036f]*(?:[\u0300-\u036f]+[^\W_]*)*)")
# ASCII letters and digits in lower case, blanks for all other bytes: together with `split` much faster than a pattern.
_LETTERS_AND_DIGITS = bytes(ord(chr(i).lower()) if i < 128 and chr(i).isalnum() else ord(" ") for i in range(256))


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
    return _ascii_words(text) if text.isascii() else _WORD.findall(lower(text))


def benchmark_words(text: str) -> list[str]:
    """The words of a note after the cleaning of Edin et al. (2023) and DualLAAT (Liu and Nguyen 2026).

    They consist of a-z and 0-9. Separate numbers are dropped, except at the very ends of the text: the authors' regular
    expression removes a number only between two blanks.
    """
    words = _ascii_words(text if text.isascii() else lower(text))
    kept = [word for word in words if not word.isdigit()]
    first = bool(words) and words[0].isdigit() and "0" <= text[0] <= "9"
    last = len(words) > first and words[-1].isdigit() and "0" <= text[-1] <= "9"
    return words[:first] + kept + (words[-1:] if last else [])


def _ascii_words(text: str) -> list[str]:
    """The words of ASCII letters and digits, in lower case."""
    return text.encode("ascii", "replace").translate(_LETTERS_AND_DIGITS).decode("ascii").split()


def tokenize(text: str | CleanedText, *, lower_case: bool = True) -> Tokens:
    """The words of a text; the offsets of a cleaned text refer to its original."""
    if isinstance(text, CleanedText):
        tokens = tokenize(text.text, lower_case=lower_case)
        return Tokens(tokens.words, text.starts[tokens.starts], text.ends[tokens.ends - 1])
    # `split` and a sum of lengths take half the time of `finditer`.
    pieces = _WORD.split(lower(text) if lower_case else text)
    bounds = np.cumsum(np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)))
    return Tokens(pieces[1::2], bounds[0:-1:2], bounds[1::2])


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a table in data/, by column name."""
    lines = files("nosology.text").joinpath("data", name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


@lru_cache(maxsize=1)
def function_words() -> frozenset[str]:
    """Words without content: articles, prepositions, pronouns, negators."""
    return frozenset(row["word"] for row in rows("function_words.tsv"))


@lru_cache(maxsize=1)
def sided_words() -> frozenset[str]:
    """Words before which a single R or L is a side."""
    return frozenset(row["word"] for row in rows("sided_words.tsv"))


@lru_cache(maxsize=1)
def general_words() -> dict[str, bool]:
    """Words that alone name no condition: body parts, sides, times, degrees, measurements.

    True for those that name one together with another word: loss, failure, lesion.
    """
    return {row["word"]: bool(row["joined"]) for row in rows("general_words.tsv")}
