"""The codes that a note of the tabular list names: "heart failure due to hypertension (I11.0)"."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_CODE = r"[A-Z]\d[0-9A-Z](?:\.[0-9A-Z]{1,4})?"
_REFERENCE = re.compile(rf"({_CODE})(?:-(?=[A-Z]\d)({_CODE}))?(?:\.?-)?")
_IN_BRACKETS = re.compile(r"\(([^()]*)\)([^()]*)")
_PLACES = {"fourth": 3, "fifth": 4, "sixth": 5, "seventh": 6}
_PLACE = "(?:fourth|fifth|sixth|seventh)"
_CHARACTER = re.compile(rf"with ({_PLACE}(?: or {_PLACE})*) characters? (\w)(?:-(\w))?")
_AFTER_DOT = re.compile(r"with \.(\w+)")
_FINAL = re.compile(r"with final characters? -?(\w+)")


class Reference(NamedTuple):
    """Codes from first to last with all below them; `condition` narrows them: (kind, values), None if not at all."""

    first: str
    last: str
    condition: tuple[str, tuple[str, ...]] | None = None

    def holds(self, code: str) -> bool:
        """Whether a code (with or without its dot) is one that the reference means."""
        if not self.first[:1] <= code[:1] <= self.last[:1]:  # most codes are of another chapter
            return False
        bare = code.replace(".", "")
        first, last = self.first.replace(".", ""), self.last.replace(".", "")
        if len(bare) < len(first) or not first <= bare[: len(first)] or not bare[: len(last)] <= last:
            return False
        if self.condition is None:
            return True
        kind, values = self.condition
        if kind == "after_dot":
            return bare[3:].startswith(values)
        if kind == "final":
            return bare.endswith(values)
        places, characters = values[0], values[1]
        return any(bare[int(place) : int(place) + 1] in tuple(characters) for place in places)


@lru_cache(maxsize=20_000)
def references(note: str) -> tuple[Reference, ...]:
    """Every code or range that stands in brackets in a note, with the condition that follows it."""
    found = []
    for brackets in _IN_BRACKETS.finditer(note):
        inside, after = brackets.groups()
        condition = _condition(inside) or (_condition(after) if after.lstrip().startswith("with") else None)
        for match in _REFERENCE.finditer(inside):
            found.append(Reference(match[1], match[2] or match[1], condition))
    return tuple(found)


def _condition(words: str) -> tuple[str, tuple[str, ...]] | None:
    if match := _CHARACTER.search(words):
        places = "".join(str(_PLACES[place]) for place in match[1].split(" or "))
        first, last = match[2], match[3] or match[2]
        return "characters", (places, "".join(map(chr, range(ord(first), ord(last) + 1))))
    if match := _AFTER_DOT.search(words):
        return "after_dot", (match[1],)
    if match := _FINAL.search(words):
        return "final", (match[1],)
    return None
