"""Context of words: negated, uncertain, of a family member, historical or hypothetical (after NegEx and ConText).

The trigger phrases are in data/context.tsv. A phrase may have alternatives: "is|was|has_been seen" is "is seen", "was
seen" and "has been seen", and an alternative may be empty. Phrases also match without their accents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from nosology.core import Span
from nosology.text.cleaning import clean
from nosology.text.data import function_words, rows
from nosology.text.sections import sections
from nosology.text.sentences import sentences
from nosology.text.tokens import Tokens, tokenize, words_of

CATEGORIES = ("negated", "uncertain", "family", "historical", "hypothetical")
NEGATION_PREFIX = "NOT_"
MAX_SCOPE = 40
"""The largest scope of a trigger, in words."""

SECTION_CATEGORY = {"family_history": "family"}
"""Kinds of sections whose words all have a category."""

# Problem lists and risk factors are current, although they occur in history sections.
_PAST_TITLE = re.compile(r"\b(?:past|prior|pmhx?|medical|cardiac history|antecedentes|previas?)\b", re.IGNORECASE)
# A list of past diseases ends at an empty line before text that is no list item, or at a line like a heading.
_LIST_END = re.compile(r"\n[ \t]*\n\s*(?![-*•\d\s(])|\n[ \t]*(?=[A-ZÁÉÍÓÚÑ][^:.;,\n]{2,50}:)")

# Negation of the words directly before: "PE ruled out with a scan", "Fever: denies.", "influenza A and B negative".
_NEGATION_AFTER = re.compile(
    r"\s+(?:ruled out\b(?!\s+for\b)|excluded\b(?!\s+from\b)|negative\b|neg\b|descartad[oa]s?\b)"
    r"|\s*(?:, ?(?:ruled out|excluded)|\(\s*[–-]\s*\))\s*(?=[.,;)\n\r]|$)"
    r"|\s*[:–-]\s*(?:no|none|nil|never|denies|denied|absent|niega|ningun[oa])\s*(?=[.,;)\n\r]|$)"
    r"|(?:\s*(?:,|/|&|\band\b|\bor\b|\by\b)\s*[A-Z0-9]{1,2}\b)+\s+(?:negative|neg)\b(?!\s+for\b)"
    r"|\s+(?:no|absent)\s*(?=[,;)])",
    re.IGNORECASE,
)
_MINUS_BEFORE = re.compile(r"(?:^|[,;:.\n\r])\s*\(\s*[–-]\s*\)\s*$")  # "(-) fever, (-) cough"
_NEGATIVE_LIST = re.compile(  # "Negative: fever, chills"
    r"(?:^|[.;\n\r]\s*|\bpertinent\s+|\bROS\s+)(?:negatives?|neg|negativos?)\s*:"
    r"(?:(?!\b(?:positives?|but|except)\b)[^.;:\n\r])*$",
    re.IGNORECASE,
)
_MAX_LIST = 200  # characters before a mention that are searched for "negative:"

_ANSWERS = frozenset({"no", "never", "absent", "denied"})
_AFTER_ANSWER = frozenset(",;)")


class ContextSpan(NamedTuple):
    """The words in `scope` have a category because of the words in `trigger`."""

    category: str
    scope: Span
    trigger: Span


class Context(NamedTuple):
    """The context of a mention."""

    negated: bool
    uncertain: bool
    family: bool
    historical: bool
    hypothetical: bool


class TriggerEffect(NamedTuple):
    """One effect of a phrase: it gives up to `words` words before or after it a category, or ends other scopes."""

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


class _Scope(NamedTuple):
    """The words first..last-1 are in the scope of the trigger at the characters `trigger`."""

    category: str
    first: int
    last: int
    trigger: Span


def contexts(text: str) -> list[ContextSpan]:
    """All scopes of a text, in the order of their triggers."""
    tokens = tokenize(text)
    scopes = sorted(_scopes(text, tokens), key=lambda scope: (scope.trigger, scope.first))
    return [
        ContextSpan(category, Span(int(tokens.starts[first]), int(tokens.ends[last - 1])), trigger)
        for category, first, last, trigger in scopes
    ]


def context_of(text: str, spans: Iterable[tuple[int, int]]) -> list[Context]:
    """The context of each span: a flag is true if any word of the span is in such a scope."""
    tokens = tokenize(text)
    flags = context_flags(text, tokens)
    # counts[c, i]: the number of flags of category c among the first i words
    counts = np.concatenate([np.zeros((len(CATEGORIES), 1), np.int64), np.cumsum(flags, axis=1)], axis=1)
    offsets = np.array([tuple(span) for span in spans], dtype=np.int64).reshape(-1, 2)
    first = np.searchsorted(tokens.ends, offsets[:, 0], side="right")
    last = np.maximum(first, np.searchsorted(tokens.starts, offsets[:, 1], side="left"))
    return [Context(*row) for row in (counts[:, last] > counts[:, first]).T.tolist()]


def context_flags(text: str, tokens: Tokens) -> np.ndarray:
    """Whether each word is in a scope of each category: boolean (categories, words), in the order of CATEGORIES."""
    changes = np.zeros((len(CATEGORIES), len(tokens) + 1), dtype=np.int64)
    for scope in _scopes(text, tokens):
        changes[CATEGORIES.index(scope.category), scope.first] += 1
        changes[CATEGORIES.index(scope.category), scope.last] -= 1
    return np.cumsum(changes, axis=1)[:, :-1] > 0


def mark_negated(text: str, tokens: Tokens) -> Tokens:
    """The tokens of a text with NOT_ before each negated content word; offsets stay.

    tokens: all words of the text, from `tokenize(text)`.
    """
    negated = context_flags(text, tokens)[CATEGORIES.index("negated")].tolist()
    words = [
        NEGATION_PREFIX + word if flag and word not in function_words() and not word.isdigit() else word
        for word, flag in zip(tokens.words, negated)
    ]
    return Tokens(words, tokens.starts, tokens.ends)


def past_history_flags(text: str, tokens: Tokens) -> np.ndarray:
    """Whether each word (words,) is in a list of past diseases and not in a sentence about the present."""
    flags = np.zeros(len(tokens), dtype=bool)
    for section in sections(text):
        if section.kind == "past_medical_history" and _PAST_TITLE.search(section.title):
            body = section.body.start + len(text[section.body.start :]) - len(text[section.body.start :].lstrip())
            end = _LIST_END.search(text, body, section.body.end)
            first, last = np.searchsorted(tokens.starts, (body, end.start() if end else section.body.end)).tolist()
            flags[first:last] = True
    if flags.any():
        for first, last in _sentence_bounds(text, tokens):
            triggers = find_triggers(tokens.words, first, last) if flags[first:last].any() else ()
            if any("historical" in effect.ends for trigger in triggers for effect in trigger.effects):
                flags[first:last] = False
    return flags


def _sentence_bounds(text: str, tokens: Tokens) -> Iterator[tuple[int, int]]:
    """The first word and last word + 1 of each sentence."""
    starts = [sentence.start for sentence in sentences(text)]
    return pairwise([*np.searchsorted(tokens.starts, starts).tolist(), len(tokens)])


def _scopes(text: str, tokens: Tokens) -> list[_Scope]:
    """The scopes of a text, none of them empty."""
    starts, ends = tokens.starts.tolist(), tokens.ends.tolist()
    scopes = []
    for first, last in _sentence_bounds(text, tokens):
        triggers = [
            trigger
            for trigger in find_triggers(tokens.words, first, last)
            if trigger.last - trigger.first > 1
            or not _is_answer(text, starts[trigger.first], tokens.words[trigger.first])
        ]
        for category, start, stop, trigger in _sentence_scopes(triggers, first, last):
            if start < stop:
                scopes.append(_Scope(category, start, stop, Span(starts[trigger.first], ends[trigger.last - 1])))
    for section in sections(text):
        if (category := SECTION_CATEGORY.get(section.kind)) is not None:
            first, last = np.searchsorted(tokens.starts, section.body).tolist()
            if first < last:
                scopes.append(_Scope(category, first, last, Span(section.span.start, section.body.start)))
    return scopes


def _is_answer(text: str, start: int, word: str) -> bool:
    """Whether a negation of one word answers what is before it, and has no scope: "HTN: no, DM: yes"."""
    return word in _ANSWERS and text[start + len(word) : start + len(word) + 2].lstrip(" ")[:1] in _AFTER_ANSWER


def _sentence_scopes(
    triggers: list[TriggerMatch], start: int, end: int
) -> Iterator[tuple[str, int, int, TriggerMatch]]:
    """Category, first word, last word + 1 and trigger of the scopes in the sentence of words start..end-1."""
    lower = dict.fromkeys(CATEGORIES, start)
    for trigger in triggers:
        for effect in trigger.effects:
            if effect.backward:
                first = max(trigger.first - effect.words, lower[effect.category])
                yield effect.category, first, trigger.first, trigger
        for effect in trigger.effects:
            lower.update(dict.fromkeys(effect.ends, trigger.last))
    upper = dict.fromkeys(CATEGORIES, end)
    for trigger in reversed(triggers):
        for effect in trigger.effects:
            if effect.forward:
                yield effect.category, trigger.last, min(trigger.last + effect.words, upper[effect.category]), trigger
        for effect in trigger.effects:
            upper.update(dict.fromkeys(effect.ends, trigger.first))


def find_triggers(words: Sequence[str], start: int, end: int) -> Iterator[TriggerMatch]:
    """The trigger phrases among words start..end-1, from left to right; of overlapping ones the first and longest."""
    index, done = _trigger_index(), start
    for first in range(start, end):
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


def is_negated_inside_phrase(words: Sequence[str], position: int) -> bool:
    """Whether a word is negated by the word before it although both are in one phrase, which has no scope.

    "No difficulty" is no trigger, but it negates "difficulty in walking". "Chronic pancreatitis, no acute process"
    does not mention an acute pancreatitis.
    """
    if not position or words[position - 1] not in _trigger_index():
        return False
    lengths, phrases = _trigger_index()[words[position - 1]]
    alone = phrases.get((words[position - 1],), ())
    if not any(effect.forward and effect.category == "negated" for effect in alone):
        return False
    longer = (phrases.get(tuple(words[position - 1 : position - 1 + length])) for length in lengths if length > 1)
    return any(effects and {effect.category for effect in effects} <= {"pseudo", "negated"} for effects in longer)


def is_denied_by_next_words(text: str, end: int) -> bool:
    """Whether a mention that ends at a character is negated directly behind it, as in "Fever: denies"."""
    return _NEGATION_AFTER.match(text, end) is not None


def is_denied_by_previous_words(text: str, start: int) -> bool:
    """Whether a mention that starts at a character is negated by a minus in brackets or "negative:" before a list."""
    if _MINUS_BEFORE.search(text[max(0, start - 8) : start]) is not None:
        return True
    before = text[max(0, start - _MAX_LIST) : start]
    return ":" in before and _NEGATIVE_LIST.search(before) is not None


def phrase_variants(phrase: str) -> set[tuple[str, ...]]:
    """Each spelling of a phrase of the table, as words in lower case."""
    choices = product(*(part.replace("_", " ").split("|") for part in phrase.split(" ")))
    variants = {" ".join(choice) for choice in choices}
    variants |= {clean(variant, ["fold_accents"]).text for variant in variants}
    return {tuple(words_of(variant)) for variant in variants}


# First word -> lengths of the phrases that start with it (longest first), and the effects of each phrase.
_TriggerIndex = dict[str, tuple[list[int], dict[tuple[str, ...], tuple[TriggerEffect, ...]]]]


@lru_cache(maxsize=1)
def _trigger_index() -> _TriggerIndex:
    phrases: dict[tuple[str, ...], dict[TriggerEffect, None]] = {}
    for row in rows("context.tsv"):
        direction, ends = row["direction"], row["ends"]
        effect = TriggerEffect(
            row["category"],
            forward=direction in ("forward", "both"),
            backward=direction in ("backward", "both"),
            words=int(row["words"] or MAX_SCOPE),
            ends=frozenset(CATEGORIES if ends == "all" else ends.split(",") if ends else ()),
        )
        for phrase in phrase_variants(row["phrase"]):
            phrases.setdefault(phrase, {})[effect] = None
    index: _TriggerIndex = {}
    for phrase in sorted(phrases, key=lambda phrase: (-len(phrase), phrase)):
        lengths, effects = index.setdefault(phrase[0], ([], {}))
        effects[phrase] = tuple(phrases[phrase])
        if len(phrase) not in lengths:
            lengths.append(len(phrase))
    return index
