"""A code through the releases: where it is valid, what became of it, and what two releases have changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from nosology.codes.lookup import describe, table
from nosology.codes.releases import changed_lines, releases
from nosology.codes.table import CodeTable
from nosology.core import Code


def exists(code: Code, release: str) -> bool:
    """Whether a release has the line, be it billable or divided further."""
    return _state(code, release)[0]


def is_valid(code: Code, release: str) -> bool:
    """Whether a code may be billed in a release: it exists and is not divided further."""
    return _state(code, release)[1]


def _state(code: Code, release: str) -> tuple[bool, bool]:
    """Whether the release has the line, and whether it is billable; past releases are not built for this."""
    known = releases(code.system)
    if release in known[:-1] and code.code in changed_lines():
        there, billable = changed_lines()[code.code]
        bit = known.index(release)
        return bool(there >> bit & 1), bool(billable >> bit & 1)
    newest = table(code.system, None if release in known else release)  # an unknown release is answered there
    return code.code in newest, newest.billable(code.code)


def successors(code: Code, release: str) -> list[Code]:
    """What a code of an earlier release has become: itself, the codes it was divided or merged into, or [] if none."""
    return _follow(code, release, forward=True)


def predecessors(code: Code, release: str) -> list[Code]:
    """What a code of a later release was in a release: itself, the codes it was made from, or [] if it is new."""
    return _follow(code, release, forward=False)


def in_release(code: Code, release: str) -> list[Code]:
    """The code as a release has it, whichever way one must go: itself, else its successors, else its predecessors."""
    return successors(code, release) or predecessors(code, release)


def _follow(code: Code, release: str, *, forward: bool) -> list[Code]:
    if is_valid(code, release):
        return [code]
    known = list(releases(code.system))
    path = known[: known.index(release) + 1] if forward else known[known.index(release) :][::-1]
    start = next((i for i in reversed(range(len(path))) if is_valid(code, path[i])), None)
    if start is None:  # a header: never billable, so it is what it is
        return [code] if exists(code, release) and not any(is_valid(code, name) for name in known) else []
    frontier = [code.code]
    for here, there in zip(path[start:], path[start + 1 :]):
        step = _changed(here, there) if forward else _inverse(there, here)
        frontier = list(dict.fromkeys(after for before in frontier for after in step.get(before, (before,))))
    return [found for name in frontier if is_valid(found := Code(code.system, name), release)]


@cache
def _changed(old: str, new: str) -> dict[str, tuple[str, ...]]:
    """For each ICD-10-CM code that ceased to be billable between two releases: the codes that took its place."""
    lines = [Code("icd10cm", line) for line in changed_lines()]
    gone = [code.code for code in lines if is_valid(code, old) and not is_valid(code, new)]
    born = [code.code for code in lines if not is_valid(code, old) and is_valid(code, new)]
    return {code: tuple(_heirs(code, old, born, new)) for code in gone}


def _heirs(code: str, old: str, born: list[str], new: str) -> list[str]:
    """The new codes that stand for one that is gone; [] where neither its digits nor its words tell."""
    stem, seventh = code[:-1], code[-1]
    if len(code) == 8 and "X" in stem[4:]:  # T40.4X1A was divided by filling a placeholder: T40.411A, T40.421A, ...
        filled = re.compile(re.escape(stem).replace("X", "[0-9A-Z]") + seventh)
        if heirs := [other for other in born if filled.fullmatch(other)]:
            return heirs
    if heirs := [other for other in born if other.startswith(code)]:  # M54.5 was divided: M54.50, M54.51, M54.59
        return heirs
    if heirs := [other for other in born if code.startswith(other)]:  # H81.41, H81.42 ... were merged: H81.4
        return heirs
    words = describe(Code("icd10cm", code), old).lower()
    return [other for other in born if describe(Code("icd10cm", other), new).lower() == words]


@cache
def _inverse(old: str, new: str) -> dict[str, tuple[str, ...]]:
    inverse: dict[str, list[str]] = {}
    for before, afters in _changed(old, new).items():
        for after in afters:
            inverse.setdefault(after, []).append(before)
    return {after: tuple(befores) for after, befores in inverse.items()}


@dataclass(frozen=True, slots=True)
class CodePeriod:
    """A run of releases in which a code stayed the same."""

    first: str
    last: str
    state: str  # billable, divided (a header), or absent
    description: str


def code_history(code: Code) -> list[CodePeriod]:
    """The life of a code through all releases, as runs of equal state and wording."""
    stages: list[CodePeriod] = []
    for release in releases(code.system):
        there, billable = _state(code, release)
        state = "billable" if billable else "divided" if there else "absent"
        words = describe(code, release) if there else ""
        if stages and (stages[-1].state, stages[-1].description) == (state, words):
            stages[-1] = CodePeriod(stages[-1].first, release, state, words)
        else:
            stages.append(CodePeriod(release, release, state, words))
    return stages


@dataclass(frozen=True, slots=True)
class TableDiff:
    """What changed from one table to another; all lists hold codes in the order of the book."""

    added: list[str]  # billable only in the new one
    removed: list[str]  # billable only in the old one
    divided: list[str]  # those of `removed` that the new one still has, as headers
    reworded: list[str]  # in both, with another description


def diff(old: CodeTable, new: CodeTable) -> TableDiff:
    """What changed between two tables of one system."""
    before, after = set(old.codes(billable=True)), set(new.codes(billable=True))
    removed = [code for code in old.codes(billable=True) if code not in after]
    return TableDiff(
        added=[code for code in new.codes(billable=True) if code not in before],
        removed=removed,
        divided=[code for code in removed if code in new],
        reworded=[code for code in new.codes() if code in old and old.description(code) != new.description(code)],
    )
