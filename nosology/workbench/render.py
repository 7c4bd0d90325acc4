"""A note as a page shows it: stretches of text that never overlap, each with what is known of it.

Every character of the note stays one character of the page, so that a place in the one is a place in the other. Those
that would change how the rest is read (controls, marks of writing direction) are shown as a sign in their place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from nosology.core import Code, Span
from nosology.text import Section, contexts, sections
from nosology.workbench.review import Review

MARKED = ("negated", "historical", "family", "uncertain", "hypothetical")
LONGEST = 2_000_000  # characters of a note that a page shows
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}
_DIRECTIONS = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "⇄")
_SIGNS = {**_CONTROLS, 0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), "·"), **_DIRECTIONS, 0xFEFF: "·"}


@dataclass(frozen=True, slots=True)
class Piece:
    """text[start:end] as shown; `keys` are the codes it is evidence for, `marks` what the note says of it.

    loud: whether one of the codes is chosen, or suggested with some certainty.
    """

    start: int
    shown: str
    keys: str
    marks: str
    title: str
    loud: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the note: its number, heading, kind, and its pieces; the heading is among the pieces."""

    number: int
    title: str
    kind: str
    pieces: tuple[Piece, ...]


def shown(text: str) -> str:
    """The text with a visible sign for each character that would not show; as many characters as before.

    A carriage return before a line feed is a blank, any other a line feed: a page would make one of both.
    """
    return text.replace("\r\n", " \n").replace("\r", "\n").translate(_SIGNS)


def evidence_spans(suggestions: Sequence[Mapping[str, Any]], review: Review) -> dict[Code, list[Span]]:
    """The stretches each code rests on: those the coder gave, and those people marked."""
    found: dict[Code, list[Span]] = {}
    for item in suggestions:
        code = Code(item["system"], item["code"])
        found[code] = [Span(span["start"], span["end"]) for span in item["evidence"]]
    for chosen in review.chosen:
        old = found.get(chosen.instead_of, []) if chosen.instead_of else []
        spans = found.setdefault(chosen.code, list(old))
        spans.extend(span for span in chosen.evidence if span not in spans)
    return found


def parts(text: str, evidence: Mapping[Code, Sequence[Span]], loud: Collection[Code] = ()) -> list[Part]:
    """The sections of a note in order; their pieces hold the whole text. loud: codes whose evidence stands out."""
    view, marks, found_sections = _read(text)
    keys = _cuts([(span, str(code)) for code, spans in evidence.items() for span in spans], len(text))
    places = sorted({*marks, *keys})
    strong = frozenset(map(str, loud))
    found = []
    for number, section in enumerate(found_sections):
        start, end = section.span
        inside = places[bisect_right(places, start) : bisect_left(places, end)]
        cuts = [start, *inside, end]
        found.append(Part(number, section.title, section.kind, tuple(_pieces(view, cuts, marks, keys, strong))))
    return found


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[str, dict[int, frozenset[str]], list[Section]]:
    """What does not change between two looks at a note: the text as shown, its contexts, its sections."""
    scopes = [(scope, category) for category, scope, _ in contexts(text) if category in MARKED]
    return shown(text), _cuts(scopes, len(text)), sections(text)


def _cuts(spans: Sequence[tuple[Span, str]], length: int) -> dict[int, frozenset[str]]:
    """For each place where something begins or ends, what is in force from there on."""
    changes: dict[int, list[tuple[str, int]]] = {0: []}
    for span, name in spans:
        start, end = max(0, span.start), min(length, span.end)
        if start < end:
            changes.setdefault(start, []).append((name, 1))
            changes.setdefault(end, []).append((name, -1))
    counts: dict[str, int] = {}
    state = {}
    for place in sorted(changes):
        for name, step in changes[place]:
            counts[name] = counts.get(name, 0) + step
        state[place] = frozenset(name for name, count in counts.items() if count)
    return state


def _pieces(
    view: str,
    cuts: Sequence[int],
    marks: Mapping[int, frozenset[str]],
    keys: Mapping[int, frozenset[str]],
    strong: frozenset[str],
) -> list[Piece]:
    pieces = []
    mark_now, key_now = _at(marks, cuts[0]), _at(keys, cuts[0])
    for start, end in pairwise(cuts):
        mark_now, key_now = marks.get(start, mark_now), keys.get(start, key_now)
        names = [name for name in MARKED if name in mark_now]
        codes = " ".join(sorted(key_now))
        pieces.append(Piece(start, view[start:end], codes, " ".join(names), ", ".join(names), bool(key_now & strong)))
    return pieces


def _at(state: Mapping[int, frozenset[str]], place: int) -> frozenset[str]:
    """What is in force at a place."""
    before = max((cut for cut in state if cut <= place), default=None)
    return frozenset() if before is None else state[before]
