"""Checks of the side of assigned codes: left open, coded twice, or other than the note says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from nosology.claims.code_issue import CodeIssue
from nosology.codes.related_codes import laterality_variants
from nosology.codes.table import CodeTable
from nosology.core import Code, Span

_SIDE_WORDS = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_CONTEXT_CHARACTERS = 40  # before a span of evidence, in which a side is searched


def side_variants(codes: CodeTable, code: str) -> dict[str, str]:
    """side -> the billable code of the same condition on that side, if it has a left and a right code; else empty."""
    variants = _category_variants(codes, code[:3]).get(code, {})
    return variants if {"left", "right"} <= variants.keys() else {}


@lru_cache(maxsize=500)
def _category_variants(codes: CodeTable, category: str) -> dict[str, dict[str, str]]:
    lines = [line for line in codes.descendants(category) if codes.billable(line)] if category in codes else []
    return laterality_variants(codes, lines)


def check_laterality(
    code: Code, others: Sequence[Code], codes: CodeTable, text: str, evidence: Sequence[Span]
) -> Iterator[CodeIssue]:
    """The issues of the side of a code; codes: the table of the encounter's date."""
    variants = side_variants(codes, code.code)
    if not variants:
        return
    coded = next((side for side, variant in variants.items() if variant == code.code), "")
    if not coded:
        offers = tuple(Code(code.system, variant) for variant in variants.values())
        yield CodeIssue("warning", "laterality", code, f"{code.code} leaves the side open", offers)
        return
    opposite = {"left": "right", "right": "left"}.get(coded, "")
    if opposite and "bilateral" in variants and any(other.code == variants[opposite] for other in others):
        offers = (Code(code.system, variants["bilateral"]),)
        yield CodeIssue("hint", "laterality", code, "both sides are coded: there is a bilateral code", offers)
    said = {match[0].lower() for span in evidence for match in _SIDE_WORDS.finditer(_context(text, span))}
    if opposite and said == {opposite}:
        offers = (Code(code.system, variants[opposite]),)
        yield CodeIssue("warning", "laterality", code, f"{code.code} says {coded}, the note says {opposite}", offers)


def _context(text: str, span: Span) -> str:
    """The text of a span and of the characters before it on the same line."""
    before = text[max(0, span.start - _CONTEXT_CHARACTERS) : span.start]
    return before.rpartition("\n")[2] + text[span.start : span.end]
