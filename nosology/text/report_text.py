"""Report text for HMHAN (Sasikala et al., 2025): cleaned words with marked negation, and words as features.

The Hierarchical Multi-Head Attention Network (HMHAN) reads cleaned reports; its word model reads the features.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from nosology.text.cleaning import CleanedText, Edit
from nosology.text.context import CATEGORIES, NEGATION_PREFIX, context_flags
from nosology.text.sections import sections
from nosology.text.tokens import Tokens, function_words, rows, tokenize, words_of

_NEGATORS = frozenset({"no", "not", "without", "never", "none", "nor"})  # function words that are never dropped
_DEGREES = frozenset({"", " ", "°", "º", "˚", " °", "° ", " ° "})  # between a number and the unit of a temperature
_TEMPERATURE = re.compile(r"\d+[cf]")
_MAX_ABBREVIATION = 2  # words of an abbreviation: "r/o" is r and o
_PREFIXES = {
    "negated": NEGATION_PREFIX,
    "uncertain": "MAYBE_",
    "hypothetical": "MAYBE_",
    "historical": "PAST_",
    "family": "KIN_",
}
_STEM = 5  # the first letters of a longer word are the same in all its forms and in most misspellings


@lru_cache(maxsize=1)
def _abbreviations() -> dict[tuple[str, ...], tuple[str, ...]]:
    """The words of each abbreviation -> the words of its long form."""
    return {tuple(words_of(row["short"])): tuple(words_of(row["long"])) for row in rows("short_forms.tsv")}


@lru_cache(maxsize=1)
def _first_words() -> frozenset[str]:
    return frozenset(words[0] for words in _abbreviations())


@lru_cache(maxsize=1)
def tokens_with_context(text: str) -> tuple[Tokens, np.ndarray]:
    """The tokens of a text and their context flags (categories, words); the last result is cached."""
    tokens = tokenize(text)
    return tokens, context_flags(text, tokens)


def expanded_abbreviation(word: str) -> tuple[str, ...]:
    """The long form of an abbreviation of one word; () if it is none."""
    return _abbreviations().get((word,), ())


def clean_report(text: str, *, negation: bool = True, stop_words: bool = True, context: bool = False) -> CleanedText:
    """The words of a report in lower case, separated by blanks, with abbreviations expanded and without numbers.

    negation: NOT_ before each negated content word. context: also MAYBE_, PAST_ and KIN_ before uncertain and past ones
    and those of relatives. stop_words: drop function words, but never a negator, and the unit of a temperature with its
    number: "Patient has a fever of 102°F" becomes "patient fever".
    """
    marked = [category for category in _PREFIXES if (negation if category == "negated" else context)]
    return CleanedText.from_original(text).edited(_report_edits(text, marked, stop_words))


def _report_edits(text: str, marked: Sequence[str], stop_words: bool) -> Iterator[Edit]:
    """One edit per word, and one for the characters between two words; marked: categories of context."""
    tokens, flags = tokens_with_context(text)
    prefixes = _context_prefixes(flags, marked)
    dropped = function_words() - _NEGATORS if stop_words else frozenset()
    end, i, has_words = 0, 0, False
    while i < len(tokens):
        length, expanded = _expand(text, tokens, i)
        start, stop = int(tokens.starts[i]), int(tokens.ends[i + length - 1])
        words = [
            prefixes[i] + word if word not in function_words() else word
            for word in expanded
            if word not in dropped and not word.isdigit() and not (stop_words and _is_temperature(text, tokens, i))
        ]
        if end < start:
            yield Edit(end, start, " " if has_words and words else "")
        yield Edit(start, stop, " ".join(words))
        has_words = has_words or bool(words)
        end, i = stop, i + length
    if end < len(text):
        yield Edit(end, len(text), "")


def _is_temperature(text: str, tokens: Tokens, i: int) -> bool:
    """Whether word i is a number with the unit of a temperature (102f), or such a unit after a number (102 °F)."""
    word = tokens.words[i]
    if word not in ("c", "f"):
        return len(word) > 1 and word[-1] in "cf" and _TEMPERATURE.fullmatch(word) is not None
    gap = text[tokens.ends[i - 1] : tokens.starts[i]] if i else None
    return gap in _DEGREES and tokens.words[i - 1].isdigit()


def _expand(text: str, tokens: Tokens, i: int) -> tuple[int, tuple[str, ...]]:
    """The number of words of the abbreviation at word i (1 if it is none), and its long form; / joins its words."""
    words, starts, ends = tokens.words, tokens.starts, tokens.ends
    if words[i] in _first_words():
        for length in range(min(_MAX_ABBREVIATION, len(words) - i), 0, -1):
            is_joined = all(text[ends[k] : starts[k + 1]] == "/" for k in range(i, i + length - 1))
            expanded = _abbreviations().get(tuple(words[i : i + length])) if is_joined else None
            if expanded is not None:
                return length, expanded
    return 1, (words[i],)


def context_features(text: str, *, pairs: bool = True) -> Iterator[str]:
    """The features of a note, see `positioned_features`."""
    return (name for name, _ in positioned_features(text, pairs=pairs))


def positioned_features(text: str, *, pairs: bool = True) -> Iterator[tuple[str, int]]:
    """The features of a note, each with the index of its (first) word among all words.

    Features are each content word with a prefix for its context, the same with its section, its stem, and pairs of
    neighbours. The prefix makes "no pneumonia" another feature than "pneumonia".
    """
    tokens, flags = tokens_with_context(text)
    prefixes = _context_prefixes(flags)
    kinds = _section_kinds(text, tokens.starts)
    content = [i for i, word in enumerate(tokens.words) if word not in function_words() and not word.isdigit()]
    for position, i in enumerate(content):
        word, prefix = tokens.words[i], prefixes[i]
        for form in (word, *expanded_abbreviation(word)):
            yield prefix + form, i
            yield f"{kinds[i]}:{prefix}{form}", i
            if len(form) > _STEM:
                yield f"{prefix}{form[:_STEM]}~", i
        if pairs and position + 1 < len(content) and content[position + 1] <= i + 2:
            yield f"{prefix}{word} {tokens.words[content[position + 1]]}", i


def _context_prefixes(flags: np.ndarray, categories: Sequence[str] = tuple(_PREFIXES)) -> list[str]:
    """The prefix of each word; of several categories the first one counts."""
    prefixes = [""] * flags.shape[1]
    for category in reversed(categories):
        for i in np.flatnonzero(flags[CATEGORIES.index(category)]):
            prefixes[i] = _PREFIXES[category]
    return prefixes


def _section_kinds(text: str, starts: np.ndarray) -> list[str]:
    """The kind of the section of each word."""
    parts = sections(text)
    indices = np.searchsorted([part.span.start for part in parts], starts, side="right") - 1
    return [parts[i].kind for i in indices]
