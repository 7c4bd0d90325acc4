"""What the rest of a note says of a fracture: imaging gives its type, the operation whether it was open."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nosology.claims.draft import Draft, Entry
from nosology.core import Span
from nosology.text.tokens import words_of

_FRACTURE = re.compile(r"\b(?:fractures?|fxs?|broken)\b", re.IGNORECASE)
_OPEN = re.compile(
    r"\bopen\b(?! reduction)[^.;\n]{0,40}\b(?:fractures?|fxs?)\b|\b(?:fractures?|fxs?)\b[^.;\n]{0,40}\b(?:was|is"
    r"|were) open\b"
    r"|\bGustilo\b|\bopen\s(?:type|grade) (?:I|1|2|3)",
    re.IGNORECASE,
)
# Words of a note for a bone, by the word of the descriptions.
_BONES = {
    "femur": r"femur|femoral|hip|intertroch\w*|subtroch\w*",
    "tibia": r"tibia\w*|tib-?fib|pilon|shin",
    "fibula": r"fibul\w*|tib-?fib|malleol\w*",
    "humerus": r"humer\w*",
    "radius": r"radi(?:us|al)|wrist",
    "ulna": r"uln\w*|olecranon",
    "clavicle": r"clavic\w*",
    "phalanx": r"phalan\w*|finger|thumb|digit|toe",
    "metacarpal": r"metacarp\w*|MC",
    "metatarsal": r"metatars\w*|MT",
    "patella": r"patell\w*",
    "malleolus": r"malleol\w*|ankle",
    "mandible": r"mandib\w*",
    "calcaneus": r"calcane\w*",
    "scapula": r"scapul\w*",
}
_BONE = {bone: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for bone, words in _BONES.items()}
_RIGHT, _LEFT = re.compile(r"\b(?:right|rt|R)\b"), re.compile(r"\b(?:left|lt|L)\b")


def fracture_words(draft: Draft, entry: Entry) -> list[str]:
    """The words of all sentences about the fracture of an entry; [] if it is no fracture of a named bone."""
    return [
        word for sentence in _sentences(draft, entry) for word in words_of(draft.text[sentence.start : sentence.end])
    ]


def as_open_fracture(draft: Draft, entry: Entry) -> str:
    """The code of an entry with the seventh character of an open fracture, if a sentence about it says so."""
    is_closed_code = len(entry.code) == 8 and entry.code[-1] == "A" and draft.table.billable(f"{entry.code[:-1]}B")
    if is_closed_code and any(_OPEN.search(draft.text, *sentence) for sentence in _sentences(draft, entry)):
        return f"{entry.code[:-1]}B"
    return entry.code


def _sentences(draft: Draft, entry: Entry) -> Iterator[Span]:
    """The sentences that name a fracture of the bone of an entry and of no other bone or side."""
    title = draft.table.description(entry.code).lower()
    own = [bone for bone in _BONES if bone in title]
    if entry.code[0] != "S" or "fracture" not in title or not own:
        return
    other_side = _LEFT if "right" in title else _RIGHT if "left" in title else None
    seen: set[Span] = set()
    for match in _FRACTURE.finditer(draft.text):
        sentence = draft.sentence(match.start())
        text = draft.text[sentence.start : sentence.end]
        if sentence in seen or draft.context(Span(*match.span())).negated:
            continue
        seen.add(sentence)
        named = [bone for bone, pattern in _BONE.items() if pattern.search(text)]
        if set(named) & set(own) and set(named) <= set(own) and not (other_side and other_side.search(text)):
            yield sentence
