"""Which words of a note are denied, doubted, another person's, past or not yet real (NegEx, ConText)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nosology.core import Span
from nosology.text.context_rules import CATEGORIES, Match, is_answer, matches
from nosology.text.sections import sections
from nosology.text.sentences import sentences
from nosology.text.tokens import Tokens, tokens

SECTION_CATEGORY = {"family_history": "family"}
"""Sections that say of all their words what a phrase says of a few."""


# Problem lists and risk factors are of now, though they stand where a history does.
_PAST_TITLE = re.compile(r"\b(?:past|prior|pmhx?|medical|cardiac history|antecedentes|previas?)\b", re.IGNORECASE)
# Such a list ends with an empty line before what is no item of it, or with a line that begins like a heading.
_LIST_END = re.compile(r"\n[ \t]*\n\s*(?![-*•\d\s(])|\n[ \t]*(?=[A-ZÁÉÍÓÚÑ][^:.;,\n]{2,50}:)")


class ContextSpan(NamedTuple):
    """The words in `scope` are what `category` says, because of the words in `trigger`."""

    category: str
    scope: Span
    trigger: Span


class Context(NamedTuple):
    """What a note says of a mention beside naming it."""

    negated: bool
    uncertain: bool
    family: bool
    historical: bool
    hypothetical: bool


class _Scope(NamedTuple):
    """Words first..last-1 stand in the scope of a trigger at the characters `trigger`."""

    category: str
    first: int
    last: int
    trigger: Span


def contexts(text: str) -> list[ContextSpan]:
    """Every scope in the text, in the order of the triggers."""
    found = tokens(text)
    scopes = sorted(_scopes(text, found), key=lambda scope: (scope.trigger, scope.first))
    return [
        ContextSpan(category, Span(int(found.starts[first]), int(found.ends[last - 1])), trigger)
        for category, first, last, trigger in scopes
    ]


def context_of(text: str, spans: Iterable[tuple[int, int]]) -> list[Context]:
    """What the text says of each span: a flag is set where any of the span's words stands in such a scope."""
    found = tokens(text)
    marks = word_marks(text, found)
    # counts[c, i]: how many of the first i words carry mark c.
    counts = np.concatenate([np.zeros((len(CATEGORIES), 1), np.int64), np.cumsum(marks, axis=1)], axis=1)
    places = np.array([tuple(span) for span in spans], dtype=np.int64).reshape(-1, 2)
    first = np.searchsorted(found.ends, places[:, 0], side="right")
    last = np.maximum(first, np.searchsorted(found.starts, places[:, 1], side="left"))
    flags = (counts[:, last] > counts[:, first]).T
    return [Context(*row) for row in flags.tolist()]


def word_marks(text: str, found: Tokens) -> np.ndarray:
    """Which words stand in which scopes: boolean (categories, words), in the order of CATEGORIES."""
    changes = np.zeros((len(CATEGORIES), len(found) + 1), dtype=np.int64)
    for scope in _scopes(text, found):
        changes[CATEGORIES.index(scope.category), scope.first] += 1
        changes[CATEGORIES.index(scope.category), scope.last] -= 1
    return np.cumsum(changes, axis=1)[:, :-1] > 0


def past_words(text: str, found: Tokens) -> np.ndarray:
    """Which words (words,) stand in a list of past diseases, in no sentence that speaks of now."""
    marked = np.zeros(len(found), dtype=bool)
    for section in sections(text):
        if section.kind == "past_medical_history" and _PAST_TITLE.search(section.title):
            body = section.body.start + len(text[section.body.start :]) - len(text[section.body.start :].lstrip())
            end = _LIST_END.search(text, body, section.body.end)
            first, last = np.searchsorted(found.starts, (body, end.start() if end else section.body.end)).tolist()
            marked[first:last] = True
    if marked.any():
        bounds = [*np.searchsorted(found.starts, [sentence.start for sentence in sentences(text)]).tolist(), len(found)]
        for begin, stop in pairwise(bounds):
            if marked[begin:stop].any() and any(
                "historical" in effect.ends for match in matches(found.words, begin, stop) for effect in match.effects
            ):
                marked[begin:stop] = False
    return marked


def _scopes(text: str, found: Tokens) -> list[_Scope]:
    """The scopes of a text whose words are `found`; none is empty."""
    starts, ends = found.starts.tolist(), found.ends.tolist()
    sentence_starts = [sentence.start for sentence in sentences(text)]
    bounds = [*np.searchsorted(found.starts, sentence_starts).tolist(), len(found)]
    return [
        _Scope(category, first, last, Span(starts[match.first], ends[match.last - 1]))
        for begin, end in pairwise(bounds)
        for category, first, last, match in _sentence_scopes(_told(text, found, begin, end), begin, end)
        if first < last
    ] + _section_scopes(text, found)


def _told(text: str, found: Tokens, begin: int, end: int) -> list[Match]:
    """The phrases of a sentence; an answer ("HTN: no, DM: yes") says nothing of what follows it."""
    return [
        match
        for match in matches(found.words, begin, end)
        if not (
            match.last - match.first == 1 and is_answer(text, int(found.starts[match.first]), found.words[match.first])
        )
    ]


def _sentence_scopes(inside: list[Match], begin: int, end: int) -> Iterator[tuple[str, int, int, Match]]:
    """Category, first word, last word + 1 and trigger of the scopes in the sentence of words begin..end-1."""
    opened = dict.fromkeys(CATEGORIES, begin)
    for match in inside:
        for effect in match.effects:
            if effect.backward:
                first = max(match.first - effect.words, opened[effect.category])
                yield effect.category, first, match.first, match
        for effect in match.effects:
            opened.update(dict.fromkeys(effect.ends, match.last))
    closed = dict.fromkeys(CATEGORIES, end)
    for match in reversed(inside):
        for effect in match.effects:
            if effect.forward:
                yield effect.category, match.last, min(match.last + effect.words, closed[effect.category]), match
        for effect in match.effects:
            closed.update(dict.fromkeys(effect.ends, match.first))


def _section_scopes(text: str, found: Tokens) -> list[_Scope]:
    scopes = []
    for section in sections(text):
        category = SECTION_CATEGORY.get(section.kind)
        if category is not None:
            first, last = np.searchsorted(found.starts, section.body).tolist()
            if first < last:
                scopes.append(_Scope(category, first, last, Span(section.span.start, section.body.start)))
    return scopes
