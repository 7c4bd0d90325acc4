"""The words of searches: keys of words, other ways to say a word, phrases that name codes, ranges of values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from nosology.codes.sources import DATA, read_lines
from nosology.codes.terms import Term
from nosology.text.phrases import expand
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words, rows, tokenize, words_of

_KEPT = frozenset(("without", "no", "not"))  # function words that are part of names
_POSSESSIVE = re.compile(r"(?<=\w)['\u2019]s\b")
_RANGE = re.compile(r"\b(\d+(?:\.\d+)?)(?:-|\s+to\s+)(\d+(?:\.\d+)?)\b(?!-)")
_AT_LEAST = re.compile(r"\b(\d+(?:\.\d+)?) or (?:greater|more|over)\b")


def without_possessives(text: str) -> str:
    """The text with Crohn in place of Crohn's."""
    return _POSSESSIVE.sub("", text)


def content_words(text: str, words: list[str] | None = None) -> list[str]:
    """The words of a text that have content, with abbreviations written out; all words if none has.

    words: the words of the text, if they are known; then the text must have no possessives.
    """
    if words is None:
        text = without_possessives(text)
        words = words_of(text)
    if not _abbreviations().isdisjoint(words):
        words = expand(text, tokenize(text)).words
    kept = [word for word in words if word in _KEPT or len(word) == 1 or word not in function_words()]
    return kept or words  # AS, HE and HA are abbreviations, too


@cache
def _abbreviations() -> frozenset[str]:
    """The first words of abbreviations, in lower case."""
    return frozenset(row["short"].split()[0] for row in rows("expansions.tsv"))


def is_abbreviation(word: str) -> bool:
    """Whether a word is, at least in capitals, an abbreviation or the first word of one."""
    return word in _abbreviations() and word not in function_words()


def content_keys(text: str) -> list[str]:
    """The key of each word of a text that has content."""
    return [word_keys(word)[0] for word in content_words(text)]


def exact_keys(text: str) -> frozenset[str]:
    """The keys of a text and "other", which makes a difference between names."""
    return frozenset(content_keys(text)) | ({"other"} & set(words_of(text)))


@cache
def meanings() -> dict[str, list[str]]:
    """Word -> what it says in a description: sacrum (sacral), iv (4, fourth), kneecap (patella)."""
    found: dict[str, list[str]] = {}
    own = (dict(zip(("word", "means"), line.split("\t"))) for line in read_lines(DATA / "look_up_words.tsv")[1:])
    for row in (*rows("attributes.tsv"), *own):
        found.setdefault(row["word"], []).extend(phrase.strip() for phrase in row["means"].split(","))
    return found


def look_ups() -> Iterator[Term]:
    """Phrases that name codes in a look-up; in a note they would mean too many other things (mono, ED, flu shot)."""
    for line in read_lines(DATA / "look_ups.tsv")[1:]:
        phrases, codes = line.split("\t")
        yield from (Term(phrase, code, "synonym") for phrase in phrases.split("|") for code in codes.split())


@cache
def look_up_order() -> dict[frozenset[str], dict[str, int]]:
    """Keys of a phrase of the look-ups -> the place of each of its codes, the likeliest first."""
    order: dict[frozenset[str], dict[str, int]] = {}
    for term in look_ups():
        places = order.setdefault(exact_keys(term.text), {})
        places.setdefault(term.code, len(places))
    return order


def value_ranges(text: str) -> list[tuple[float, float]]:
    """The ranges of values of a name: "Body mass index [BMI] 40.0-44.9, adult"."""
    ranges = [(float(low), float(high)) for low, high in _RANGE.findall(text)]
    return [pair for pair in ranges if pair[0] < pair[1]] + [(float(low), 1e9) for low in _AT_LEAST.findall(text)]
