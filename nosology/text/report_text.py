"""A report as paper 002 prepares it: denied words marked with NOT_, short forms written out, the rest cleaned away.

Every character of the result knows the characters of the report it came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from nosology.text.context import CATEGORIES, PREFIX, context_flags
from nosology.text.data import function_words, rows
from nosology.text.edits import CleanedText, Edit, apply_edits, untouched
from nosology.text.sections import sections
from nosology.text.tokens import Tokens, tokenize, words_of

_NEGATORS = frozenset({"no", "not", "without", "never", "none", "nor"})  # function words that are never dropped
_MOST = 2  # words of a short form: "r/o" is r and o


@lru_cache(maxsize=1)
def _long_forms() -> dict[tuple[str, ...], tuple[str, ...]]:
    """What the words of each short form stand for."""
    return {tuple(words_of(row["short"])): tuple(words_of(row["long"])) for row in rows("short_forms.tsv")}


@lru_cache(maxsize=1)
def _first_words() -> frozenset[str]:
    return frozenset(words[0] for words in _long_forms())


@lru_cache(maxsize=1)
def tokens_with_context(text: str) -> tuple[Tokens, np.ndarray]:
    """The words of a text and which stand in which scopes (categories, words); asked for twice in a row, found once."""
    found = tokenize(text)
    return found, context_flags(text, found)


def expanded_abbreviation(word: str) -> tuple[str, ...]:
    """The words that a short form of one word stands for; none if it is no short form."""
    return _long_forms().get((word,), ())


def clean_report(text: str, *, negation: bool = True, stop_words: bool = True) -> CleanedText:
    """The words of a report in small letters, one blank between them; numbers that stand alone are left out.

    negation: NOT_ stands before each content word that the report denies. stop_words: words without content are left
    out too, but never a negator.
    """
    return apply_edits(_edits(text, negation, stop_words), untouched(text))


def _edits(text: str, negation: bool, stop_words: bool) -> Iterator[Edit]:
    """One edit a word, and one for what stands between two words."""
    found, marks = tokens_with_context(text)
    denied = marks[CATEGORIES.index("negated")] & negation
    dropped = function_words() - _NEGATORS if stop_words else frozenset()
    end, i, begun = 0, 0, False
    while i < len(found):
        length, meant = _written_out(text, found.words, found.starts, found.ends, i)
        start, stop = int(found.starts[i]), int(found.ends[i + length - 1])
        words = [
            PREFIX + word if denied[i] and word not in function_words() else word
            for word in meant
            if word not in dropped and not word.isdigit()
        ]
        if end < start:
            yield Edit(end, start, " " if begun and words else "")
        yield Edit(start, stop, " ".join(words))
        begun = begun or bool(words)
        end, i = stop, i + length
    if end < len(text):
        yield Edit(end, len(text), "")


def _written_out(
    text: str, words: list[str], starts: np.ndarray, ends: np.ndarray, i: int
) -> tuple[int, tuple[str, ...]]:
    """How many words from the i-th on are a short form (else 1), and what they stand for; parts are joined by /."""
    known = _long_forms()
    if words[i] not in _first_words():
        return 1, (words[i],)
    for length in range(min(_MOST, len(words) - i), 0, -1):
        joined = all(text[ends[k] : starts[k + 1]] == "/" for k in range(i, i + length - 1))
        meant = known.get(tuple(words[i : i + length])) if joined else None
        if meant is not None:
            return length, meant
    return 1, (words[i],)


_MARKS = {"negated": "NOT_", "uncertain": "MAYBE_", "hypothetical": "MAYBE_", "historical": "PAST_", "family": "KIN_"}
_STEM = 5  # letters of a longer word that stand for all its forms, and for most of its misspellings


def context_features(text: str, *, pairs: bool = True) -> Iterator[str]:
    """The features of a note, as `placed_words` has them."""
    return (name for name, _ in positioned_features(text, pairs=pairs))


def positioned_features(text: str, *, pairs: bool = True) -> Iterator[tuple[str, int]]:
    """The features of a note, each with the number of its (first) word among all words of the note.

    Features are each content word with its mark, once more with its section, its stem, and pairs of neighbours.

    A word that is denied, doubted or past is another word than the same one without: that a report says "no pneumonia"
    speaks for nothing that "pneumonia" speaks for.
    """
    found, flags = tokens_with_context(text)
    marks = _marks(flags)
    kinds = _sections(text, found.starts)
    content = [i for i, word in enumerate(found.words) if word not in function_words() and not word.isdigit()]
    for place, i in enumerate(content):
        word, mark = found.words[i], marks[i]
        for form in (word, *expanded_abbreviation(word)):
            yield mark + form, i
            yield f"{kinds[i]}:{mark}{form}", i
            if len(form) > _STEM:
                yield f"{mark}{form[:_STEM]}~", i
        if pairs and place + 1 < len(content) and content[place + 1] <= i + 2:
            yield f"{mark}{word} {found.words[content[place + 1]]}", i


def _marks(flags: np.ndarray) -> list[str]:
    """The prefix of each word, of the scopes that it stands in; of several the first in the order of _MARKS counts."""
    prefixes = [""] * flags.shape[1]
    for name in reversed(_MARKS):
        for i in np.flatnonzero(flags[CATEGORIES.index(name)]):
            prefixes[i] = _MARKS[name]
    return prefixes


def _sections(text: str, starts: np.ndarray) -> list[str]:
    """The kind of the section that each word stands in."""
    found = sections(text)
    if not found:
        return []
    at = np.searchsorted([section.span.start for section in found], starts, side="right") - 1
    return [found[i].kind for i in at]
