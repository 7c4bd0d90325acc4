"""The most specific code for a mention: attributes near it (side, site, acuity, stage ...) choose within its category.

A code is refined to another code of its category if the description of that code names what the first one names, and
more, and the note has all of these words near the mention.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from nosology.claims.draft import Draft, Entry
from nosology.claims.fractures import as_open_fracture, fracture_words
from nosology.claims.injuries import by_severity, code_burns
from nosology.claims.metastases import add_metastases
from nosology.claims.pressure_ulcers import code_pressure_ulcers
from nosology.codes import table
from nosology.core import Span
from nosology.text.stems import word_keys
from nosology.text.tokens import function_words, rows, words_of

_FILLER = re.compile(
    r"\bunspecified (?:as to|whether)\b[^,;]*|\bunspecified\b|\bother specified\b|\bother\b|\bspecified\b|\bNOS\b"
    r"|\buncomplicated\b|\bnot elsewhere classified\b|\(.*?\)|\[.*?\]|, (?:initial|subsequent) encounter.*$|, sequela$",
    re.IGNORECASE,
)
_OTHER = re.compile(r"\bother\b", re.IGNORECASE)
_LEFT_OPEN = re.compile(r"\bunspecified ((?:(?!of\b|with\b|and\b|in\b)[\w-]+ ?)+)", re.IGNORECASE)
_WITHOUT = re.compile(r"\b(?:without|not|with no)\b[^,;]*?(?=,|;|$|\bwith\b)", re.IGNORECASE)
# Words of descriptions that say nothing that a note must say.
_GENERIC_WORDS = """
    region site part side type eye disease disorder syndrome condition phase structure including due affecting
    complication complications
    associated current present status episode single subsequent organism severity trimester cause laterality
"""
_GENERIC = frozenset(key for word in _GENERIC_WORDS.split() for key in word_keys(word))
_BOUNDARY = re.compile(r"[;:.\n]")
_BOUNDARY_OF_SPECIMEN = re.compile(r"[;.\n]")
_CAUSE = re.compile(r"\W*(?:due to|secondary to|caused by|from|d/t|2/2)\W*", re.IGNORECASE)
# The words near a metastasis name the primary site; pain of a leg is not that of the lower leg.
_NOT_REFINED = ("C76", "C77", "C78", "C79", "C80", "M79.60")
_BOTH_SIDES = r"\b(?:right|left)(?: and |/| & )(?:right|left)\b"
_AFTER = 40  # characters after a mention with its number or type
_SEVERAL_RIBS = re.compile(
    r"\brib fractures|\brib fxs|\bribs\b|\brib\b[^.;\n]*\d ?(?:-|,|to|and|through) ?\d", re.IGNORECASE
)
_OPEN_TYPE_III = re.compile(r"\b(?:III[ABC]?|3[ABCabc])\b|\b(?:type|grade) (?:III|3)")
_NONDISPLACED = re.compile(r"\b(?:non-?|un)displaced\b|\bnot displaced\b", re.IGNORECASE)
_SECONDARY_TO = re.compile(r"secondary to\b", re.IGNORECASE)  # "pain secondary to osteoarthritis"
_ACUITY = frozenset(("acute", "chronic", "subacute", "acutely", "exacerbation", "decompensated"))
_MAX_WORDS = 14  # words on each side of a mention
_NOT_SIDES = frozenset({"articular", "surfaces", "components", "compartments", "types", "drugs", "lesions", "views"})
_SIDE_WORDS = {
    **dict.fromkeys(("right", "r", "rt", "od", "rul", "rll", "rml"), "right"),
    **dict.fromkeys(("left", "l", "lt", "os", "lul", "lll"), "left"),
    **dict.fromkeys(("bilateral", "bilaterally", "both", "ou", "bilat"), "bilateral"),
}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A billable code: the keys of its description, those that distinguish it, and words that make it a poor choice."""

    code: str
    all_keys: frozenset[str]
    keys: frozenset[str]
    named: frozenset[str]  # keys without those of a part that is unspecified: "unspecified internal joint prosthesis"
    absent: frozenset[str]  # what the description excludes: "without status migrainosus"
    is_other: bool
    is_other_disease: bool  # the description starts with "other"
    unspecified: int


def refine(draft: Draft) -> None:
    """Replaces codes by more specific ones of their category, by the words near their mentions."""
    add_metastases(draft)
    code_burns(draft)
    taken = sorted({span for entry in draft.entries.values() for span in entry.evidence})
    for code in list(draft.entries):
        if code not in draft.entries:
            continue
        entry = _by_number(draft, draft.entries[code])
        code = entry.code
        better = [item for item in _refined(draft, entry, taken) if item != code]
        for item in better[1:]:
            draft.add(item, entry.probability, entry.evidence, "specificity")
        if better:
            title = draft.table.description(better[0])
            draft.replace([code], better[0], f"the note has the words for {better[0]} ({title})", "specificity")
    code_pressure_ulcers(draft)


def _by_number(draft: Draft, entry: Entry) -> Entry:
    """The entry, changed to the code of several ribs, a nondisplaced or an open fracture of type III by its words."""
    around = [draft.text[span.start : span.end + _AFTER] for span in entry.evidence]
    wide = [
        draft.text[max(draft.sentence(span.start).start, span.start - _AFTER) : span.end + _AFTER]
        for span in entry.evidence
    ]
    code = entry.code
    if code.startswith("S22.3") and any(_SEVERAL_RIBS.search(text) for text in around):
        code = f"S22.4{code[5:]}"
    if len(code) == 8 and code[-1] == "B" and any(_OPEN_TYPE_III.search(text) for text in around):
        code = f"{code[:-1]}C"
    if draft.table.description(code).startswith("Displaced") and any(_NONDISPLACED.search(text) for text in wide):
        code = _nondisplaced(draft, code)
    code = by_severity(draft, entry) if code == entry.code else code
    code = as_open_fracture(draft, entry) if code == entry.code else code
    if code != entry.code and draft.replace([entry.code], code, f"the note has the words for {code}", "specificity"):
        return draft.entries[code]
    return entry


def _nondisplaced(draft: Draft, code: str) -> str:
    """The code of the same fracture without displacement; the code itself if there is none."""
    title = draft.table.description(code).replace("Displaced", "Nondisplaced", 1)
    same = (other for other in draft.table.descendants(code[:3]) if draft.table.description(other) == title)
    return next(same, code)


def _refined(draft: Draft, entry: Entry, taken: list[Span]) -> list[str]:
    """The most specific codes of an entry: one, or one for each side where the note has several mentions."""
    leaves = _leaves(draft.encounter.release, entry.code[:3])
    own = leaves.get(entry.code)
    refinements = _refinements(draft.encounter.release, entry.code) if own else ()
    if own is None or not refinements or entry.code.startswith(_NOT_REFINED):
        return []
    found: dict[str, None] = {}
    # A mention inside a longer one of another code has the attributes of that one.
    spans = [span for span in entry.evidence if not any(_is_inside(span, other) for other in taken)] or entry.evidence
    elsewhere = fracture_words(draft, entry)
    for nearby in _by_side([_nearby_words(draft, span, taken, entry.code) for span in spans], leaves):
        words = nearby + elsewhere
        present = own.keys.union(*(word_keys(word) for word in words))
        phrases = [phrase for word in words for phrase in _attributes().get(word, ())]
        best: tuple[tuple[object, ...], str] | None = None
        for leaf in refinements:
            meant = present.union(*(phrase for phrase in phrases if phrase <= leaf.all_keys))
            if not leaf.keys <= meant:
                continue
            # "Other parts of face" are those that the note names by a word of their own, such as cheek.
            is_named = leaf.is_other == (not leaf.keys <= present)
            is_same_kind = leaf.is_other_disease == own.is_other_disease
            rank = (len(leaf.keys), is_same_kind, is_named, -leaf.unspecified, -len(leaf.code), leaf.code)
            if best is None or rank > best[0]:
                best = rank, leaf.code
        if best:
            found[best[1]] = None
    return list(found)


@lru_cache(maxsize=1 << 14)
def _refinements(release: str | None, code: str) -> tuple[_Leaf, ...]:
    """The codes of the category of a code that say all that it says, and more."""
    leaves = _leaves(release, code[:3])
    return tuple(leaf for leaf in leaves.values() if _can_refine(leaves[code], leaf))


def _can_refine(own: _Leaf, leaf: _Leaf) -> bool:
    """Whether a code says all that another says, and more; "other" diseases are other than the one of the note.

    "Other extraarticular fracture" is the fracture that the note calls extraarticular.
    """
    return (
        leaf.code[7:] in (own.code[7:], "" if own.code[7:] else leaf.code[7:])
        and own.named < leaf.keys
        and leaf.absent <= own.absent
        and (own.is_other_disease or not leaf.is_other_disease or (own.unspecified > 0 and own.code[0] == "S"))
    )


def _is_inside(span: Span, other: Span) -> bool:
    return other.start <= span.start and span.end <= other.end and span != other


def _by_side(mentions: list[list[str]], leaves: dict[str, _Leaf]) -> list[list[str]]:
    """The words of all mentions together; if they name several sides, the words of the mentions of each side.

    Both sides are two codes in categories without a bilateral code.
    """
    sides = [_side(words) for words in mentions]
    named = list(dict.fromkeys(side for side in sides if side))
    if {"right", "left"} <= set(named):
        named = [side for side in named if side != "bilateral"]
    if named == ["bilateral"] and not any("bilateral" in leaf.all_keys for leaf in leaves.values()):
        return [[word for words in mentions for word in words] + [side] for side in ("right", "left")]
    if len(named) < 2:
        return [[word for words in mentions for word in words]] if mentions else []
    return [[word for words, other in zip(mentions, sides) if other in (side, "") for word in words] for side in named]


def _side(words: list[str]) -> str:
    """The side that words name; right and left together are both sides."""
    found = {side for word in words for side in _SIDE_WORDS.get(word, "").split()}
    return "bilateral" if "bilateral" in found or len(found) > 1 else next(iter(found), "")


def _nearby_words(draft: Draft, span: Span, taken: list[Span], code: str) -> list[str]:
    """The words of a mention and the words around it that belong to it and are not negated."""
    note, starts, ends = draft.note, draft.note.starts, draft.note.ends
    inside = range(bisect_right(ends, span.start), bisect_left(starts, span.end))
    if not inside:
        return []
    sentence = note.sentence[inside[0]]
    before = max((other.end for other in taken if other.end <= span.start), default=0)
    after = _end_of_attributes(draft.text, span, taken)
    # Reports of specimens name the site first: "Skin, left cheek, shave: basal cell carcinoma".
    boundary = _BOUNDARY_OF_SPECIMEN if "C" <= code < "D50" else _BOUNDARY
    places = list(inside)
    for place in range(inside[0] - 1, max(-1, inside[0] - 1 - _MAX_WORDS), -1):
        between = draft.text[ends[place] : starts[place + 1]]
        if note.sentence[place] != sentence or starts[place] < before or boundary.search(between):
            break
        places.append(place)
    for place in range(inside[-1] + 1, min(len(note.words), inside[-1] + 1 + _MAX_WORDS)):
        between = draft.text[ends[place - 1] : starts[place]]
        if note.sentence[place] != sentence or starts[place] >= after or ";" in between:
            break
        places.append(place)
    causes = [other for other in taken if other.start >= span.end]  # "respiratory failure due to COPD" is not chronic
    words = [
        note.words[place]
        for place in places
        if not (
            (note.words[place] in _ACUITY and any(other.start <= starts[place] < other.end for other in causes))
            or (place not in inside and (place in note.list_numbers or _SECONDARY_TO.match(draft.text, starts[place])))
            or draft.context(Span(starts[place], ends[place])).negated
            or (note.words[place] == "both" and not _are_sides(note.words, place))
        )
    ]
    around = draft.text[max(0, span.start - _AFTER) : span.end + _AFTER]
    if {"right", "left"} <= set(words) and re.search(_BOTH_SIDES, around, re.IGNORECASE):
        words = [word for word in words if word not in ("right", "left")] + ["bilateral"]
    # I.C.6.a: the right side is the dominant one, and the left one is not, unless stated otherwise.
    return [*words, *(["dominant"] if "right" in words else []), *(["nondominant"] if "left" in words else [])]


def _are_sides(words: list[str], place: int) -> bool:
    """Whether "both" means the right and the left side: not in "both articular surfaces"."""
    return _NOT_SIDES.isdisjoint(words[place + 1 : place + 3])


def _end_of_attributes(text: str, span: Span, taken: list[Span]) -> int:
    """Where the next mention starts that is not the cause of this one."""
    end = span.end
    for other in taken:
        if other.start >= end:
            if not _CAUSE.fullmatch(text[end : other.start]):
                return other.start
            end = other.end
    return len(text)


@cache
def _attributes() -> dict[str, tuple[frozenset[str], ...]]:
    """Word of a note -> the phrases, as sets of keys, that descriptions use for it."""
    return {
        row["word"]: tuple(_content_keys(phrase.split()) for phrase in row["means"].split(","))
        for row in rows("attributes.tsv")
    }


@lru_cache(maxsize=1 << 11)
def _leaves(release: str | None, category: str) -> dict[str, _Leaf]:
    """The billable codes of a category."""
    codes = table("icd10cm", release)
    if category not in codes:
        return {}
    billable = [code for code in (category, *codes.descendants(category)) if codes.billable(code)]
    titles = {code: codes.description(code) for code in billable}
    keys = {code: _keys(title) for code, title in titles.items()}
    counts = Counter(key for found in keys.values() for key in found)
    frequent = {key for key in _keys(codes.description(category)) if counts[key] > len(billable) / 2}
    shared = frequent | {key for key, count in counts.items() if count == len(billable) > 1}
    return {
        code: _Leaf(
            code,
            found,
            found - shared,
            found - shared - _content_keys(words_of(" ".join(_LEFT_OPEN.findall(titles[code])))),
            _content_keys(words_of(" ".join(_WITHOUT.findall(titles[code])))),
            bool(_OTHER.search(titles[code])),
            bool(_OTHER.match(titles[code])),
            titles[code].lower().count("unspecified"),
        )
        for code, found in keys.items()
    }


def _keys(title: str) -> frozenset[str]:
    plain = _WITHOUT.sub(" ", _FILLER.sub(" ", title))
    return _content_keys(words_of(plain)) - _GENERIC


def _content_keys(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word_keys(word)[0] for word in words if word not in function_words())
