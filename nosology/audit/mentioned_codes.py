"""Where a text names a code, and whether each mention counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nosology.claims.draft import Draft
from nosology.claims.mention_status import Objection, objection
from nosology.codes.lookup import label_description
from nosology.codes.related_codes import is_past_event
from nosology.core import Code, Span
from nosology.models.lexicon.lexicon_settings import MatchSettings
from nosology.models.lexicon.lexicon_terms import Terms
from nosology.models.lexicon.mentions import find_mentions
from nosology.text.context import CATEGORIES

_MAX_NAMES = 6
# Objections by which the note says that the patient does not have it, or not any more.
_ABSENT = frozenset({"negated", "ruled-out", "historical", "past", "resolved", "copied"})
_MARKS = {
    "negated": "the note denies it",
    "family": "the note says it of a relative",
    "historical": "the note says it only of the past",
    "hypothetical": "the note mentions it only as a possibility in the future",
}  # whether uncertain mentions count depends on the setting; `objection` knows it


class CodeMention(NamedTuple):
    """A mention of a code; objection: why it does not count, None if it does. is_first: no code fits better."""

    span: Span
    objection: Objection | None
    is_first: bool


class MentionedCodes:
    """The codes that the terms of the classification name in a text, whatever the context."""

    def __init__(self, draft: Draft):
        self._draft = draft
        self._places: dict[str, list[tuple[Span, tuple[bool, ...], bool]]] = {}
        for mention in find_mentions(draft.text, Terms.open(), None, MatchSettings().gap).mentions:
            for code, entry in mention.codes_of_terms.items():
                place = Span(mention.start, mention.end), mention.marks, entry.order == 0
                self._places.setdefault(code.code, []).append(place)

    def of(self, code: str) -> list[CodeMention]:
        """The mentions of an ICD-10-CM code."""
        return [
            CodeMention(span, self._objection(span, marks, code), first)
            for span, marks, first in self._places.get(code, ())
        ]

    def of_category(self, code: str) -> dict[str, list[CodeMention]]:
        """The mentions of the other codes of the same category for which no code fits better."""
        others = [it for it in self._places if it[:3] == code[:3] and it != code]
        found = {it: [named for named in self.of(it) if named.is_first] for it in others}
        return {it: named for it, named in found.items() if named}

    def denied_or_over(self, code: str, coded: Iterable[Span]) -> list[CodeMention]:
        """The mentions of a code if the note denies all of them or calls them over; else none.

        coded: where a coder finds the code.
        """
        mentions = self.of(code)
        for span in coded:
            context = self._draft.context(span)
            marks = tuple(getattr(context, category) for category in CATEGORIES)
            mentions.append(CodeMention(span, self._objection(span, marks, code), False))
        is_absent = all(it.objection and it.objection.rule in _ABSENT for it in mentions)
        return mentions if is_absent else []

    def _objection(self, span: Span, marks: tuple[bool, ...], code: str) -> Objection | None:
        if code in self._draft.table and (found := objection(self._draft, span, code)):
            return found
        for category, reason in _MARKS.items():
            is_over = category != "historical" or is_past_event(code)  # chronic diseases go on
            if marks[CATEGORIES.index(category)] and code[0] != "Z" and is_over:
                return Objection(category, reason)
        return None


def names_of(draft: Draft, code: Code) -> tuple[str, ...]:
    """The names of a code that an audit looks for: description and inclusion terms.

    Of a code that the release of the encounter does not have, the description in another release; of a code that no
    release has, that of its category, else the code itself.
    """
    if code.system != "icd10cm" or code.code not in draft.table:
        return (label_description(code),)
    entry = draft.table[code.code]
    return tuple(dict.fromkeys((entry.description, *entry.inclusion_terms)))[:_MAX_NAMES]


def merged_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The spans in order, those that overlap as one."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start < merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return tuple(merged)
