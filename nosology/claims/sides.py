"""The side of a condition that its own words do not name, from the problem of the visit to which it belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from nosology.claims.draft import Draft, Entry
from nosology.codes import table
from nosology.codes.related_codes import laterality_variants
from nosology.core import Span

_SIDE = re.compile(r"\b(?:(right)|(left)|(bilateral(?:ly)?|both (?=\w+s\b)))", re.IGNORECASE)
_NAMES = ("right", "left", "bilateral")
_OPEN = re.compile(r"\bunspecified\b", re.IGNORECASE)
_OPEN_EYE = re.compile(r"\bunspecified eye\b")
# The Alphabetic Index gives osteoarthritis of one or both of these joints as primary: right, left, bilateral.
_PRIMARY = {
    "M16.9": ("M16.11", "M16.12", "M16.0"),
    "M17.9": ("M17.11", "M17.12", "M17.0"),
    "M18.9": ("M18.11", "M18.12", "M18.0"),
}


def complete_sides(draft: Draft) -> None:
    """Replaces codes of an unspecified side by the side of their sentence, problem or chief complaint (outpatients)."""
    if draft.encounter.is_inpatient or draft.encounter.role != "attending":
        return
    for code, entry in list(draft.entries.items()):
        sides = _sides(draft.encounter.release, code) if _OPEN.search(draft.table.description(code)) else {}
        side = _side(draft, entry) if sides else ""
        if side in sides and sides[side] != code:
            draft.replace([code], sides[side], f"the problem is on the {side} side", "side")


@lru_cache(maxsize=10_000)
def _sides(release: str | None, code: str) -> dict[str, str]:
    """right, left and bilateral -> the code of the same condition on that side."""
    if code in _PRIMARY:
        return dict(zip(_NAMES, _PRIMARY[code]))
    codes = table("icd10cm", release)
    category = [it for it in codes.descendants(code[:3]) if codes.billable(it)]
    by_title = {codes.description(it): it for it in category}
    title = codes.description(code)
    named = {name: _OPEN_EYE.sub(words, title) for name, words in zip(_NAMES, ("right eye", "left eye", "bilateral"))}
    eyes = {name: by_title[words] for name, words in named.items() if words != title and words in by_title}
    return eyes | laterality_variants(codes, category).get(code, {})


def _side(draft: Draft, entry: Entry) -> str:
    """The only side that the nearest words with a side name; "" if they name several or none do."""
    for spans in _places(draft, entry):
        words = " ".join(draft.text[span.start : span.end] for span in spans)
        found = {name for match in _SIDE.finditer(words) for name, group in zip(_NAMES, match.groups()) if group}
        if found:
            return next(iter(found)) if len(found) == 1 else ""
    return ""


def _places(draft: Draft, entry: Entry) -> Iterator[list[Span]]:
    """Sentences, titles of problems, details of problems, and chief complaint of a code."""
    assessment = draft.assessment
    yield [draft.sentence(span.start) for span in entry.evidence]
    titles = [title for span in entry.evidence if (title := assessment.title(span)) is not None]
    yield titles
    yield [assessment.block(title) for title in titles]
    if any(assessment.place(span) for span in entry.evidence):
        yield [section.body for section in draft.sections if section.kind == "chief_complaint"]
