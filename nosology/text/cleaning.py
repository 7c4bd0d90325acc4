"""Text cleaning by rules; each character of the cleaned text has its place in the original. Takes linear time."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nosology.core import ConfigError, Span


class Edit(NamedTuple):
    """Replace text[start:end], which is not empty, by `replacement`.

    A replacement of the same length maps character by character. Otherwise each new character maps to all of
    text[start:end].
    """

    start: int
    end: int
    replacement: str


Rule = Callable[[str], Iterable[Edit]]
"""A rule returns the edits of a text, in order and without overlap."""


@dataclass(frozen=True, slots=True)
class CleanedText:
    """A cleaned text: character i comes from original[starts[i]:ends[i]].

    Both arrays are non-decreasing, and ends[i] > starts[i].
    """

    text: str = field(repr=False)
    starts: np.ndarray = field(repr=False)
    ends: np.ndarray = field(repr=False)
    length: int
    """The number of characters of the original."""

    @classmethod
    def from_original(cls, text: str) -> CleanedText:
        """The original text, before any edit."""
        offsets = np.arange(len(text) + 1)
        return cls(text, offsets[:-1], offsets[1:], len(text))

    def original(self, start: int, end: int) -> Span:
        """The span of text[start:end] in the original; an empty span for an empty span."""
        if start < end:
            return Span(int(self.starts[start]), int(self.ends[end - 1]))
        offset = int(self.starts[start]) if start < len(self.starts) else self.length
        return Span(offset, offset)

    def edited(self, edits: Iterable[Edit]) -> CleanedText:
        """The text after edits, which are in order and do not overlap; offsets still refer to the first original."""
        edits = list(edits)
        if not edits:
            return self
        starts, ends, replacements = zip(*edits)
        # Unchanged and replaced pieces alternate; the first and the last piece are unchanged.
        bounds = np.empty(2 * len(edits) + 2, dtype=np.int64)
        bounds[0], bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = 0, starts, ends, len(self.text)
        old = np.diff(bounds)
        if old.min() < 0 or old[1::2].min() == 0:
            raise ValueError("edits must be in order, not empty, and must not overlap")
        new = old.copy()
        new[1::2] = np.fromiter(map(len, replacements), dtype=np.int64, count=len(edits))
        same = old == new
        pieces: list[str] = [""] * len(old)
        pieces[1::2] = replacements
        pieces[0::2] = [self.text[a:b] for a, b in zip((0, *ends), (*starts, len(self.text)))]

        within = np.arange(new.sum()) - np.repeat(np.cumsum(new) - new, new)
        first = np.repeat(bounds[:-1], new) + within * np.repeat(same, new)
        last = first + np.repeat(np.where(same, 1, old), new) - 1
        return CleanedText("".join(pieces), self.starts[first], self.ends[last], self.length)


PUNCTUATION = {
    **dict.fromkeys("‘’‚‛′´ʼ", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("•‣▪●◦∙·", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
    **dict.fromkeys("\u0085\u2028\u2029", "\n"),
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "ﬀ": "ff",
    "ﬁ": "fi",
    "ﬂ": "fl",
}
_TYPOGRAPHIC = re.compile(f"[^\\W_][\u0300-\u036f]+|[{''.join(PUNCTUATION)}]")
_INVISIBLE = re.compile("[\u00ad\u200c-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_ACCENTED = re.compile("[^\\W_][\u0300-\u036f]+")
_DIVIDED = re.compile(f"{_INVISIBLE.pattern}|[\u0300-\u036f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_BLANKS = re.compile(r"\s+")


def _substitution(pattern: str, replacement: str) -> Rule:
    """A rule that replaces each match of a pattern."""
    compiled = re.compile(pattern)
    return lambda text: (Edit(*match.span(), replacement) for match in compiled.finditer(text))


def _unicode(text: str) -> Iterator[Edit]:
    """Replaces typographic marks and ligatures by ASCII, and joins letters with their combining accents."""
    if text.isascii():
        return
    for match in _TYPOGRAPHIC.finditer(text):
        first, accents = match[0][0], match[0][1:]
        yield Edit(*match.span(), unicodedata.normalize("NFC", PUNCTUATION.get(first, first) + accents))


def whole_words(text: str) -> CleanedText:
    """The text without invisible characters (soft hyphens, byte-order marks ...), and with accents joined to letters.

    A zero-width space stays: it is between words.
    """
    joined = CleanedText.from_original(text)
    if not _DIVIDED.search(text):
        return joined
    joined = joined.edited(Edit(*match.span(), "") for match in _INVISIBLE.finditer(text))
    matches = _ACCENTED.finditer(joined.text)
    return joined.edited(Edit(*match.span(), unicodedata.normalize("NFC", match[0])) for match in matches)


@lru_cache(maxsize=4096)
def _without_accent(character: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", character) if not unicodedata.combining(c))


def _fold_accents(text: str) -> Iterator[Edit]:
    """Removes accents: á to a, ñ to n."""
    for match in _NOT_ASCII.finditer(text):
        plain = _without_accent(match[0])
        if plain != match[0]:
            yield Edit(*match.span(), plain)


def _whitespace(text: str) -> Iterator[Edit]:
    """Replaces each run of blanks by one blank, one line end or one empty line."""
    for match in _BLANKS.finditer(text):
        blank = (" ", "\n", "\n\n")[min(match[0].count("\n"), 2)]
        if blank != match[0]:
            yield Edit(*match.span(), blank)


def _strip(text: str) -> Iterator[Edit]:
    """Removes blanks at both ends."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    if first:
        yield Edit(0, first, "")
    if first < last < len(text):
        yield Edit(last, len(text), "")


def lower(text: str) -> str:
    """The text in lower case, with the same length, so that offsets stay."""
    # Only U+0130 gets longer in lower case: an i and a combining dot.
    return text.replace("\u0130", "i").lower()


def _lower(text: str) -> Iterator[Edit]:
    """Converts to lower case, character by character."""
    lowered = lower(text)
    if lowered != text:
        yield Edit(0, len(text), lowered)


RULES: dict[str, Rule] = {
    "nul": _substitution(r"[\x00-\x08\x0e-\x1f\x7f\ufeff\u200b-\u200d\u2060\u00ad]+", ""),
    "crlf": _substitution(r"\r\n?", "\n"),
    "unicode": _unicode,
    "fold_accents": _fold_accents,
    # ___ in MIMIC-IV, [** ... **] in MIMIC-III. The limit of 200 keeps the time linear if the end is missing.
    "deid": _substitution(r"_{3,}|\[\*\*[^\[\]]{0,200}\*\*\]", " "),
    "whitespace": _whitespace,
    "strip": _strip,
    "lower": _lower,
    # The patterns do not match a single blank, the most frequent case, because it needs no edit.
    "alphanumeric": _substitution(r"[^A-Za-z0-9 ][^A-Za-z0-9]*| [^A-Za-z0-9]+", " "),
    "words": _substitution(r"(?:[^\w\u0300-\u036f ]|_)(?:[^\w\u0300-\u036f]|_)*| (?:[^\w\u0300-\u036f]|_)+", " "),
    "numbers": _substitution(r"(?<!\S)\d+(?!\S)\s?", ""),
}
"""The rules by name; docs/text.md describes each."""

BENCHMARK = ("lower", "alphanumeric", "numbers", "strip")
"""The preprocessing of Edin et al. (2023)."""

MULTILINGUAL = ("nul", "unicode", "deid", "lower", "words", "numbers", "strip")
"""The same for text with accents: it keeps the letters of all scripts."""


def clean(text: str, rules: Sequence[str] = BENCHMARK) -> CleanedText:
    """The text after the named rules, applied in turn."""
    cleaned = CleanedText.from_original(text)
    for name in rules:
        if name not in RULES:
            raise ConfigError(f"a cleaning rule must be one of {', '.join(RULES)}; got {name!r}")
        cleaned = cleaned.edited(RULES[name](cleaned.text))
    return cleaned
