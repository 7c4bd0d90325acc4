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
_TEMPERATURE = re.compile(r"(\d+(?:\.\d+|,\d(?!\d))?)([^\S\r\n]?[°º˚][^\S\r\n]?|[^\S\r\n]?)([cf])", re.IGNORECASE)
_DEGREES = {"c": (34, 43), "f": (93, 110)}  # of a body; without a sign, a number outside of them has no unit
_SIGN, _UNIT = re.compile(r"\d*º"), re.compile(r"\d*º?[cf]")
_TEMPERATURE_LENGTH = 9  # characters of "102.4 ° F"
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

    The unit of a temperature is dropped with its number. negation: NOT_ before each negated content word. context: also
    MAYBE_, PAST_ and KIN_ before uncertain and past ones and those of relatives. stop_words: drop function words, but
    never a negator: "Patient has a fever of 102°F" becomes "patient fever".
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
            if word not in dropped and not word.isdigit() and not (length == 1 and _is_temperature(text, tokens, i))
        ]
        if end < start:
            yield Edit(end, start, " " if has_words and words else "")
        yield Edit(start, stop, " ".join(words))
        has_words = has_words or bool(words)
        end, i = stop, i + length
    if end < len(text):
        yield Edit(end, len(text), "")


def _is_temperature(text: str, tokens: Tokens, i: int) -> bool:
    """Whether word i is the unit of a temperature after its number (102 °F), or has both (102F), or is or has the sign
    º before the unit (38º C), which is a letter in words."""
    word, end = tokens.words[i], int(tokens.ends[i])
    if _SIGN.fullmatch(word) and i + 1 < len(tokens):
        return tokens.words[i + 1] in _DEGREES and _is_temperature(text, tokens, i + 1)
    if not _UNIT.fullmatch(word):
        return False
    numbers = _TEMPERATURE.finditer(text, max(0, end - _TEMPERATURE_LENGTH), end)
    found = next((number for number in numbers if number.end() == end), None)
    if found is None:
        return False
    low, high = _DEGREES[word[-1]]
    return bool(found[2].strip()) or low <= float(found[1].replace(",", ".")) <= high


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


def context_features(text: str, *, pairs: bool = True, by_section: bool = True) -> Iterator[str]:
    """The features of a note, see `positioned_features`."""
    return (name for name, _ in positioned_features(text, pairs=pairs, by_section=by_section))


def is_word_feature(name: str) -> bool:
    """Whether a feature is a word with its context: no stem, no pair, and without its section."""
    return not any(mark in name for mark in ":~ ")


def positioned_features(text: str, *, pairs: bool = True, by_section: bool = True) -> Iterator[tuple[str, int]]:
    """The features of a note, each with the index of its (first) word among all words.

    Features are each content word with a prefix for its context, the same with its section (by_section), its stem, and
    pairs of neighbours. The prefix makes "no pneumonia" another feature than "pneumonia".
    """
    tokens, flags = tokens_with_context(text)
    prefixes = _context_prefixes(flags)
    kinds = _section_kinds(text, tokens.starts)
    content = [i for i, word in enumerate(tokens.words) if word not in function_words() and not word.isdigit()]
    for position, i in enumerate(content):
        word, prefix = tokens.words[i], prefixes[i]
        for form in (word, *expanded_abbreviation(word)):
            yield prefix + form, i
            if by_section:
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
