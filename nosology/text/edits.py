"""Cleaned text that knows, for each of its characters, the characters of the original it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nosology.core import Span


class Edit(NamedTuple):
    """Put `replacement` in place of text[start:end], which is not empty.

    A replacement of the same length stands character for character; of any other length, each of its characters stands
    for all of text[start:end].
    """

    start: int
    end: int
    replacement: str


Rule = Callable[[str], Iterable[Edit]]
"""A rule reads a text and says what to change: edits in order that do not overlap."""


@dataclass(frozen=True, slots=True)
class CleanedText:
    """A text made from another: its character i came from original[starts[i]:ends[i]].

    Both arrays never fall, and ends[i] > starts[i].
    """

    text: str = field(repr=False)
    starts: np.ndarray = field(repr=False)
    ends: np.ndarray = field(repr=False)
    length: int
    """How many characters the original has."""

    def original(self, start: int, end: int) -> Span:
        """The place in the original of text[start:end]; an empty place for an empty span."""
        if start < end:
            return Span(int(self.starts[start]), int(self.ends[end - 1]))
        place = int(self.starts[start]) if start < len(self.starts) else self.length
        return Span(place, place)


def untouched(text: str) -> CleanedText:
    """The text itself, each character standing for itself."""
    places = np.arange(len(text) + 1)
    return CleanedText(text, places[:-1], places[1:], len(text))


def apply_edits(edits: Iterable[Edit], cleaned: CleanedText) -> CleanedText:
    """The text after the edits, which are in order and do not overlap; offsets still lead to the first original."""
    edits = list(edits)
    if not edits:
        return cleaned
    starts, ends, replacements = zip(*edits)
    # Kept and replaced pieces alternate: kept, replaced, kept, ..., replaced, kept.
    places = np.empty(2 * len(edits) + 2, dtype=np.int64)
    places[0], places[1:-1:2], places[2:-1:2], places[-1] = 0, starts, ends, len(cleaned.text)
    old = np.diff(places)
    if old.min() < 0 or old[1::2].min() == 0:
        raise ValueError("edits must be in order, not empty, and must not overlap")
    new = old.copy()
    new[1::2] = np.fromiter(map(len, replacements), dtype=np.int64, count=len(edits))
    same = old == new
    pieces: list[str] = [""] * len(old)
    pieces[1::2] = replacements
    pieces[0::2] = [cleaned.text[a:b] for a, b in zip((0, *ends), (*starts, len(cleaned.text)))]

    within = np.arange(new.sum()) - np.repeat(np.cumsum(new) - new, new)
    first = np.repeat(places[:-1], new) + within * np.repeat(same, new)
    last = first + np.repeat(np.where(same, 1, old), new) - 1
    return CleanedText("".join(pieces), cleaned.starts[first], cleaned.ends[last], cleaned.length)
