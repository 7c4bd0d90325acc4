"""What is wrong or doubtful about a set of codes: rules of the tabular list, the patient, the day. Pure functions."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from nosology.claims.assigned_codes import PROCEDURES, AssignedCodes
from nosology.codes import describe, in_release, is_valid, release_on, releases, table
from nosology.codes.tabular import CodeReference, code_references
from nosology.core import Code, CodeError, Span

LEVELS = ("error", "warning", "hint")
_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)
_VAGUE = re.compile(r"\bunspecified\b|\bnot otherwise specified\b", re.IGNORECASE)
_MOST = 8  # codes offered in a finding
_AROUND = 40  # characters before evidence in which a side is looked for


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to look at: level, kind, the code, a sentence, and codes that would mend it."""

    level: str
    kind: str
    code: Code
    sentence: str
    offers: tuple[Code, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding as the API gives it."""
        return {
            "level": self.level,
            "kind": self.kind,
            "code": str(self.code),
            "sentence": self.sentence,
            "offers": [str(code) for code in self.offers],
        }


def check(
    review: AssignedCodes,
    encounter: Mapping[str, Any],
    text: str = "",
    evidence: Mapping[Code, Sequence[Span]] | None = None,
) -> list[Finding]:
    """All findings about the chosen codes, errors first; encounter may have date (YYYY-MM-DD), sex (F, M) and age."""
    codes = review.codes
    found: list[Finding] = []
    for code in codes:
        found += _release(code, encounter)
        if code.system == "icd10cm":
            others = [other for other in codes if other.system == "icd10cm" and other != code]
            found += [
                *_excludes(code, others),
                *_sequence(code, list(codes)),
                *_additional(code, others),
                *_specific(code),
                *_side(code, others, text, (evidence or {}).get(code, ())),
                *_patient(code, encounter),
            ]
        elif not table(code.system).billable(code.code):
            found += _specific(code)
    if codes and review.principal is None:
        found.append(Finding("warning", "principal", codes[0], "no diagnosis is chosen, only procedures"))
    found += _present_on_admission(review, encounter)
    return sorted(dict.fromkeys(found), key=lambda item: LEVELS.index(item.level))


def _line(code: Code) -> bool:
    return code.code in table(code.system)


def _excludes(code: Code, others: Sequence[Code]) -> Iterator[Finding]:
    """Codes that may not stand beside this one."""
    if not _line(code):
        return
    for where, note in table("icd10cm").inherited_notes(code.code, "excludes1"):
        for other in others:
            if any(reference.covers(other.code) for reference in code_references(note)):
                if other < code and _is_excluded(other, code):
                    continue  # the other code has said so
                sentence = f"{code.code} and {other.code} exclude each other (excludes1 at {where}: {note})"
                yield Finding("error", "excludes1", code, sentence)


def _is_excluded(code: Code, other: Code) -> bool:
    """Whether an excludes1 note that binds a code names another."""
    notes = table("icd10cm").inherited_notes(code.code, "excludes1") if _line(code) else []
    return any(reference.covers(other.code) for _, note in notes for reference in code_references(note))


def _written(code: Code, kind: str) -> dict[str, list[str]]:
    """The notes of a kind that bind a code, by the line where they are written."""
    lines: dict[str, list[str]] = {}
    if _line(code):
        for where, note in table("icd10cm").inherited_notes(code.code, kind):
            lines.setdefault(where, []).append(note.strip(" ,"))
    return lines


def _meant(notes: Sequence[str]) -> list[CodeReference]:
    return [reference for note in notes for reference in code_references(note)]


def _sequence(code: Code, order: Sequence[Code]) -> Iterator[Finding]:
    """Codes that must come before this one."""
    place = order.index(code)
    for where, notes in _written(code, "code_first").items():
        wanted = _meant(notes)
        for later in order[place + 1 :]:
            if later.system == "icd10cm" and any(reference.covers(later.code) for reference in wanted):
                yield Finding("warning", "code_first", code, f"{later.code} must come before {code.code} ({where})")
        earlier = [other for other in order[:place] if any(reference.covers(other.code) for reference in wanted)]
        if not earlier and not any(r.covers(o.code) for o in order[place + 1 :] for r in wanted):
            level = "warning" if place == 0 and not _optional(notes) else "hint"
            yield Finding(level, "code_first", code, f"{code.code}: code first {_listed(notes)}")


def _additional(code: Code, others: Sequence[Code]) -> Iterator[Finding]:
    """Codes that should stand beside this one."""
    for notes in _written(code, "use_additional").values():
        wanted = _meant(notes)
        if not any(reference.covers(other.code) for other in others for reference in wanted):
            yield Finding("hint", "use_additional", code, f"{code.code}: use additional {_listed(notes)}")


def _optional(notes: Sequence[str]) -> bool:
    return any("if applicable" in note or "if known" in note or "any associated" in note for note in notes)


def _listed(notes: Sequence[str]) -> str:
    words = "; ".join(notes)
    return words if len(words) <= 240 else words[:239].rsplit(" ", 1)[0] + " …"


def _specific(code: Code) -> Iterator[Finding]:
    """Whether the code can be billed, and whether a sibling says more."""
    codes = table(code.system)
    if code.code in codes and not codes.billable(code.code):
        below = [line for line in codes.descendants(code.code) if codes.billable(line)]
        sentence = f"{code.code} cannot be billed: it is divided into {len(below)} codes"
        yield Finding("error", "not_billable", code, sentence, _offered(code.system, below))
    elif code.code in codes and _VAGUE.search(codes.description(code.code)):
        parent = codes.parent(code.code)
        beside = [line for line in codes.children(parent) if line != code.code] if parent else []
        beside = [line for line in beside if not _VAGUE.search(codes.description(line))]
        if beside and not _lateral(code.code):
            sentence = f"{code.code} is unspecific: {codes.description(code.code)}"
            yield Finding("hint", "unspecific", code, sentence, _offered(code.system, beside))


def _offered(system: str, lines: Sequence[str]) -> tuple[Code, ...]:
    return tuple(Code(system, line) for line in lines[:_MOST])


@cache
def _lateral(code: str) -> dict[str, str]:
    """The codes beside this one (or beside the line above it) by side, where these differ by side; else {}."""
    codes = table("icd10cm")
    for line in (code, *codes.ancestors(code)[:2]):
        parent = codes.parent(line)
        if parent is None or codes.kind(parent) in ("chapter", "block"):
            break
        sides = {}
        for sibling in codes.children(parent):
            words = set(re.findall(r"left|right|bilateral", codes.description(sibling).lower()))
            if len(words) == 1:
                sides.setdefault(words.pop(), sibling)
        if {"left", "right"} <= sides.keys():
            return sides
    return {}


def _side(code: Code, others: Sequence[Code], text: str, evidence: Sequence[Span]) -> Iterator[Finding]:
    """Whether the side is said where it can be, and is the one that the words around the evidence say."""
    if not _line(code) or not (sides := _lateral(code.code)):
        return
    said = set(re.findall(r"left|right|bilateral", describe(code).lower()))
    if not said:
        offers = _offered("icd10cm", list(sides.values()))
        yield Finding("warning", "laterality", code, f"{code.code} leaves the side open", offers)
        return
    both = {other for other in others if other.code in sides.values()}
    if "bilateral" in sides and {"left", "right"} <= said | {s for o in both for s in _said(o)}:
        offers = _offered("icd10cm", [sides["bilateral"]])
        yield Finding("hint", "laterality", code, "both sides are coded: there is a bilateral code", offers)
    heard = {match[0].lower() for span in evidence for match in _SIDES.finditer(_near(text, span))}
    if len(heard) == 1 and len(said) == 1 and not heard & said and "bilateral" not in said:
        side = heard.pop()
        offers = _offered("icd10cm", [sides[side]])
        yield Finding("warning", "laterality", code, f"{code.code} says {said.pop()}, the note says {side}", offers)


def _said(code: Code) -> set[str]:
    return set(re.findall(r"left|right", describe(code).lower()))


def _near(text: str, span: Span) -> str:
    """The words of a span and a few before it, on the same line."""
    before = text[max(0, span.start - _AROUND) : span.start]
    return before.rpartition("\n")[2] + text[span.start : span.end]


@cache
def _rules() -> tuple[tuple[CodeReference, str, int | None, int | None, str], ...]:
    raw = files(__package__).joinpath("data/demographics.tsv").read_text(encoding="utf-8")
    return tuple(
        (
            CodeReference(row["first"], row["last"]),
            row["sex"],
            int(row["youngest"]) if row["youngest"] else None,
            int(row["oldest"]) if row["oldest"] else None,
            row["what"],
        )
        for row in csv.DictReader(raw.splitlines(), delimiter="\t")
    )


def _patient(code: Code, encounter: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the code can be this patient's, by sex and age."""
    sex, age = encounter.get("sex"), encounter.get("age")
    for reference, of_sex, youngest, oldest, what in _rules():
        if not reference.covers(code.code):
            continue
        if of_sex and sex in ("F", "M") and sex != of_sex:
            wanted = "female" if of_sex == "F" else "male"
            yield Finding("error", "sex", code, f"{code.code} is for {wanted} patients ({what})")
        limited = isinstance(age, int | float) and youngest is not None and oldest is not None
        if limited and not youngest <= age <= oldest:
            span = f"{youngest} to {oldest}" if youngest != oldest else str(youngest)
            yield Finding("warning", "age", code, f"{code.code} is for age {span} ({what}); the patient is {age:g}")


def _release(code: Code, encounter: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the code set of the encounter's day has the code."""
    day = encounter.get("date")
    if not isinstance(day, str) or not day:
        return
    try:
        release = release_on(day, code.system)
    except CodeError:
        if code.system.startswith("icd10") and day >= "2015-10-01":
            return  # a release before those we know
        yield Finding("warning", "release", code, f"no release of {code.system} is known for {day[:10]}")
        return
    if code.system.startswith("icd9") and day >= "2015-10-01":
        yield Finding("error", "release", code, f"{code.code} is ICD-9; from October 2015 on ICD-10 is used")
    elif code.system == "icd10cm" and not is_valid(code, release) and is_valid(code, releases(code.system)[-1]):
        heirs = tuple(in_release(code, release)[:_MOST])
        sentence = f"{code.code} is not in the code set of {day[:10]} (release {release})"
        yield Finding("error", "release", code, sentence, heirs)
    elif code.system == "icd10cm" and not _line(code):
        heirs = tuple(in_release(code, release)[:_MOST])
        if heirs != (code,):
            yield Finding("error", "release", code, f"release {release} has no {code.code}", heirs)


def _present_on_admission(review: AssignedCodes, encounter: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether an inpatient's diagnoses say if they were there on admission; one finding for all."""
    if encounter.get("kind") != "inpatient":
        return
    open_ones = [item.code for item in review.chosen if item.code.system not in PROCEDURES and not item.poa]
    if open_ones:
        count = len(open_ones)
        sentence = f"present on admission is not set for {count} diagnos{'is' if count == 1 else 'es'}"
        yield Finding("hint", "poa", open_ones[0], sentence)
