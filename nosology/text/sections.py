"""Sections of a note, found by their headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from nosology.core import Span
from nosology.text.borders import BORDER, documents_of
from nosology.text.tokens import rows

MAX_HEADING = 60
"""The largest number of characters of a heading."""

_LINE = re.compile(r"[^\n\r]+")
_ORNAMENT = " \t\xa0-*#=•>_.:0123456789()[]"
# One-line reports: "INDICATION: Cough. FINDINGS: Clear lungs."
_INLINE = re.compile(
    r"(?<=[.;] )(?:[A-ZÁÉÍÓÚÑ][A-ZÁÉÍÓÚÑ /&]{1,40}|Findings|Impression|Imp|Conclusion|Comparison|Technique)(?=:)"
)
_LAST_HEADING = re.compile(r"[.;] +([A-Z][\w /&-]{1,40}):[ \t]*$", re.MULTILINE)
_UNKNOWN = re.compile(r"[A-ZÁÉÍÓÚÑ][\w /&,()'-]{2,58}")
# Headings of single problems: "Problem #1: COPD". A bullet before "Education: ..." makes it an item, no heading.
_PROBLEM = re.compile(r"(?:problem|diagnosis|issue)(?: ?# ?| number | )\d{1,2}\b[.:)]?", re.IGNORECASE)
_ITEM = re.compile(r"[-*•▪●◦>+][ \t]*[^:]{1,60}:[ \t]*\S")
_PROBLEM_KINDS = ("assessment", "impression", "discharge_diagnosis", "hospital_course")
_ONE_PARAGRAPH = ("instructions", "medications")  # inside of an assessment: "Follow-up: two weeks."
_INSIDE = (*_ONE_PARAGRAPH, "results")  # "UA: no protein" between problems 1 and 2
_NUMBER = re.compile(r"[ \t]*#?(\d{1,2})[.)][ \t]")
_SHORT = 3  # letters of an abbreviation; "3. AF" is the item of a list and no heading
_SPANISH = re.compile(r"\b(?:del|los|las|paciente|una|por|que)\b", re.IGNORECASE)
_SLASH = re.compile(r"\s*/\s*")
# "S. Here for follow-up.\nO. ...\nA. ...": the letters of a note with the parts of a SOAP note.
_SOAP = re.compile(r"^(?P<letter>[SOAP])(?:[.)]|[ \t]*[-–])[ \t]+(?=\S)", re.MULTILINE)
_SOAP_KINDS = {"S": "hpi", "O": "physical_exam", "A": "assessment", "P": "assessment"}
_PLAIN = str.maketrans("áéíóúüñ", "aeiouun")


class Section(NamedTuple):
    """A part of a note under one heading; `span` includes the heading, `body` does not."""

    title: str
    kind: str
    span: Span
    body: Span


def _key(title: str) -> str:
    words = " ".join(title.lower().translate(_PLAIN).strip(_ORNAMENT).replace("&", " and ").split())
    return _SLASH.sub("/", words)


@lru_cache(maxsize=2)
def _kinds(spanish: bool = True) -> dict[str, str]:
    """The kind of each heading; Spanish abbreviations (AF: family history) only for Spanish notes."""
    return {
        _key(row["heading"]): row["kind"]
        for row in rows("sections.tsv")
        if spanish or row["lang"] != "es" or len(row["heading"]) > _SHORT
    }


def kinds() -> tuple[str, ...]:
    """All kinds of sections."""
    return ("start", *dict.fromkeys(_kinds().values()), "other")


def sections(text: str) -> list[Section]:
    """The sections in order; they cover the whole text, without the borders of documents.

    The text before the first heading is a section of kind "start" without a title; so is the text after a border. A
    heading that is not in the table starts a section of kind "other" if it is alone on its line after an empty line.
    """
    return list(_sections(text))


@lru_cache(maxsize=4)  # context and claims both read the sections of a note
def _sections(text: str) -> tuple[Section, ...]:
    if BORDER in text:
        return tuple(_moved(it, part.start) for part in documents_of(text) for it in _sections(part.text))
    result: list[Section] = []
    title, kind, start, body = "", "start", 0, 0
    for next_title, next_kind, next_start, next_body in _headings(text):
        if start < next_start:
            result.append(Section(title, kind, Span(start, next_start), Span(body, next_start)))
        title, kind, start, body = next_title, next_kind, next_start, next_body
    if start < len(text):
        result.append(Section(title, kind, Span(start, len(text)), Span(body, len(text))))
    return tuple(result)


def _moved(section: Section, by: int) -> Section:
    span, body = (Span(start + by, end + by) for start, end in (section.span, section.body))
    return section._replace(span=span, body=body)


def _headings(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Title, kind, start of the heading and start of the body, for each heading."""
    kinds, last_end = _kinds(_SPANISH.search(text) is not None), 0
    soap = _soap_headings(text)
    current, assessed, resume = "start", "", False  # kind of the section; heading of the assessment to go on with
    next_number = ""  # of the list of problems that such a line interrupts
    for line in _LINE.finditer(text):
        start, end = line.span()
        if line[0].isspace():
            continue
        is_new_paragraph, last_end = text.count("\n", last_end, start) != 1, end
        number = _NUMBER.match(text, start, end)
        heading = soap.get(start) or _heading(text, start, end, kinds, current, is_new_paragraph)
        if heading is not None:
            has_text = heading[3] < end and not text[heading[3] : end].isspace()
            is_inside = current == "assessment" and has_text
            resume = is_inside and heading[1] in _ONE_PARAGRAPH
            next_number = next_number if is_inside and heading[1] in _INSIDE else ""
            current, assessed = heading[1], heading[0] if heading[1] == "assessment" else assessed
            yield heading
        elif (resume and is_new_paragraph) or (current in _INSIDE and number and number[1] == next_number):
            yield assessed, "assessment", start, start
            current, resume = "assessment", False
        if number and current == "assessment":
            next_number = str(int(number[1]) + 1)
        has_colon = ":" in line[0]
        last = _LAST_HEADING.search(text, start, end) if has_colon else None  # "Home today. Clinical impression:"
        if last and last.start(1) > start and (kind := kinds.get(_key(last[1]))) is not None:
            yield last[1], kind, last.start(1), end
            current = kind
            continue
        for inline in _INLINE.finditer(text, start, end) if has_colon else ():
            if (kind := kinds.get(_key(inline[0]))) is not None:
                yield inline[0], kind, inline.start(), inline.end() + 1
                current = kind


def _soap_headings(text: str) -> dict[int, tuple[str, str, int, int]]:
    """The headings of a note whose parts start with the letters S, O, A and P in this order, by their start."""
    found = list(_SOAP.finditer(text))
    if [match["letter"] for match in found] not in (["S", "O", "A"], ["S", "O", "A", "P"]):
        return {}
    return {it.start(): (it["letter"], _SOAP_KINDS[it["letter"]], it.start(), it.end()) for it in found}


def _heading(
    text: str, start: int, end: int, kinds: dict[str, str], current: str, is_new_paragraph: bool
) -> tuple[str, str, int, int] | None:
    """The heading at the start of a line, in a section of kind `current`."""
    if problem := _PROBLEM.match(text, start, end):
        return None if current in _PROBLEM_KINDS else (problem[0], "assessment", start, problem.end())
    if current == "assessment" and _ITEM.match(text, start, end):
        return None
    colon = text.find(":", start, min(end, start + MAX_HEADING + 1))
    stop = colon if colon >= 0 else min(end, start + MAX_HEADING + 1)
    title = text[start:stop].strip(_ORNAMENT)
    alone = stop == end and title[:1].isupper() and (len(title) > _SHORT or title == text[start:end].strip())
    kind = kinds.get(_key(title)) if colon >= 0 or alone else None
    if kind is None and colon >= 0 and text[colon:end].rstrip() == ":" and is_new_paragraph:
        is_problem = current == "assessment" and not title.isupper()  # "Hypertension:" in an assessment
        kind = "other" if _UNKNOWN.fullmatch(title) and not is_problem else None
    return None if kind is None else (title, kind, start, stop + (colon >= 0))
