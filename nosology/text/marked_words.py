"""The words of a note with what the note says of them: denied, doubted, past, and under which heading."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nosology.text.context_rules import CATEGORIES
from nosology.text.data import function_words
from nosology.text.reports import long_form, words_in_context
from nosology.text.sections import sections

_MARKS = {"negated": "NOT_", "uncertain": "MAYBE_", "hypothetical": "MAYBE_", "historical": "PAST_", "family": "KIN_"}
_STEM = 5  # letters of a longer word that stand for all its forms, and for most of its misspellings


def marked_words(text: str, *, pairs: bool = True) -> Iterator[str]:
    """The features of a note, as `placed_words` has them."""
    return (name for name, _ in placed_words(text, pairs=pairs))


def placed_words(text: str, *, pairs: bool = True) -> Iterator[tuple[str, int]]:
    """The features of a note, each with the number of its (first) word among all words of the note.

    Features are each content word with its mark, once more with its section, its stem, and pairs of neighbours.

    A word that is denied, doubted or past is another word than the same one without: that a report says "no pneumonia"
    speaks for nothing that "pneumonia" speaks for.
    """
    found, flags = words_in_context(text)
    marks = _marks(flags)
    kinds = _sections(text, found.starts)
    content = [i for i, word in enumerate(found.words) if word not in function_words() and not word.isdigit()]
    for place, i in enumerate(content):
        word, mark = found.words[i], marks[i]
        for form in (word, *long_form(word)):
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
