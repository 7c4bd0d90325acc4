"""What the tabular list alone decides about a set: unspecified next to specific, both sides, Excludes1."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import combinations

from nosology.claims.checks import excluded_by
from nosology.claims.draft import Draft, Entry
from nosology.codes import table

_UNSPECIFIED = re.compile(r"\bunspecified\b|\bNOS\b|\bnot specified\b", re.IGNORECASE)
_SIDE = re.compile(r"\b(right|left)\b", re.IGNORECASE)
_SIDE_WORDS = frozenset({"right", "left", "bilateral", "unilateral", "of", "the", "both", "side", "eye", "ear"})


def resolve_set(draft: Draft) -> None:
    """Removes unspecified codes next to specific ones, joins sides, and resolves Excludes1 notes."""
    drop_unspecified(draft)
    join_sides(draft)
    join_encounters(draft)
    resolve_excludes1(draft)


def unspecified_words(draft: Draft, code: str) -> int:
    """How often the description of a code says unspecified."""
    return len(_UNSPECIFIED.findall(draft.table.description(code)))


def drop_unspecified(draft: Draft) -> None:
    """Drops codes that leave open what another code of their category specifies, unless it has the other side."""
    for code in list(draft.entries):
        if not unspecified_words(draft, code):
            continue
        others = [other for other in draft.entries if other[:3] == code[:3] and other != code]
        better = [other for other in others if _is_unspecified_form(draft, code, other)]
        if better:
            draft.replace([code], better[0], f"{better[0]} is the same condition, more specific", "unspecified")


def _is_unspecified_form(draft: Draft, code: str, other: str) -> bool:
    """Whether a code branches off from the path to another code at a line that says unspecified."""
    if _sides(draft, code) and _sides(draft, other) and _sides(draft, code) != _sides(draft, other):
        return False
    if unspecified_words(draft, other) >= unspecified_words(draft, code):
        return False
    path = [code, *draft.table.ancestors(code)]
    above_other = {other, *draft.table.ancestors(other)}
    place = next(place for place, line in enumerate(path) if line in above_other)
    return place > 0 and unspecified_words(draft, path[place - 1]) > unspecified_words(draft, path[place])


def _sides(draft: Draft, code: str) -> set[str]:
    return {side.lower() for side in _SIDE.findall(draft.table.description(code))}


def join_sides(draft: Draft) -> None:
    """Replaces a left and a right code, or one of them beside the bilateral one, by the bilateral one."""
    by_text: dict[tuple[str, str], dict[str, str]] = {}
    for code in draft.entries:
        title = draft.table.description(code)
        if side := _SIDE.search(title):
            by_text.setdefault((code[:3], _SIDE.sub("*", title)), {})[side[1].lower()] = code
    for sides in by_text.values():
        bilateral = _bilateral(draft.encounter.release, next(iter(sides.values())))
        if bilateral and (len(sides) == 2 or bilateral in draft.entries):
            draft.replace(sides.values(), bilateral, "both sides: one bilateral code", "bilateral")


def join_encounters(draft: Draft) -> None:
    """Replaces the initial encounter of an injury by a later one of the same injury."""
    for code in [code for code in draft.entries if len(code) == 8 and code.endswith("A")]:
        later = next((it for it in draft.entries if it[:-1] == code[:-1] and it[-1] in "DGKPS"), None)
        if later is not None:
            draft.replace([code], later, f"{later} is the same injury, at a later encounter", "later-encounter")


@lru_cache(maxsize=10_000)
def _bilateral(release: str | None, one: str) -> str | None:
    """The bilateral code of a left or right one: the code of its category with the same words but for the side."""
    codes = table("icd10cm", release)
    words = _words_but_side(codes.description(one))
    bilateral = [code for code in codes.descendants(one[:3]) if "bilateral" in codes.description(code).lower()]
    same = [code for code in bilateral if codes.billable(code) and _words_but_side(codes.description(code)) == words]
    return same[0] if same else None


def _words_but_side(title: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", title.lower())
    return frozenset(word.removesuffix("s") for word in words if word not in _SIDE_WORDS)


def resolve_excludes1(draft: Draft) -> None:
    """Drops the weaker code of each pair that an Excludes1 note forbids."""
    changed = True
    while changed:
        changed = False
        for first, second in combinations(list(draft.entries), 2):
            if first in draft.entries and second in draft.entries and excluded_by(draft.table, first, second):
                loser, winner = sorted((first, second), key=lambda code: _strength(draft, draft.entries[code]))
                draft.drop(loser, f"Excludes1: not together with {winner}", "excludes1")
                changed = True


def _strength(draft: Draft, entry: Entry) -> tuple[object, ...]:
    """Sort key: a combination before its parts, diagnoses before symptoms and status, specific before unspecified."""
    words = max((span.end - span.start for span in entry.evidence), default=0)
    return (
        entry.rule not in ("", "specificity"),
        entry.code[0] not in "RZ",
        entry.code[0] != "Z",
        -unspecified_words(draft, entry.code),
        words,
        entry.probability,
        entry.code,
    )
