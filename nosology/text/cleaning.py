"""Cleaning: small rules that each say what to change in a text, applied in turn. All take linear time."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from nosology.core import ConfigError
from nosology.text.edits import CleanedText, Edit, Rule, apply_edits, untouched
from nosology.text.tokens import lower as same_length_lower

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufeff\u200b-\u200d\u2060\u00ad]+")
_CRLF = re.compile(r"\r\n?")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
# A mark holds no bracket and is short, so that a lone "[**" is not searched to the end of the note.
_DEID = re.compile(r"_{3,}|\[\*\*[^\[\]]{0,200}\*\*\]")
_BLANK = re.compile(r"\s+")
# A lone blank needs no edit, and most runs are one.
_OTHER_THAN_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9 ][^A-Za-z0-9]*| [^A-Za-z0-9]+")
_OTHER_THAN_WORD = re.compile(r"(?:[^\w\u0300-\u036f ]|_)(?:[^\w\u0300-\u036f]|_)*| (?:[^\w\u0300-\u036f]|_)+")
_NUMBER = re.compile(r"(?<!\S)\d+(?!\S)\s?")

PUNCTUATION = {
    **dict.fromkeys("‘’‚‛′´ʼ", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("•‣▪●◦∙·", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
    **dict.fromkeys("\u0085\u2028\u2029", "\n"),
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "ﬀ": "ff",
    "ﬁ": "fi",
    "ﬂ": "fl",
}
_TYPOGRAPHIC = re.compile(f"[^\\W_][\u0300-\u036f]+|[{''.join(PUNCTUATION)}]")


def nul(text: str) -> Iterator[Edit]:
    """Drops NUL and other characters that print nothing."""
    return (Edit(*found.span(), "") for found in _CONTROL.finditer(text))


def crlf(text: str) -> Iterator[Edit]:
    """Ends every line with a line feed alone."""
    return (Edit(*found.span(), "\n") for found in _CRLF.finditer(text))


def unicode(text: str) -> Iterator[Edit]:
    """Writes typographic marks and ligatures in ASCII, and joins letters with their combining accents."""
    if text.isascii():
        return
    for found in _TYPOGRAPHIC.finditer(text):
        first, accents = found[0][0], found[0][1:]
        yield Edit(*found.span(), unicodedata.normalize("NFC", PUNCTUATION.get(first, first) + accents))


@lru_cache(maxsize=4096)
def _without_accent(character: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", character) if not unicodedata.combining(c))


def fold_accents(text: str) -> Iterator[Edit]:
    """Takes the accents off letters: á to a, ñ to n."""
    for found in _NOT_ASCII.finditer(text):
        plain = _without_accent(found[0])
        if plain != found[0]:
            yield Edit(*found.span(), plain)


def deid(text: str) -> Iterator[Edit]:
    """Puts a blank for each de-identification mark: ___ of MIMIC-IV, [** ... **] of MIMIC-III."""
    return (Edit(*found.span(), " ") for found in _DEID.finditer(text))


def whitespace(text: str) -> Iterator[Edit]:
    """Writes each run of blanks as one blank, one line end or one empty line, whichever it held."""
    for found in _BLANK.finditer(text):
        blank = (" ", "\n", "\n\n")[min(found[0].count("\n"), 2)]
        if blank != found[0]:
            yield Edit(*found.span(), blank)


def strip(text: str) -> Iterator[Edit]:
    """Drops blanks at both ends."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    if first:
        yield Edit(0, first, "")
    if first < last < len(text):
        yield Edit(last, len(text), "")


def lower(text: str) -> Iterator[Edit]:
    """Writes the text in lower case, character for character."""
    lowered = same_length_lower(text)
    if lowered != text:
        yield Edit(0, len(text), lowered)


def alphanumeric(text: str) -> Iterator[Edit]:
    """Puts one blank for each run of other than A-Z, a-z and 0-9."""
    return (Edit(*found.span(), " ") for found in _OTHER_THAN_ALPHANUMERIC.finditer(text))


def words(text: str) -> Iterator[Edit]:
    """Puts one blank for each run of other than letters and digits of any script."""
    return (Edit(*found.span(), " ") for found in _OTHER_THAN_WORD.finditer(text))


def numbers(text: str) -> Iterator[Edit]:
    """Drops numbers that stand alone, each with the blank that follows it."""
    return (Edit(*found.span(), "") for found in _NUMBER.finditer(text))


RULES: dict[str, Rule] = {
    "nul": nul,
    "crlf": crlf,
    "unicode": unicode,
    "fold_accents": fold_accents,
    "deid": deid,
    "whitespace": whitespace,
    "strip": strip,
    "lower": lower,
    "alphanumeric": alphanumeric,
    "words": words,
    "numbers": numbers,
}

BENCHMARK = ("lower", "alphanumeric", "numbers", "strip")
"""The preparation of Edin et al. (2023)."""

MULTILINGUAL = ("nul", "unicode", "deid", "lower", "words", "numbers", "strip")
"""The same for text with accents: letters of every script stay."""


def clean(text: str, rules: Sequence[str] = BENCHMARK) -> CleanedText:
    """The text after each named rule in turn."""
    cleaned = untouched(text)
    for name in rules:
        if name not in RULES:
            raise ConfigError(f"a cleaning rule must be one of {', '.join(RULES)}; got {name!r}")
        cleaned = apply_edits(RULES[name](cleaned.text), cleaned)
    return cleaned
