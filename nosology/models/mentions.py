"""Mentions: the places of a note where terms were found, what each may be coded as, and in what context it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nosology.core import Code
from nosology.models.lexicon_terms import Terms
from nosology.text.context import word_marks
from nosology.text.phrases import PhraseIndex, Reading
from nosology.text.tokens import Tokens

_CAPITALS = 3  # a word of so few letters is an abbreviation, and only in capitals


class Named(NamedTuple):
    """A code that a term of the classification names: where the term comes from, and how many codes are likelier."""

    source: int
    order: int


@dataclass(slots=True)
class Mention:
    """Words of a note that are a term: `places` among its words, characters start to end.

    named: what the classification's terms call it. learned: the number of the learned phrase, -1 for none.
    inside: how many longer mentions hold all of its words. marks: which context scopes it stands in (see CATEGORIES).
    """

    places: tuple[int, ...]
    start: int
    end: int
    gap: int
    keys: int
    marks: tuple[bool, ...]
    named: dict[Code, Named] = field(default_factory=dict)
    learned: int = -1
    inside: int = 0
    holders: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class NoteMentions:
    """A note's words and its mentions, in the order of their places."""

    words: Reading
    mentions: list[Mention]


def find_mentions(text: str, terms: Terms | None, learned: PhraseIndex | None, gap: int) -> NoteMentions:
    """Every mention of a term of the classification or of a learned phrase."""
    found: dict[tuple[int, ...], Mention] = {}
    reading, marks = None, None
    for number, index in enumerate((terms.index if terms else None, learned)):
        if index is None:
            continue
        reading = index.read(text)
        if marks is None:
            marks = word_marks(text, Tokens(reading.words, reading.starts, reading.ends))
        for hit in index.find(reading, gap):
            if not _written_out(text, reading, hit.places):
                continue
            mention = found.get(hit.places)
            if mention is None:
                mention = found[hit.places] = _mention(reading, marks, hit.places, hit.gap)
            if number == 0:
                for order, (code, source) in enumerate(terms.entries(hit.phrase)):
                    known = Code("icd10cm", code)
                    if known not in mention.named or mention.named[known].order > order:
                        mention.named[known] = Named(source, order)
            else:
                mention.learned = hit.phrase
    mentions = [found[places] for places in sorted(found)]
    _nest(mentions)
    return NoteMentions(reading, mentions)


def _written_out(text: str, reading: Reading, places: tuple[int, ...]) -> bool:
    """Whether a single short word stands in capitals, as an abbreviation does."""
    if len(places) > 1:
        return True
    start, end = int(reading.starts[places[0]]), int(reading.ends[places[0]])
    return end - start > _CAPITALS or text[start:end].isupper()


def _mention(reading: Reading, marks: np.ndarray, places: tuple[int, ...], gap: int) -> Mention:
    flags = marks[:, list(places)].any(axis=1)
    start, end = int(reading.starts[places[0]]), int(reading.ends[places[-1]])
    return Mention(places, start, end, gap, len(places), tuple(flags.tolist()))


def _nest(mentions: list[Mention]) -> None:
    """Counts for each mention the longer ones that hold all of its words."""
    at: dict[int, list[int]] = {}
    sets = [frozenset(mention.places) for mention in mentions]
    for number, places in enumerate(sets):
        for place in places:
            at.setdefault(place, []).append(number)
    for number, (mention, places) in enumerate(zip(mentions, sets)):
        around = at[mention.places[0]]
        mention.holders = [other for other in around if other != number and places < sets[other]]
        mention.inside = len(mention.holders)


def surface(reading: Reading, mention: Mention) -> str:
    """The words of a mention as they are written."""
    return " ".join(reading.words[place] for place in mention.places)


def codes_of(found: Iterable[Mention]) -> set[Code]:
    """Every code that the classification's terms give to some mention."""
    return {code for mention in found for code in mention.named}
