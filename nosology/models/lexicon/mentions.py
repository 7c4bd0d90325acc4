"""Mentions: where terms occur in a note, the codes that each may have, and the context of each (negated ...)."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from nosology.codes.related_codes import SIDES, is_past_event
from nosology.codes.terms import SOURCES
from nosology.core import Code
from nosology.models.lexicon.lexicon_terms import Terms, title_words
from nosology.text.ambiguous_words import is_supported
from nosology.text.context import (
    CATEGORIES,
    context_flags,
    flag_masks,
    is_denied_by_next_words,
    is_denied_by_previous_words,
    is_negated_inside_phrase,
    is_questioned,
    marks_of,
    past_history_flags,
)
from nosology.text.phrases import PhraseIndex, TokenizedNote, tokenized_note
from nosology.text.stems import is_listed_word, stem, word_keys

_DESCRIPTION = SOURCES.index("description")
_ACUITY = frozenset({"acute", "chronic"})
_PARTICLES = frozenset({"out", "up", "off", "down"})
_UNITS = frozenset({"mg", "mcg", "ml", "mm", "cm", "kg", "g", "hr", "min"})
# Lines, without a number or the name of a section; parts of a line between semicolons.
_ITEMS = (re.compile(r"[^\n]+"), re.compile(r"(?<=[:.)*•-] )[^\n]+"), re.compile(r"[^\n;]+"))
_SPLIT = re.compile(r"[:()]")
_EMPTY_BOX = re.compile(r"\( ?\)|\[ ?\]|☐")  # "asthma ( ) COPD" are two items of a list
_TITLE_OF_PERSON = re.compile(r"\b(?:Dr|Drs|Mr|Mrs|Ms|Miss|Prof)\.? (?:[A-Z][\w.]* )?$")
_SIDE_DISTANCE = 5  # words between a mention and its side, at most
_MAX_REPEATS = 200  # mentions of the same words in one note
_MAX_ABBREVIATION = 3  # letters; such a word counts only in capitals


class TermEntry(NamedTuple):
    """How a term of the classification names a code: source of the term, and rank of the code among its codes."""

    source: int
    order: int


@dataclass(slots=True)
class Mention:
    """A term at the words `places` of a note, characters start to end.

    gap: other content words between them. marks: the contexts that it is in, in the order of CATEGORIES.
    codes_of_terms: codes by terms of the classification. learned: number of the learned phrase, -1 for none.
    side: right, left or bilateral if a word outside of the learned phrase says so; the codes are those of that side.
    misspelled: words that are spelled differently than in the phrase.
    containing: longer mentions with all of its words.
    """

    places: tuple[int, ...]
    start: int
    end: int
    gap: int
    marks: tuple[bool, ...]
    codes_of_terms: dict[Code, TermEntry] = field(default_factory=dict)
    learned: int = -1
    side: str = ""
    misspelled: int = 0
    containing: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class NoteMentions:
    """The words of a note and its mentions, in the order of their places."""

    words: TokenizedNote
    mentions: list[Mention]


def find_mentions(
    text: str, terms: Terms | None, learned: PhraseIndex | None, gap: int, learned_gap: int | None = None
) -> NoteMentions:
    """All mentions of terms of the classification and of learned phrases, which may have another gap."""
    by_places: dict[tuple[int, ...], Mention] = {}
    note = tokenized_note(text)
    vocabulary = frozenset(note.written.words)
    masks = flag_masks(context_flags(text, note.tokens))

    def mention_at(places: tuple[int, ...], gap: int) -> Mention | None:
        if places not in by_places and _can_be_term(text, note, places, vocabulary):
            by_places[places] = _mention(text, note, masks, places, gap)
        return by_places.get(places)

    if terms is not None:
        for match in terms.index.find(note, gap):
            if mention := mention_at(match.places, match.gap):
                for order, (name, source) in enumerate(terms.entries(match.phrase)):
                    code = Code("icd10cm", name)
                    if code not in mention.codes_of_terms or mention.codes_of_terms[code].order > order:
                        mention.codes_of_terms[code] = TermEntry(source, order)
    for match in learned.find(note, gap if learned_gap is None else learned_gap) if learned else ():
        if mention := mention_at(match.places, match.gap):
            mention.learned = match.phrase
    if terms is not None:
        for mention in [by_places[places] for places in sorted(by_places)]:
            _add_sided(mention, note, terms, mention_at)
        for mention in _whole_descriptions(text, note, terms, masks):
            by_places[mention.places] = mention
    mentions = _without_many_repeats([by_places[places] for places in sorted(by_places)], note.words)
    _count_misspelled(mentions, note, terms, learned)
    _set_containing(mentions)
    past = past_history_flags(text, note.tokens)
    for mention in mentions:
        # "hepatitis B negative" also denies hepatitis
        if any(_is_denied_answer(text, mentions[longer]) for longer in mention.containing):
            _mark(mention, "negated")
        # In a list of past diseases, events are past; chronic diseases go on.
        if past[mention.places[0]] and any(
            order == 0 and is_past_event(code.code) for code, (_, order) in mention.codes_of_terms.items()
        ):
            _mark(mention, "historical")
    return NoteMentions(note, mentions)


def _whole_descriptions(text: str, note: TokenizedNote, terms: Terms, masks: Sequence[int]) -> Iterator[Mention]:
    """The lines and list items that are a description of the classification, word for word.

    Its own words are no context: "without complications" in a description denies nothing.
    """
    if not terms.titles:
        return
    parts = {part.span() for pattern in _ITEMS for part in pattern.finditer(text)}
    for start, end in sorted(parts):
        code = terms.titles.get(title_words(text[start:end]))
        if code is None:
            continue
        first, last = bisect_left(note.starts, start), bisect_left(note.starts, end)
        if first == last:
            continue
        own, around = _own_marks(text[start:end]), marks_of(masks[first:last])
        yield Mention(
            places=tuple(range(first, last)),
            start=note.starts[first],
            end=note.ends[last - 1],
            gap=0,
            marks=tuple(mark and not of_description for mark, of_description in zip(around, own)),
            codes_of_terms={Code("icd10cm", code): TermEntry(_DESCRIPTION, 0)},
        )


@lru_cache(maxsize=1 << 12)
def _own_marks(description: str) -> tuple[bool, ...]:
    """The contexts that the words of a description have by themselves."""
    return marks_of(flag_masks(context_flags(description, TokenizedNote.from_text(description).tokens)))


def _without_many_repeats(mentions: Iterable[Mention], words: Sequence[str]) -> list[Mention]:
    """The mentions; of the same words only the first ones, so that a note of copied text takes no minutes."""
    counts: Counter[tuple[str, ...]] = Counter()
    kept = []
    for mention in mentions:
        key = tuple(words[place] for place in mention.places)
        counts[key] += 1
        if counts[key] <= _MAX_REPEATS:
            kept.append(mention)
    return kept


def _add_sided(
    mention: Mention, note: TokenizedNote, terms: Terms, mention_at: Callable[[tuple[int, ...], int], Mention | None]
) -> None:
    """Adds a mention of the same words with the nearest side in the sentence, and its codes on that side."""
    first, last, sentence = mention.places[0], mention.places[-1], note.sentence[mention.places[0]]
    if any(_side_of(note.words[place]) for place in mention.places):
        return
    window = range(max(0, first - _SIDE_DISTANCE), min(len(note.words), last + _SIDE_DISTANCE + 1))
    sides = [place for place in window if note.sentence[place] == sentence and _side_of(note.words[place])]
    if not sides:
        return
    clause = note.clause
    nearest = min(sides, key=lambda at: min((clause[at] != clause[p], abs(at - p), at) for p in mention.places))
    joined = [place for place in sides if 0 < abs(place - nearest) <= 2 and _is_joined(note, place, nearest)]
    side = "bilateral" if joined else _side_of(note.words[nearest])
    variants = {code: terms.sides.get(code.code, {}).get(side) for code in mention.codes_of_terms}
    if mention.learned < 0 and not any(variants.values()):
        return
    sided = mention_at(tuple(sorted((*mention.places, nearest))), mention.gap)
    if sided is None:
        return
    for code, variant in variants.items():
        if variant is not None:
            sided.codes_of_terms.setdefault(Code("icd10cm", variant), mention.codes_of_terms[code])
    if sided.learned < 0 and mention.learned >= 0:
        sided.learned, sided.side = mention.learned, side


def _is_joined(note: TokenizedNote, one: int, other: int) -> bool:
    """Whether two sides are both meant: "right and left"."""
    between = note.words[min(one, other) + 1 : max(one, other)]
    return _side_of(note.words[one]) != _side_of(note.words[other]) and between in (["and"], ["y"], [])


@lru_cache(maxsize=1 << 12)
def _side_of(word: str) -> str:
    """The side that a word names, "" if it names none."""
    return next((side for side in SIDES if stem(side) in word_keys(word)), "")


def _can_be_term(text: str, note: TokenizedNote, places: tuple[int, ...], vocabulary: frozenset[str]) -> bool:
    """False for a single short word that is not in capitals, as an abbreviation is, and not in the word list.

    Also for ambiguous words (RA, MS, PE) if nothing in the note supports the disease.
    """
    first = note.starts[places[0]]
    is_name = text[first].isupper() and _TITLE_OF_PERSON.search(text, max(0, first - 20), first)
    if is_name or not is_supported(text, note, places, vocabulary):
        return False
    if len(places) > 1:
        between = text[note.ends[places[0]] : note.starts[places[-1]]]
        is_loose = _is_split(text, note, places) or _takes_acuity(text, note, places)
        is_loose = is_loose or ";" in between or _EMPTY_BOX.search(between) is not None
        return not is_loose and not any(_is_loose(note, place, places) for place in places)
    start, end, word = note.starts[places[0]], note.ends[places[0]], note.words[places[0]]
    written = text[start:end]
    is_expanded = written.lower() != word
    return end - start > _MAX_ABBREVIATION or is_expanded or written.isupper() or is_listed_word(word)


def _is_loose(note: TokenizedNote, place: int, places: tuple[int, ...]) -> bool:
    """Whether a word of a mention is a particle apart from its verb, or the unit of a dose.

    "Time-out, the scope was passed" is no "passed out", and "100 mg for severe attacks" no attack of myasthenia (MG).
    """
    word, before = note.words[place], place - 1
    if word in _PARTICLES:
        return before not in places
    return word in _UNITS and before >= 0 and before not in places and note.words[before].isdigit()


def _takes_acuity(text: str, note: TokenizedNote, places: tuple[int, ...]) -> bool:
    """Whether a mention has only "chronic" or "acute" of an abbreviation: "prednisone for COPD" is no chronic use."""
    return any(
        note.words[place] in _ACUITY
        and text[note.starts[place] : note.ends[place]].lower() != note.words[place]
        and not any(note.starts[other] == note.starts[place] for other in places if other != place)
        for place in places
    )


def _is_split(text: str, note: TokenizedNote, places: tuple[int, ...]) -> bool:
    """Whether other words and a colon or bracket, or for a number a comma, are between two words of a mention.

    "disorder, severe (a fifth" is no fifth disease, and "CKD stage 4, creatinine 2" is no stage 2. The disease of an
    abbreviation does not belong to words beyond a comma: "ischemic cardiomyopathy, CKD". The number of a type belongs
    to the words beside it: "type 2 diabetes with CKD" is no stage 2.
    """
    for one, other in pairwise(place for place in places if not _side_of(note.words[place])):
        between = text[note.ends[one] : note.starts[other]]
        is_apart = note.content[other] - note.content[one] > 1
        is_typed = one > 0 and note.words[one].isdigit() and note.words[one - 1] == "type" and one - 1 not in places
        if is_apart and (is_typed or _SPLIT.search(between) or ("," in between and note.words[other].isdigit())):
            return True
        if "," in between and any(_is_part_of_abbreviation(note, place, places) for place in (one, other)):
            return True
    return False


def _is_part_of_abbreviation(note: TokenizedNote, place: int, places: tuple[int, ...]) -> bool:
    """Whether a word is from an expanded abbreviation of which a mention has only some words."""
    first, last = bisect_left(note.starts, note.starts[place]), bisect_right(note.starts, note.starts[place])
    return any(other not in places for other in range(first, last))


def _mention(text: str, note: TokenizedNote, masks: Sequence[int], places: tuple[int, ...], gap: int) -> Mention:
    start, end = note.starts[places[0]], note.ends[places[-1]]
    mention = Mention(places, start, end, gap, marks_of(masks[place] for place in places))
    if is_questioned(text, start, end):
        _mark(mention, "uncertain")
    is_negated_inside = any(
        place and note.sentence[place - 1] == note.sentence[place] and is_negated_inside_phrase(note.words, place)
        for place in places
        if place - 1 not in places
    )
    if is_negated_inside or is_denied_by_previous_words(text, start) or is_denied_by_next_words(text, end):
        _mark(mention, "negated")
    return mention


def _mark(mention: Mention, category: str) -> None:
    mention.marks = tuple(marked or name == category for name, marked in zip(CATEGORIES, mention.marks))


def _count_misspelled(
    mentions: list[Mention], note: TokenizedNote, terms: Terms | None, learned: PhraseIndex | None
) -> None:
    """Sets `misspelled`, the number of words that are spelled differently than in the term or learned phrase."""
    in_terms = frozenset(terms.index.misspelled(note)) if terms else frozenset()
    in_learned = frozenset(learned.misspelled(note)) if learned else frozenset()
    if not in_terms and not in_learned:
        return
    for mention in mentions:
        differently = ([in_terms] if mention.codes_of_terms else []) + ([in_learned] if mention.learned >= 0 else [])
        mention.misspelled = min((len(words.intersection(mention.places)) for words in differently), default=0)


def _set_containing(mentions: list[Mention]) -> None:
    """Sets `containing`, the longer mentions that have all words of a mention."""
    at: dict[int, list[int]] = {}
    sets = [frozenset(mention.places) for mention in mentions]
    for number, places in enumerate(sets):
        for place in places:
            at.setdefault(place, []).append(number)
    for mention, places in zip(mentions, sets):
        mention.containing = [other for other in at[mention.places[0]] if places < sets[other]]


def _is_denied_answer(text: str, mention: Mention) -> bool:
    """Whether the words of a mention are neighbours and followed by a denial: "hepatitis B negative"."""
    return mention.places[-1] - mention.places[0] < len(mention.places) and is_denied_by_next_words(text, mention.end)


def surface_form(note: TokenizedNote, places: tuple[int, ...]) -> str:
    """The words at some places as they are written."""
    return " ".join(note.words[place] for place in places)
