"""Sentences of clinical text: prose wrapped over lines, lists, headings, abbreviations."""

from __future__ import annotations

import re
from functools import lru_cache

from nosology.core import Span
from nosology.text.borders import BORDER, documents_of
from nosology.text.tokens import function_words, rows

# Each alternative matches a whole run of characters; this keeps the time linear.
_MAYBE_END = re.compile(
    r"[.!?]+[\"'”’)\]]*|[\n\r]\s*"
    r"|(?<![ \t])(?:[ \t]++(?=\d{1,2}\)[ \t]+\w)|[ \t]{2,}+(?=\d{1,2}\.[ \t]+[A-Z]))"  # "1) gout 2) asthma"
)
_LIST_ITEM = re.compile(r"(?:[-*•▪●◦>#+]|\(?\d{1,3}[.)](?!\d)|[A-Za-z][.)])[ \t]*(?=\S)")
_HEADING = re.compile(r"[A-ZÁÉÍÓÚÑ][^:.;\n]{0,50}:(?!\d)")
_WHOLE_WORD = re.compile(r"(?<![\w.])(?=[^\W\d_]*[aeiouyáéíóúü])[^\W\d_]{4,}$", re.IGNORECASE)
_CONTINUATION = re.compile(r"\s*(?:and|or|nor|of|with|for|to|by|in|at|y|o|ni|de|con|para|por|en)\b")
_WORD = re.compile(r"\S{1,30}")
_LAST_WORD = re.compile(r"[^\W\d_]+(?:\.[^\W\d_]+)*$")

# A line of at least this many characters was wrapped; the second limit is for a next line in lower case.
WRAPPED = 50
WRAPPED_BEFORE_LOWER = 30
# A line was not wrapped if its next word and this many characters more would have fitted into the longest line.
ROOM = 15
ROOM_BEFORE_LOWER = 60


@lru_cache(maxsize=1)
def _abbreviations() -> dict[str, str]:
    """How often each abbreviation ends a sentence: never (Dr.), or seldom (q.d., only before a capital)."""
    return {row["abbreviation"]: row["last"] for row in rows("abbreviations.tsv")}


def sentences(text: str) -> list[Span]:
    """The sentences in order, without the blanks around them; they cover all other characters."""
    return list(_sentences(text))


@lru_cache(maxsize=4)  # context, phrases and claims all read the sentences of a note
def _sentences(text: str) -> tuple[Span, ...]:
    if BORDER in text:
        parts = documents_of(text)
        return tuple(Span(a + part.start, b + part.start) for part in parts for a, b in _sentences(part.text))
    spans: list[Span] = []
    start, width = 0, max(map(len, text.splitlines()), default=0)
    for match in _MAYBE_END.finditer(text):
        if match[0][0] in "\n\r":
            is_end = _is_hard_line_break(text, start, match.start(), match.end(), width)
        elif match[0][0] in " \t":
            is_end = start < match.start() and text.rfind("(", start, match.start()) <= text.rfind(
                ")", start, match.start()
            )
        else:
            is_end = _is_sentence_end(text, start, match.start(), match.end())
        if is_end:
            _add(text, start, match.end(), spans)
            start = match.end()
    _add(text, start, len(text), spans)
    return tuple(spans)


def _add(text: str, start: int, end: int, spans: list[Span]) -> None:
    sentence = text[start:end]
    stripped = sentence.strip()
    if stripped:
        first = start + len(sentence) - len(sentence.lstrip())
        spans.append(Span(first, first + len(stripped)))


def _is_hard_line_break(text: str, start: int, stop: int, resume: int, width: int) -> bool:
    """Whether the line end at `stop` ends a sentence and is not from wrapping lines to a width."""
    if resume == len(text) or max(text.count("\n", stop, resume), text.count("\r", stop, resume)) > 1:
        return True
    line = text[max(start, stop - WRAPPED) : stop].rstrip()
    if not line or line[-1] == ":" or _LIST_ITEM.match(text, resume) or _HEADING.match(text, resume):
        return True
    if line[-1] in ",;-/&(" or line.rsplit(None, 1)[-1].lower() in function_words():
        return False
    window = max(0, stop - width)
    before = max(text.rfind("\n", window, stop), text.rfind("\r", window, stop))
    length = stop - window if before < 0 else stop - 1 - before
    word = _WORD.match(text, resume)
    needed = length + 1 + (len(word[0]) if word else 0)
    if text[resume].islower():
        return length < WRAPPED_BEFORE_LOWER or needed + ROOM_BEFORE_LOWER <= width
    return length < WRAPPED or needed + ROOM <= width


def _is_whole_word(text: str, start: int, stop: int) -> bool:
    """Whether the word before a full stop is no abbreviation; then also a lower-case letter can start a sentence."""
    word = _WHOLE_WORD.search(text[max(start, stop - 40) : stop])
    return word is not None and word[0].lower() not in _abbreviations()


def _is_sentence_end(text: str, start: int, stop: int, resume: int) -> bool:
    """Whether the full stop, question or exclamation mark at `stop` ends a sentence."""
    following = text[resume : resume + 3].lstrip()
    if not text[resume : resume + 1].isspace():
        # "no pain.He has": a blank is missing.
        return text[stop - 1 : stop].islower() and following[:1].isupper() and following[1:2].islower()
    if following[:1].islower():
        return _is_whole_word(text, start, stop) and not _CONTINUATION.match(text, resume)
    if stop - start < 8 and text[start:stop].strip().isdigit():
        return False  # the number of a list item
    word = _LAST_WORD.search(text[max(start, stop - 12) : stop])
    if word is None or text[stop] != ".":
        return True
    initial = len(word[0]) == 1 and word[0].isupper()
    as_last_word = "never" if initial else _abbreviations().get(word[0].lower())
    capitalised = following[:1].isupper() and following[1:2].isalpha()
    return as_last_word is None or (as_last_word == "seldom" and capitalised)
