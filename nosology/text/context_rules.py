"""What phrases do to the words around them, read from data/context.tsv (in the manner of NegEx and ConText).

A phrase may hold alternatives: "is|was|has_been seen" is "is seen", "was seen" and "has been seen", and an alternative
may be empty. Accents may be left out in a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from nosology.text.cleaning import fold_accents
from nosology.text.data import rows
from nosology.text.edits import apply, untouched
from nosology.text.tokens import words_of

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


class Effect(NamedTuple):
    """One thing a phrase does: mark up to `words` words before or after it, or end the scope of other phrases."""

    category: str
    forward: bool = False
    backward: bool = False
    words: int = MAX_SCOPE
    ends: frozenset[str] = frozenset()


class Match(NamedTuple):
    """The words first..last-1 of a note are a phrase with these effects."""

    first: int
    last: int
    effects: tuple[Effect, ...]


# First word -> the lengths of the phrases that start with it, longest first, and what each phrase does.
Index = dict[str, tuple[list[int], dict[tuple[str, ...], tuple[Effect, ...]]]]


def matches(words: Sequence[str], begin: int, end: int) -> Iterator[Match]:
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
                yield Match(first, done, effects)
                break
        else:
            done = first + 1


def denies_next(words: Sequence[str], place: int) -> bool:
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


def denied_after(text: str, end: int) -> bool:
    """Whether the words that end at a character are denied by those that follow at once, as the answer in a form is."""
    return _DENIED_BEFORE.match(text, end) is not None


def denied_before(text: str, start: int) -> bool:
    """Whether a minus in brackets, or "negative:" before a list, denies what begins at a character."""
    if _DENIED_BEHIND.search(text[max(0, start - 8) : start]) is not None:
        return True
    line = text[max(0, start - _LONG_LIST) : start]
    return ":" in line and _DENIED_LIST.search(line) is not None


def is_answer(text: str, start: int, word: str) -> bool:
    """Whether a denial of one word is an answer to what stands before it: "HTN: no, DM: yes"."""
    return word in _ANSWERS and text[start + len(word) : start + len(word) + 2].lstrip(" ")[:1] in _ANSWERED


def spellings(phrase: str) -> set[tuple[str, ...]]:
    """Each way to write a phrase of the table, as lower-cased words."""
    choices = product(*(part.replace("_", " ").split("|") for part in phrase.split(" ")))
    written = {" ".join(choice) for choice in choices}
    written |= {apply(fold_accents(way), untouched(way)).text for way in written}
    return {tuple(words_of(way)) for way in written}


def _effect(row: dict[str, str]) -> Effect:
    direction, ends = row["direction"], row["ends"]
    return Effect(
        row["category"],
        forward=direction in ("forward", "both"),
        backward=direction in ("backward", "both"),
        words=int(row["words"] or MAX_SCOPE),
        ends=frozenset(CATEGORIES if ends == "all" else ends.split(",") if ends else ()),
    )


@lru_cache(maxsize=1)
def _index() -> Index:
    phrases: dict[tuple[str, ...], dict[Effect, None]] = {}
    for row in rows("context.tsv"):
        for phrase in spellings(row["phrase"]):
            phrases.setdefault(phrase, {})[_effect(row)] = None
    index: Index = {}
    for phrase in sorted(phrases, key=lambda phrase: (-len(phrase), phrase)):
        lengths, known = index.setdefault(phrase[0], ([], {}))
        known[phrase] = tuple(phrases[phrase])
        if len(phrase) not in lengths:
            lengths.append(len(phrase))
    return index
