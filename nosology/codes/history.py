"""The history of codes through the releases: validity, successors and predecessors, differences of two releases."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from functools import cache

from nosology.codes.installed import installed_releases
from nosology.codes.lookup import built_in_table, describe, table
from nosology.codes.releases import RELEASES, changed_lines, releases
from nosology.codes.sources import DATA
from nosology.codes.table import CodeTable
from nosology.core import Code


def exists(code: Code, release: str) -> bool:
    """Whether a release has the code, billable or divided further."""
    return _state(code, release)[0]


def is_valid(code: Code, release: str) -> bool:
    """Whether a code is billable in a release: it exists and is not divided further."""
    return _state(code, release)[1]


def _state(code: Code, release: str) -> tuple[bool, bool]:
    """Whether a code exists in a release and whether it is billable; this needs no table of a past release."""
    known = RELEASES.get(code.system, ())
    if release not in known or release in installed_releases(code.system) or code.system == "icd10pcs":
        codes = table(code.system, release)  # raises CodeError for an unknown release
    elif release in known[:-1] and code.code in changed_lines():
        existing, billable = changed_lines()[code.code]
        bit = known.index(release)
        return bool(existing >> bit & 1), bool(billable >> bit & 1)
    else:
        codes = built_in_table(code.system)
    return code.code in codes, codes.billable(code.code)


def successors(code: Code, release: str) -> list[Code]:
    """The code in a later release: itself, the codes it was divided or merged into, or []."""
    return _trace(code, release, forward=True)


def predecessors(code: Code, release: str) -> list[Code]:
    """The code in an earlier release: itself, the codes that it replaced, or [] if it is new."""
    return _trace(code, release, forward=False)


def in_release(code: Code, release: str) -> list[Code]:
    """The code in a release: itself, its successors, what was assigned before it existed, or its predecessors."""
    assigned = [it for it in previously_assigned(code) if is_valid(it, release)]
    return successors(code, release) or assigned or predecessors(code, release)


def previously_assigned(code: Code) -> list[Code]:
    """What the official conversion table names as assigned before a code existed, newest first: F32.9 for F32.A."""
    if code.system != "icd10cm":
        return []
    found: dict[str, None] = {}
    current = [code.code]
    while current := [it for last in current for it in _previous_codes().get(last, "").split() if it not in found]:
        found.update(dict.fromkeys(current))
    return [Code("icd10cm", it) for it in found]


@cache
def _previous_codes() -> dict[str, str]:
    with gzip.open(DATA / "icd10cm_previous_codes.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)["codes"]


def _trace(code: Code, release: str, *, forward: bool) -> list[Code]:
    if is_valid(code, release):
        return [code]
    known = list(releases(code.system))
    path = known[: known.index(release) + 1] if forward else known[known.index(release) :][::-1]
    start = next((i for i in reversed(range(len(path))) if is_valid(code, path[i])), None)
    if start is None:  # a header, which is never billable, stays itself
        return [code] if exists(code, release) and not any(is_valid(code, name) for name in known) else []
    current = [code.code]
    for here, there in zip(path[start:], path[start + 1 :]):
        step = _replacements(code.system, here, there) if forward else _inverse_replacements(code.system, there, here)
        current = list(dict.fromkeys(after for before in current for after in step.get(before, (before,))))
    candidates = (Code(code.system, name) for name in current)
    return [candidate for candidate in candidates if is_valid(candidate, release)]


@cache
def _replacements(system: str, old: str, new: str) -> dict[str, list[str]]:
    """For each code that ceased to be billable between two releases: the new codes in its place."""
    if system == "icd10pcs" or {old, new} & set(installed_releases(system)):
        before, after = (table(system, release).codes(billable=True) for release in (old, new))
        lines = [Code(system, line) for line in {*before} ^ {*after}]
    else:
        lines = [Code("icd10cm", line) for line in changed_lines()]
    removed = sorted(code.code for code in lines if is_valid(code, old) and not is_valid(code, new))
    added = sorted(code.code for code in lines if not is_valid(code, old) and is_valid(code, new))
    return {code: _replacement(system, code, old, added, new) for code in removed}


def _replacement(system: str, code: str, old: str, added: list[str], new: str) -> list[str]:
    """The new codes in place of a removed one; [] if neither its characters nor its description show any."""
    stem, seventh = code[:-1], code[-1]
    if len(code) == 8 and "X" in stem[4:]:  # T40.4X1A was divided by filling a placeholder: T40.411A, T40.421A, ...
        filled = re.compile(re.escape(stem).replace("X", "[0-9A-Z]") + seventh)
        if matches := [candidate for candidate in added if filled.fullmatch(candidate)]:
            return matches
    if longer := [candidate for candidate in added if candidate.startswith(code)]:  # M54.5 to M54.50, M54.51, M54.59
        return longer
    if shorter := [candidate for candidate in added if code.startswith(candidate)]:  # H81.41, H81.42, ... to H81.4
        return shorter
    text = describe(Code(system, code), old).lower()
    return [candidate for candidate in added if describe(Code(system, candidate), new).lower() == text]


@cache
def _inverse_replacements(system: str, old: str, new: str) -> dict[str, list[str]]:
    inverse: dict[str, list[str]] = {}
    for before, afters in _replacements(system, old, new).items():
        for after in afters:
            inverse.setdefault(after, []).append(before)
    return inverse


@dataclass(frozen=True, slots=True)
class CodePeriod:
    """Consecutive releases in which a code did not change."""

    first: str
    last: str
    state: str  # billable, divided (a header), or absent
    description: str


def code_history(code: Code) -> list[CodePeriod]:
    """The periods of equal state and description of a code, through all releases."""
    periods: list[CodePeriod] = []
    for release in releases(code.system):
        existing, billable = _state(code, release)
        state = "billable" if billable else "divided" if existing else "absent"
        description = describe(code, release) if existing else ""
        first = release
        if periods and (periods[-1].state, periods[-1].description) == (state, description):
            first = periods.pop().first
        periods.append(CodePeriod(first, release, state, description))
    return periods


@dataclass(frozen=True, slots=True)
class TableDiff:
    """The differences of two tables; all lists are in the order of the tables."""

    added: list[str]  # billable only in the new one
    removed: list[str]  # billable only in the old one
    divided: list[str]  # those of `removed` that are headers in the new one
    reworded: list[str]  # in both, with another description


def diff(old: CodeTable, new: CodeTable) -> TableDiff:
    """The differences of two tables of one system."""
    before, after = set(old.codes(billable=True)), set(new.codes(billable=True))
    removed = [code for code in old.codes(billable=True) if code not in after]
    return TableDiff(
        added=[code for code in new.codes(billable=True) if code not in before],
        removed=removed,
        divided=[code for code in removed if code in new],
        reworded=[code for code in new.codes() if code in old and old.description(code) != new.description(code)],
    )
