"""A note as a page shows it: stretches of text that never overlap, each with what is known of it.

Every character of the note stays one character of the page, so that a place in the one is a place in the other. Those
that would change how the rest is read (controls, marks of writing direction) are shown as a sign in their place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from nosology.core import Code, Span
from nosology.text import Section, contexts, sections
from nosology.workbench.review import Review

MARKED = ("negated", "historical", "family", "uncertain", "hypothetical")
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

    @property
    def html(self) -> Markup:
        """The pieces as elements, all they hold escaped; by hand, for a template takes ten times as long for them."""
        return Markup("".join(map(_element, self.pieces)))


def _element(piece: Piece) -> str:
    keys = f' data-k="{escape(piece.keys)}"' if piece.keys else ""
    classes = f"{piece.marks} loud".strip() if piece.loud else piece.marks
    said = f' class="{classes}"' if classes else ""
    title = f' title="{piece.title}"' if piece.title else ""
    return f'<span data-s="{piece.start}"{keys}{said}{title}>{escape(piece.shown)}</span>'


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
    states, now = [], (frozenset(), frozenset())
    for place in places:  # the first is 0
        now = (marks.get(place, now[0]), keys.get(place, now[1]))
        states.append(now)
    found = []
    for number, section in enumerate(found_sections):
        start, end = section.span
        first, last = bisect_right(places, start) - 1, bisect_left(places, end)
        cuts = pairwise([start, *places[first + 1 : last], end])
        pieces = [
            _piece(here, view[here:there], *state, strong) for (here, there), state in zip(cuts, states[first:last])
        ]
        found.append(Part(number, section.title, section.kind, tuple(pieces)))
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


def _piece(start: int, words: str, marks: frozenset[str], keys: frozenset[str], strong: frozenset[str]) -> Piece:
    if not marks and not keys:
        return Piece(start, words, "", "", "")
    names = [name for name in MARKED if name in marks]
    return Piece(start, words, " ".join(sorted(keys)), " ".join(names), ", ".join(names), bool(keys & strong))
