"""A code that is not billable, completed by the side that the note names and by the seventh character."""

from __future__ import annotations

import re

from nosology.claims.draft import Draft
from nosology.core import Span

_WINDOW = 30  # characters before and after a phrase in which its side is looked for
_SIDES = re.compile(
    r"\b(?:(?P<bilateral>bilateral(?:ly)?|b/l|bil|both|OU)|(?P<right>right|rt|R|OD)|(?P<left>left|lt|L|OS))\b(?!')"
)
_ANY_CASE = re.compile(_SIDES.pattern.replace("|OU", "").replace("|R|OD", "").replace("|L|OS", ""), re.IGNORECASE)


def side_at(draft: Draft, span: Span) -> str:
    """right, left or bilateral, as the words at or next to a span say; "" if they do not."""
    sentence = draft.sentence(span.start)
    before = draft.text[max(sentence.start, span.start - _WINDOW) : span.end]
    after = draft.text[span.end : min(sentence.end, span.end + _WINDOW)]
    before, after = re.split(r"[;.\n]|, (?!and)", before)[-1], re.split(r"[;.,\n]", after)[0]
    found = [match for pattern in (_SIDES, _ANY_CASE) for match in pattern.finditer(before)]
    if found:
        return max(found, key=lambda match: match.start()).lastgroup or ""
    found = [match for pattern in (_SIDES, _ANY_CASE) for match in pattern.finditer(after)]
    return (min(found, key=lambda match: match.start()).lastgroup or "") if found else ""


def completed(draft: Draft, code: str, span: Span) -> str:
    """The code itself if it is billable, else its descendant with the side at a span and the seventh character.

    The seventh character is that of the injuries of the set, or A. "" if no descendant fits.
    """
    if draft.table.billable(code) or code not in draft.table:
        return code
    codes = [item for item in draft.table.descendants(code) if draft.table.billable(item)]
    seventh = next((item[-1] for item in draft.entries if item[0] in "ST" and len(item) == 8), "A")
    codes = [item for item in codes if len(item) < 8 or item[-1] == seventh] or codes
    side = side_at(draft, span)
    for word in (side, "unspecified"):
        named = [item for item in codes if word and re.search(rf"\b{word}\b", draft.table.description(item), re.I)]
        if named:
            return named[0]
    return codes[0] if len(codes) == 1 else ""
