"""Titles for lines that the sources leave untitled, from the words that the codes below them share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LINKS = frozenset({",", "and", "as", "by", "for", "from", "in", "into", "of", "on", "or", "the", "to", "type", "with"})


def common_start(phrases: Sequence[Sequence[str]]) -> list[str]:
    """The words with which all phrases begin."""
    first, last = min(phrases), max(phrases)  # whatever these two share, those between them share too
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return list(first[:length])


def common_title(descriptions: Iterable[str]) -> str:
    """The words that all descriptions begin and, up to the first comma, end with; "" if they share fewer than two."""
    phrases = [description.replace(",", " ,").split() for description in descriptions]
    start = common_start(phrases)
    if "," not in start:
        heads = [(phrase[: phrase.index(",")] if "," in phrase else phrase)[len(start) :] for phrase in phrases]
        start += common_start([head[::-1] for head in heads])[::-1]
    while start and start[-1].lower() in _LINKS:
        start.pop()
    return " ".join(start).replace(" ,", ",") if len(start) > 1 else ""
