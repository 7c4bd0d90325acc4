"""Which words of a note are denied, doubted, another person's, past or not yet real (NegEx, ConText)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from nosology.core import Span
from nosology.text.cleaning import fold_accents
from nosology.text.data import function_words, rows
from nosology.text.edits import apply_edits, untouched
from nosology.text.sections import sections
from nosology.text.sentences import sentences
from nosology.text.tokens import Tokens, tokenize, words_of

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
    found = tokenize(text)
    scopes = sorted(_scopes(text, found), key=lambda scope: (scope.trigger, scope.first))
    return [
        ContextSpan(category, Span(int(found.starts[first]), int(found.ends[last - 1])), trigger)
        for category, first, last, trigger in scopes
    ]


def context_of(text: str, spans: Iterable[tuple[int, int]]) -> list[Context]:
    """What the text says of each span: a flag is set where any of the span's words stands in such a scope."""
    found = tokenize(text)
    marks = context_flags(text, found)
    # counts[c, i]: how many of the first i words carry mark c.
    counts = np.concatenate([np.zeros((len(CATEGORIES), 1), np.int64), np.cumsum(marks, axis=1)], axis=1)
    places = np.array([tuple(span) for span in spans], dtype=np.int64).reshape(-1, 2)
    first = np.searchsorted(found.ends, places[:, 0], side="right")
    last = np.maximum(first, np.searchsorted(found.starts, places[:, 1], side="left"))
    flags = (counts[:, last] > counts[:, first]).T
    return [Context(*row) for row in flags.tolist()]


def context_flags(text: str, found: Tokens) -> np.ndarray:
    """Which words stand in which scopes: boolean (categories, words), in the order of CATEGORIES."""
    changes = np.zeros((len(CATEGORIES), len(found) + 1), dtype=np.int64)
    for scope in _scopes(text, found):
        changes[CATEGORIES.index(scope.category), scope.first] += 1
        changes[CATEGORIES.index(scope.category), scope.last] -= 1
    return np.cumsum(changes, axis=1)[:, :-1] > 0


def past_history_flags(text: str, found: Tokens) -> np.ndarray:
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
                "historical" in effect.ends
                for match in find_triggers(found.words, begin, stop)
                for effect in match.effects
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


def _told(text: str, found: Tokens, begin: int, end: int) -> list[TriggerMatch]:
    """The phrases of a sentence; an answer ("HTN: no, DM: yes") says nothing of what follows it."""
    return [
        match
        for match in find_triggers(found.words, begin, end)
        if not (
            match.last - match.first == 1 and is_answer(text, int(found.starts[match.first]), found.words[match.first])
        )
    ]


def _sentence_scopes(inside: list[TriggerMatch], begin: int, end: int) -> Iterator[tuple[str, int, int, TriggerMatch]]:
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


CATEGORIES = ("negated", "uncertain", "family", "historical", "hypothetical")

# "PE ruled out with a scan", "Fever: denies.", "influenza A and B negative": what deals with the words right before
# it, and with no others.
_DENIED_BEFORE = re.compile(
    r"\s+(?:ruled out\b(?!\s+for\b)|excluded\b(?!\s+from\b)|negative\b|neg\b|descartad[oa]s?\b)"
    r"|\s*(?:, ?(?:ruled out|excluded)|\(\s*[–-]\s*\))\s*(?=[.,;)\n\r]|$)"
    r"|\s*[:–-]\s*(?:no|none|nil|never|denies|denied|absent|niega|ningun[oa])\s*(?=[.,;)\n\r]|$)"
    r"|(?:\s*(?:,|/|&|\band\b|\bor\b|\by\b)\s*[A-Z0-9]{1,2}\b)+\s+(?:negative|neg)\b(?!\s+for\b)"
    r"|\s+(?:no|absent)\s*(?=[,;)])",
    re.IGNORECASE,
)

_DENIED_BEHIND = re.compile(r"(?:^|[,;:.\n\r])\s*\(\s*[–-]\s*\)\s*$")  # "(-) fever, (-) cough"

# "Negative: fever, chills"
_DENIED_LIST = re.compile(
    r"(?:^|[.;\n\r]\s*|\bpertinent\s+|\bROS\s+)(?:negatives?|neg|negativos?)\s*:"
    r"(?:(?!\b(?:positives?|but|except)\b)[^.;:\n\r])*$",
    re.IGNORECASE,
)
_LONG_LIST = 200  # characters of such a list that are read

_ANSWERS = frozenset({"no", "never", "absent", "denied"})
_ANSWERED = frozenset(",;)")

MAX_SCOPE = 40
"""No phrase reaches further than this many words."""


class TriggerEffect(NamedTuple):
    """One thing a phrase does: mark up to `words` words before or after it, or end the scope of other phrases."""

    category: str
    forward: bool = False
    backward: bool = False
    words: int = MAX_SCOPE
    ends: frozenset[str] = frozenset()


class TriggerMatch(NamedTuple):
    """The words first..last-1 of a note are a phrase with these effects."""

    first: int
    last: int
    effects: tuple[TriggerEffect, ...]


# First word -> the lengths of the phrases that start with it, longest first, and what each phrase does.
Index = dict[str, tuple[list[int], dict[tuple[str, ...], tuple[TriggerEffect, ...]]]]


def find_triggers(words: Sequence[str], begin: int, end: int) -> Iterator[TriggerMatch]:
    """The phrases among words begin..end-1, from left to right; of phrases that overlap, the first and longest."""
    index, done = _index(), begin
    for first in range(begin, end):
        if words[first] not in index or first < done:
            continue
        lengths, phrases = index[words[first]]
        for length in lengths:
            done = first + length
            effects = phrases.get(tuple(words[first:done])) if done <= end else None
            if effects is not None:
                yield TriggerMatch(first, done, effects)
                break
        else:
            done = first + 1


def is_negated_inside_phrase(words: Sequence[str], place: int) -> bool:
    """Whether the word before `place` denies that word, though both belong to a phrase, whose own words have no mark.

    "No difficulty" says nothing of what follows, but it denies a difficulty in walking; "chronic pancreatitis, no acute
    process" tells of no acute pancreatitis.
    """
    if not place or words[place - 1] not in _index():
        return False
    lengths, phrases = _index()[words[place - 1]]
    alone = phrases.get((words[place - 1],), ())
    if not any(effect.forward and effect.category == "negated" for effect in alone):
        return False
    longer = (phrases.get(tuple(words[place - 1 : place - 1 + length])) for length in lengths if length > 1)
    return any(effects and {effect.category for effect in effects} <= {"pseudo", "negated"} for effects in longer)


def is_denied_by_next_words(text: str, end: int) -> bool:
    """Whether the words that end at a character are denied by those that follow at once, as the answer in a form is."""
    return _DENIED_BEFORE.match(text, end) is not None


def is_denied_by_previous_words(text: str, start: int) -> bool:
    """Whether a minus in brackets, or "negative:" before a list, denies what begins at a character."""
    if _DENIED_BEHIND.search(text[max(0, start - 8) : start]) is not None:
        return True
    line = text[max(0, start - _LONG_LIST) : start]
    return ":" in line and _DENIED_LIST.search(line) is not None


def is_answer(text: str, start: int, word: str) -> bool:
    """Whether a denial of one word is an answer to what stands before it: "HTN: no, DM: yes"."""
    return word in _ANSWERS and text[start + len(word) : start + len(word) + 2].lstrip(" ")[:1] in _ANSWERED


def phrase_variants(phrase: str) -> set[tuple[str, ...]]:
    """Each way to write a phrase of the table, as lower-cased words."""
    choices = product(*(part.replace("_", " ").split("|") for part in phrase.split(" ")))
    written = {" ".join(choice) for choice in choices}
    written |= {apply_edits(fold_accents(way), untouched(way)).text for way in written}
    return {tuple(words_of(way)) for way in written}


def _effect(row: dict[str, str]) -> TriggerEffect:
    direction, ends = row["direction"], row["ends"]
    return TriggerEffect(
        row["category"],
        forward=direction in ("forward", "both"),
        backward=direction in ("backward", "both"),
        words=int(row["words"] or MAX_SCOPE),
        ends=frozenset(CATEGORIES if ends == "all" else ends.split(",") if ends else ()),
    )


@lru_cache(maxsize=1)
def _index() -> Index:
    phrases: dict[tuple[str, ...], dict[TriggerEffect, None]] = {}
    for row in rows("context.tsv"):
        for phrase in phrase_variants(row["phrase"]):
            phrases.setdefault(phrase, {})[_effect(row)] = None
    index: Index = {}
    for phrase in sorted(phrases, key=lambda phrase: (-len(phrase), phrase)):
        lengths, known = index.setdefault(phrase[0], ([], {}))
        known[phrase] = tuple(phrases[phrase])
        if len(phrase) not in lengths:
            lengths.append(len(phrase))
    return index


PREFIX = "NOT_"


def mark_negated(text: str, found: Tokens) -> Tokens:
    """The words of the text with NOT_ before each content word in a negated scope; places stay.

    `found` are the words of the text itself, all of them: tokens(text).
    """
    negated = context_flags(text, found)[CATEGORIES.index("negated")].tolist()
    empty = function_words()
    words = [
        PREFIX + word if mark and word not in empty and not word.isdigit() else word
        for word, mark in zip(found.words, negated)
    ]
    return Tokens(words, found.starts, found.ends)
