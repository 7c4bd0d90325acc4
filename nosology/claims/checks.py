"""Codes assigned to an encounter, and checks against the tabular list, the patient and the date of the encounter."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from nosology.claims.code_issue import LEVELS, CodeIssue
from nosology.claims.laterality import check_laterality, side_variants
from nosology.codes import in_release, is_known, is_valid, release_on, releases, table
from nosology.codes.poa import is_poa_exempt
from nosology.codes.table import CodeTable
from nosology.codes.tabular import CodeReference, code_references
from nosology.core import Code, CodeError, Span

PROCEDURES = ("icd9proc", "icd10pcs")
MAX_ALTERNATIVES = 8
_UNSPECIFIED = re.compile(r"\bunspecified\b|\bnot otherwise specified\b", re.IGNORECASE)
_IF_PRESENT = re.compile(r"\bif\s+(?:applicable|known)\b|\bany\b|\bcomplicating\b", re.IGNORECASE)
_ADVERSE_EFFECT = re.compile(r"T(?:3[6-9]|4\d|50)\.(?:[0-9A-Z]{2}5|[0-9A-Z]5X)")


@dataclass(frozen=True, slots=True)
class AssignedCode:
    """A code assigned to an encounter.

    origin: suggested, added, changed, triage or rule. poa: present-on-admission indicator. instead_of: the code it
    replaces. rule: of the proposed claim, if it added the code.
    """

    code: Code
    origin: str
    poa: str = ""
    evidence: tuple[Span, ...] = ()
    instead_of: Code | None = None
    rule: str = ""


@dataclass(frozen=True, slots=True)
class AssignedCodes:
    """The assigned codes in order; the first diagnosis is the principal one."""

    chosen: tuple[AssignedCode, ...] = ()

    @property
    def codes(self) -> tuple[Code, ...]:
        """The codes in order."""
        return tuple(item.code for item in self.chosen)

    @property
    def principal(self) -> Code | None:
        """The principal diagnosis: the first code that is not a procedure."""
        return next((code for code in self.codes if code.system not in PROCEDURES), None)

    def find(self, code: Code) -> AssignedCode | None:
        """The assigned entry of a code, or None."""
        return next((item for item in self.chosen if item.code == code), None)


def check_codes(
    assigned: AssignedCodes,
    encounter: Mapping[str, Any],
    text: str = "",
    evidence: Mapping[Code, Sequence[Span]] | None = None,
) -> list[CodeIssue]:
    """All issues of the assigned codes, errors first.

    encounter: may have date (YYYY-MM-DD), sex (F, M), age and kind (inpatient, outpatient).
    """
    codes = assigned.codes
    issues: list[CodeIssue] = []
    for code in codes:
        issues += _check_release(code, encounter)
        if code.system == "icd10cm":
            others = [other for other in codes if other.system == "icd10cm" and other != code]
            then = table_on(code.system, encounter.get("date"))
            issues += [
                *_check_excludes1(code, others),
                *_check_code_first(code, list(codes)),
                *_check_use_additional(code, others),
                *_check_specificity(code, then),
                *check_laterality(code, others, then, text, (evidence or {}).get(code, ())),
                *_check_patient(code, encounter),
            ]
        elif not table(code.system).billable(code.code):
            issues += _check_specificity(code, table(code.system))
    if codes and assigned.principal is None:
        issues.append(CodeIssue("error", "principal", codes[0], "no diagnosis is chosen, only procedures"))
    issues += _check_present_on_admission(assigned, encounter)
    return sorted(dict.fromkeys(issues), key=lambda issue: LEVELS.index(issue.level))


def _in_table(code: Code) -> bool:
    return code.code in table(code.system)


def _matches(wanted: Sequence[CodeReference], code: Code) -> bool:
    return any(reference.covers(code.code) for reference in wanted)


def _check_excludes1(code: Code, others: Sequence[Code]) -> Iterator[CodeIssue]:
    """Pairs of codes that an excludes1 note forbids, each reported once."""
    codes = table("icd10cm")
    for other in others:
        if not _excludes(code, other) or (other < code and _excludes(other, code)):  # reported for the other code
            continue
        notes = codes.inherited_notes(code.code, "excludes1")
        line, note = next((line, note) for line, note in notes if _matches(code_references(note), other))
        message = f"{code.code} and {other.code} exclude each other (excludes1 at {line}: {note})"
        yield CodeIssue("error", "excludes1", code, message)


def _excludes(code: Code, other: Code) -> bool:
    """Whether an excludes1 note that applies to a code names the other."""
    return names_in_excludes1(table("icd10cm"), code.code, other.code)


@lru_cache(maxsize=500_000)
def names_in_excludes1(codes: CodeTable, code: str, other: str) -> bool:
    """Whether an excludes1 note that applies to an ICD-10-CM code names another code."""
    return any(reference.covers(other) for reference in _excludes1_references(codes, code).get(other[0], ()))


@lru_cache(maxsize=50_000)
def _excludes1_references(codes: CodeTable, code: str) -> dict[str, list[CodeReference]]:
    """The codes that the excludes1 notes of a code name, by first letter."""
    found: dict[str, list[CodeReference]] = {}
    for _, note in codes.inherited_notes(code, "excludes1") if code in codes else ():
        for reference in code_references(note):
            for letter in range(ord(reference.first[0]), ord(reference.last[0]) + 1):
                found.setdefault(chr(letter), []).append(reference)
    return found


def excluded_by(codes: CodeTable, code: str, other: str) -> bool:
    """Whether an excludes1 note forbids two ICD-10-CM codes of a table together."""
    return names_in_excludes1(codes, code, other) or names_in_excludes1(codes, other, code)


def _notes_by_line(codes: CodeTable, code: str, kind: str) -> dict[str, list[str]]:
    """The notes of a kind that apply to a code, by the line of the tabular list at which they are printed."""
    lines: dict[str, list[str]] = {}
    for line, note in codes.inherited_notes(code, kind) if code in codes else ():
        lines.setdefault(line, []).append(note.strip(" ,"))
    return lines


def code_first_notes(codes: CodeTable, code: str) -> dict[str, list[str]]:
    """The code-first notes of a code by their lines; a note for adverse effects applies to no poisoning."""
    return {
        line: notes
        for line, notes in _notes_by_line(codes, code, "code_first").items()
        if not notes[0].startswith("for adverse effects") or _ADVERSE_EFFECT.match(code)
    }


def asks_for_all(notes: Sequence[str]) -> bool:
    """Whether a code-first note names codes of which all come first; of others, such as causes, one is enough."""
    return notes[0].startswith("any associated")


def _references(notes: Sequence[str]) -> list[CodeReference]:
    return [reference for note in notes for reference in code_references(note)]


def _check_code_first(code: Code, order: Sequence[Code]) -> Iterator[CodeIssue]:
    """Codes that a code-first note requires before this one."""
    position = order.index(code)
    for line, notes in code_first_notes(table("icd10cm"), code.code).items():
        wanted = _references(notes)
        has_first = any(_matches(wanted, other) for other in order[:position])
        later = [other for other in order[position + 1 :] if _matches(wanted, other)]
        for other in later if asks_for_all(notes) or not has_first else ():
            if other.system == "icd10cm":
                message = f"{other.code} must come before {code.code} ({line})"
                yield CodeIssue("warning", "code_first", code, message)
        if not later and not has_first:
            level = "warning" if position == 0 and not _IF_PRESENT.search(notes[0]) else "hint"
            yield CodeIssue(level, "code_first", code, f"{code.code}: code first {_join_notes(notes)}")


def _check_use_additional(code: Code, others: Sequence[Code]) -> Iterator[CodeIssue]:
    """Additional codes that a note asks for and that are missing."""
    for notes in _notes_by_line(table("icd10cm"), code.code, "use_additional").values():
        wanted = _references(notes)
        if not any(_matches(wanted, other) for other in others):
            message = f"{code.code}: use additional {_join_notes(notes)}"
            yield CodeIssue("hint", "use_additional", code, message)


def _join_notes(notes: Sequence[str]) -> str:
    joined = "; ".join(notes)
    return joined if len(joined) <= 240 else joined[:239].rsplit(" ", 1)[0] + " …"


def table_on(system: str, day: Any) -> CodeTable:
    """The code table of a day (YYYY-MM-DD), or the newest one if there is no such day or no table of it."""
    try:
        return table(system, release_on(day, system)) if isinstance(day, str) and day else table(system)
    except CodeError:
        return table(system)


def _check_specificity(code: Code, codes: CodeTable) -> Iterator[CodeIssue]:
    """Codes that are not billable, and unspecified codes with more specific siblings."""
    if code.code in codes and not codes.billable(code.code):
        below = [line for line in codes.descendants(code.code) if codes.billable(line)]
        message = f"{code.code} cannot be billed: it is divided into {len(below)} codes"
        yield CodeIssue("error", "not_billable", code, message, _alternatives(code.system, below))
    elif code.code in codes:
        specific = specific_siblings(codes, code.code)
        if specific and not side_variants(codes, code.code):
            message = f"{code.code} is unspecific: {codes.description(code.code)}"
            yield CodeIssue("hint", "unspecific", code, message, _alternatives(code.system, specific))


def specific_siblings(codes: CodeTable, code: str) -> list[str]:
    """The billable codes below the same parent that an unspecified code leaves open; none if it is specific."""
    parent = codes.parent(code) if _UNSPECIFIED.search(codes.description(code)) else None
    siblings = [line for line in codes.children(parent) if line != code] if parent else []
    specific = [line for line in siblings if not _UNSPECIFIED.search(codes.description(line))]
    below = [leaf for line in specific for leaf in (line, *codes.descendants(line)) if codes.billable(leaf)]
    return list(dict.fromkeys(below))


def _alternatives(system: str, lines: Sequence[str]) -> tuple[Code, ...]:
    return tuple(Code(system, line) for line in lines[:MAX_ALTERNATIVES])


class DemographicRule(NamedTuple):
    """A range of codes for one sex, or for an age range in years."""

    reference: CodeReference
    sex: str
    youngest: int | None
    oldest: int | None
    description: str


@cache
def _demographic_rules() -> tuple[DemographicRule, ...]:
    raw = files("nosology.claims").joinpath("data/demographics.tsv").read_text(encoding="utf-8")
    return tuple(
        DemographicRule(
            CodeReference(row["first"], row["last"]),
            row["sex"],
            int(row["youngest"]) if row["youngest"] else None,
            int(row["oldest"]) if row["oldest"] else None,
            row["what"],
        )
        for row in csv.DictReader(raw.splitlines(), delimiter="\t")
    )


def _check_patient(code: Code, encounter: Mapping[str, Any]) -> Iterator[CodeIssue]:
    """Codes that do not fit the patient's sex or age."""
    sex, age = encounter.get("sex"), encounter.get("age")
    for rule in _demographic_rules():
        if not rule.reference.covers(code.code):
            continue
        if rule.sex and sex in ("F", "M") and sex != rule.sex:
            expected = "female" if rule.sex == "F" else "male"
            message = f"{code.code} is for {expected} patients ({rule.description})"
            yield CodeIssue("error", "sex", code, message)
        youngest, oldest = rule.youngest, rule.oldest
        if youngest is None or oldest is None or not isinstance(age, int | float):
            continue
        if not youngest <= int(age) <= oldest:  # a child of 0.5 years is of age 0
            years = f"{youngest} to {oldest}" if youngest != oldest else str(youngest)
            message = f"{code.code} is for age {years} ({rule.description}); the patient is {age:g}"
            yield CodeIssue("warning", "age", code, message)


def _check_release(code: Code, encounter: Mapping[str, Any]) -> Iterator[CodeIssue]:
    """Codes that the code set of the encounter's date does not have, or no code set at all."""
    day = encounter.get("date")
    if code.system.startswith("icd10") and not is_in_a_release(code):
        message = f"{code.code} is not a code of {code.system}: no known release has it"
        yield CodeIssue("error", "release", code, message)
        return
    if not isinstance(day, str) or not day:
        return
    try:
        release = release_on(day, code.system)
    except CodeError:
        if code.system.startswith("icd10") and day >= "2015-10-01":
            return  # a release before the first known one
        yield CodeIssue("warning", "release", code, f"no release of {code.system} is known for {day[:10]}")
        return
    if code.system.startswith("icd9") and day >= "2015-10-01":
        yield CodeIssue("error", "release", code, f"{code.code} is ICD-9; from October 2015 on ICD-10 is used")
    elif code.system == "icd10cm" and not is_valid(code, release) and is_valid(code, releases(code.system)[-1]):
        equivalents = tuple(in_release(code, release)[:MAX_ALTERNATIVES])
        message = f"{code.code} is not in the code set of {day[:10]} (release {release})"
        yield CodeIssue("error", "release", code, message, equivalents)
    elif code.system == "icd10pcs" and _is_in_force(release, day) and code.code not in table(code.system, release):
        message = f"{code.code} is not in the code set of {day[:10]} (release {release})"
        yield CodeIssue("error", "release", code, message)
    elif code.system == "icd10cm" and not _in_table(code):
        equivalents = tuple(in_release(code, release)[:MAX_ALTERNATIVES])
        if equivalents != (code,):
            yield CodeIssue("error", "release", code, f"release {release} has no {code.code}", equivalents)


@lru_cache(maxsize=50_000)
def is_in_a_release(code: Code) -> bool:
    """Whether any known release has a code."""
    return is_known(code) or any(code.code in table(code.system, release) for release in releases(code.system))


def _is_in_force(release: str, day: str) -> bool:
    """Whether a release of the procedure codes is that of the day; not every one is built in."""
    return release in (releases("icd10pcs")[-1], str(int(day[:4]) + (day[5:7] >= "10")))


def _check_present_on_admission(assigned: AssignedCodes, encounter: Mapping[str, Any]) -> Iterator[CodeIssue]:
    """Diagnoses of an inpatient without a present-on-admission indicator, as one issue, and exempt ones with one."""
    if encounter.get("kind") != "inpatient":
        return
    diagnoses = [item for item in assigned.chosen if item.code.system not in PROCEDURES]
    exempt = {item.code for item in diagnoses if needs_no_poa(item.code, encounter)}
    if missing := codes_without_poa(assigned, encounter):
        noun = "diagnosis" if len(missing) == 1 else "diagnoses"
        message = f"present on admission is not set for {len(missing)} {noun}"
        yield CodeIssue("hint", "poa", missing[0], message)
    for item in diagnoses:
        if item.code in exempt and item.poa not in ("", "1"):
            yield CodeIssue("warning", "poa", item.code, f"{item.code.code} is exempt from present on admission")
        elif item.code not in exempt and item.poa == "1":
            yield CodeIssue("error", "poa", item.code, f"{item.code.code} is not exempt from present on admission")


def codes_without_poa(assigned: AssignedCodes, encounter: Mapping[str, Any]) -> list[Code]:
    """The diagnoses that have no present-on-admission indicator and are not exempt."""
    diagnoses = [item.code for item in assigned.chosen if item.code.system not in PROCEDURES and not item.poa]
    return [code for code in diagnoses if not needs_no_poa(code, encounter)]


def needs_no_poa(code: Code, encounter: Mapping[str, Any]) -> bool:
    """Whether a code is exempt from present on admission on the date of the encounter."""
    try:
        return code.system == "icd10cm" and is_poa_exempt(code.code, encounter.get("date") or None)
    except CodeError:
        return False
