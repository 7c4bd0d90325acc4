"""Ambiguous words and abbreviations: RA is rheumatoid arthritis or room air, PE an embolism or the physical exam.

data/ambiguous.tsv has, for each word or phrase, the words of a note that support its meaning as a disease (one is
needed, or a word such as "known" before it) or exclude it (unless), and the words directly before or after it that
exclude it; ":" is a heading, 0 a number.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from nosology.text.phrases import TokenizedNote
from nosology.text.tokens import rows

_STATES = frozenset({"known", "has", "have", "had", "with", "of", "dx", "diagnosis"})  # words before a disease
_LONGEST = 20  # characters of a row's words
_HEADING = re.compile(r"\s?:")


class _Support(NamedTuple):
    needs: frozenset[str]
    unless: frozenset[str]
    before: frozenset[str]
    after: frozenset[str]


def is_supported(text: str, note: TokenizedNote, places: tuple[int, ...], vocabulary: frozenset[str]) -> bool:
    """Whether the words at some places can mean a disease; True if they are not ambiguous.

    vocabulary: the words of the note as they are written. An expanded abbreviation counts as it is written.
    """
    start, end = note.starts[places[0]], note.ends[places[-1]]
    if end - start > _LONGEST:
        return True
    support = _table().get(text[start:end].lower())
    if support is None:
        return True
    before = next((note.words[at] for at in range(places[0] - 1, -1, -1) if note.ends[at] <= start), "")
    after = next((note.words[at] for at in range(places[-1] + 1, len(note.words)) if note.starts[at] >= end), "")
    is_stated = not support.needs or before in _STATES or not vocabulary.isdisjoint(support.needs)
    if not is_stated or not vocabulary.isdisjoint(support.unless):
        return False
    if ":" in support.after and _HEADING.match(text, end):
        return False
    return not (
        before in support.before
        or after in support.after
        or ("0" in support.before and before.isdigit())
        or ("0" in support.after and after.isdigit())
    )


@lru_cache(maxsize=1)
def _table() -> dict[str, _Support]:
    """What supports and excludes each word or phrase."""
    columns = ("needs", "unless", "before", "after")
    return {
        row["words"]: _Support(*(frozenset(row[name].split()) for name in columns)) for row in rows("ambiguous.tsv")
    }
