"""Mentions: the places of a note where terms were found, what each may be coded as, and in what context it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nosology.codes.related_codes import SIDES, is_past_event
from nosology.core import Code
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.text.context import (
    CATEGORIES,
    context_flags,
    is_denied_by_next_words,
    is_denied_by_previous_words,
    is_negated_inside_phrase,
    past_history_flags,
)
from nosology.text.phrases import PhraseIndex, TokenizedNote
from nosology.text.stems import is_listed_word, stem, word_keys
from nosology.text.tokens import Tokens

_SIDE_NEAR = 5  # words between a mention and the side it is on
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
    side: right, left or bilateral where a word says so that is not of the phrase: its codes are those of that side.
    guessed: how many of its words are spelt otherwise than in the phrase.
    """

    places: tuple[int, ...]
    start: int
    end: int
    gap: int
    keys: int
    marks: tuple[bool, ...]
    named: dict[Code, Named] = field(default_factory=dict)
    learned: int = -1
    side: str = ""
    guessed: int = 0
    inside: int = 0
    holders: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class NoteMentions:
    """A note's words and its mentions, in the order of their places."""

    words: TokenizedNote
    mentions: list[Mention]


def find_mentions(
    text: str, terms: Terms | None, learned: PhraseIndex | None, gap: int, learned_gap: int | None = None
) -> NoteMentions:
    """Every mention of a term of the classification or of a learned phrase, which may have gaps of their own."""
    found: dict[tuple[int, ...], Mention] = {}
    reading = TokenizedNote.from_text(text)
    marks = context_flags(text, Tokens(reading.words, reading.starts, reading.ends))

    def mention_at(places: tuple[int, ...], between: int) -> Mention | None:
        if places not in found and _written_out(text, reading, places):
            found[places] = _mention(text, reading, marks, places, between)
        return found.get(places)

    if terms is not None:
        for hit in terms.index.find(reading, gap):
            if mention := mention_at(hit.places, hit.gap):
                for order, (name, source) in enumerate(terms.entries(hit.phrase)):
                    code = Code("icd10cm", name)
                    if code not in mention.named or mention.named[code].order > order:
                        mention.named[code] = Named(source, order)
    for hit in learned.find(reading, gap if learned_gap is None else learned_gap) if learned else ():
        if mention := mention_at(hit.places, hit.gap):
            mention.learned = hit.phrase
    if terms:
        for mention in [found[places] for places in sorted(found)]:
            _take_side(mention, reading, terms, mention_at)
    mentions = [found[places] for places in sorted(found)]
    _count_guesses(mentions, reading, terms, learned)
    _nest(mentions)
    _deny_within(text, mentions)
    _date_listed(mentions, past_history_flags(text, Tokens(reading.words, reading.starts, reading.ends)))
    return NoteMentions(reading, mentions)


def _take_side(
    mention: Mention, reading: TokenizedNote, terms: Terms, mention_at: Callable[[tuple[int, ...], int], Mention | None]
) -> None:
    """Adds the mention together with the nearest side in its sentence, and the codes that it then has."""
    first, last, sentence = mention.places[0], mention.places[-1], reading.sentence[mention.places[0]]
    if any(_side_of(reading.words[place]) for place in mention.places):
        return
    window = range(max(0, first - _SIDE_NEAR), min(len(reading.words), last + _SIDE_NEAR + 1))
    sides = [place for place in window if reading.sentence[place] == sentence and _side_of(reading.words[place])]
    if not sides:
        return
    clause = reading.clause
    near = min(sides, key=lambda at: min((clause[at] != clause[own], abs(at - own), at) for own in mention.places))
    side = _side_of(reading.words[near])
    named = {code: terms.sides.get(code.code, {}).get(side) for code in mention.named}
    if mention.learned < 0 and not any(named.values()):
        return
    sided = mention_at(tuple(sorted((*mention.places, near))), mention.gap)
    if sided is None:
        return
    for code, own in named.items():
        if own is not None:
            sided.named.setdefault(Code("icd10cm", own), mention.named[code])
    if sided.learned < 0 and mention.learned >= 0:
        sided.learned, sided.side = mention.learned, side


@lru_cache(maxsize=1 << 12)
def _side_of(word: str) -> str:
    """The side that a word names, "" if it names none."""
    return next((side for side in SIDES if stem(side) in word_keys(word)), "")


def _written_out(text: str, reading: TokenizedNote, places: tuple[int, ...]) -> bool:
    """Whether a single short word stands in capitals, as an abbreviation does."""
    if len(places) > 1:
        return True
    start, end = int(reading.starts[places[0]]), int(reading.ends[places[0]])
    return end - start > _CAPITALS or text[start:end].isupper() or is_listed_word(reading.words[places[0]])


def _mention(text: str, reading: TokenizedNote, marks: np.ndarray, places: tuple[int, ...], gap: int) -> Mention:
    flags = [bool(flag) for flag in marks[:, list(places)].any(axis=1)]
    start, end = int(reading.starts[places[0]]), int(reading.ends[places[-1]])
    if text[max(0, start - 1) : start] == "?":  # ?pneumonia
        flags[CATEGORIES.index("uncertain")] = True
    if (
        is_denied_by_previous_words(text, start)
        or is_denied_by_next_words(text, end)
        or any(
            place
            and reading.sentence[place - 1] == reading.sentence[place]
            and is_negated_inside_phrase(reading.words, place)
            for place in places
            if place - 1 not in places
        )
    ):
        flags[CATEGORIES.index("negated")] = True
    return Mention(places, start, end, gap, len(places), tuple(flags))


def _count_guesses(
    mentions: list[Mention], reading: TokenizedNote, terms: Terms | None, learned: PhraseIndex | None
) -> None:
    """Counts for each mention the words that are spelt otherwise than in the term or phrase it was found by."""
    by_terms = frozenset(terms.index.misspelled(reading)) if terms else frozenset()
    by_learned = frozenset(learned.misspelled(reading)) if learned else frozenset()
    if not by_terms and not by_learned:
        return
    for mention in mentions:
        by = ([by_terms] if mention.named else []) + ([by_learned] if mention.learned >= 0 else [])
        mention.guessed = min((len(own.intersection(mention.places)) for own in by), default=0)


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


def _deny_within(text: str, mentions: list[Mention]) -> None:
    """Denies what stands inside a run of words that an answer denies: "hepatitis B negative" tells of no hepatitis."""
    negated = CATEGORIES.index("negated")
    for mention in mentions:
        around = (mentions[holder] for holder in mention.holders)
        if any(
            own.places[-1] - own.places[0] < len(own.places) and is_denied_by_next_words(text, own.end)
            for own in around
        ):
            mention.marks = tuple(marked or i == negated for i, marked in enumerate(mention.marks))


def _date_listed(mentions: list[Mention], past: np.ndarray) -> None:
    """Marks events as past that stand in a list of past diseases; a chronic disease there goes on."""
    historical = CATEGORIES.index("historical")
    for mention in mentions:
        if past[mention.places[0]] and any(
            order == 0 and is_past_event(code.code) for code, (_, order) in mention.named.items()
        ):
            mention.marks = tuple(marked or i == historical for i, marked in enumerate(mention.marks))


def surface(reading: TokenizedNote, places: tuple[int, ...]) -> str:
    """The words at some places as they are written."""
    return " ".join(reading.words[place] for place in places)
