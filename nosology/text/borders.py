"""The border between the documents of an encounter in one text: no section, sentence or context extends over it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

BORDER = "\n\x1d\n"
"""A line with the control character "group separator", which texts of notes do not have."""


class JoinedDocument(NamedTuple):
    """A document in a text, and the position of its first character."""

    start: int
    text: str


def documents_of(text: str) -> list[JoinedDocument]:
    """The documents of a text; a text without a border is one document."""
    parts, start = [], 0
    for part in text.split(BORDER):
        parts.append(JoinedDocument(start, part))
        start += len(part) + len(BORDER)
    return parts


def join_documents(texts: Iterable[str]) -> str:
    """The text of several documents."""
    return BORDER.join(texts)
