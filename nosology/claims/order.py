"""The order of a claim: the principal (first-listed) diagnosis, forced orders, and present on admission."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nosology.claims.assessment import STATEMENT
from nosology.claims.checks import code_first_notes
from nosology.claims.draft import Draft, Entry, matches
from nosology.codes.poa import is_poa_exempt
from nosology.codes.tabular import code_references
from nosology.core import Span

# Sections in which a note names what the encounter was for, best first; in any other the rank is _OTHER_SECTION.
_SECTION_RANK = {"discharge_diagnosis": 0, "impression": 1, "assessment": 2, "admission_diagnosis": 3, "hpi": 4}
_OTHER_SECTION = 5
_BACKGROUND = (
    "past_medical_history", "surgical_history", "family_history", "social_history", "medications",
    "discharge_medications", "allergies", "review_of_systems",
)  # fmt: skip
_PRINCIPAL = re.compile(r"\b(?:principal|primary)\b[^\n:]*:", re.IGNORECASE)
_REASON = re.compile(
    r"\b(?:admitted (?:for|with|because of|due to)|present(?:s|ed)? (?:with|for)|p/w|here (?:for|because)"
    r"|reason for (?:admission|visit|encounter)|brought in (?:for|with)|follow[- ]?up (?:for|of)|indication)\b",
    re.IGNORECASE,
)

# (pattern, class): the lowest class comes first, whatever the note names first. Classes 0 to 2 are forced to the front.
_CLASSES = (
    ("Z38", 0),  # birth of a newborn: I.C.16.a.2
    ("Z51.0|Z51.11|Z51.12", 0),  # encounter solely for radiotherapy, chemotherapy or immunotherapy: I.C.2.e.2
    ("Z00", 0),  # a screening is a part of a routine examination: I.C.21.c.5
    ("Z01|Z02|Z11|Z12|Z13|Z08|Z09|Z52|Z34|Z31|Z30|Z47|Z48|Z49.0", 1),  # encounter codes: I.C.21.c.16
    ("O00-O9A", 1),  # chapter 15 has priority: I.C.15.a.1
    ("U07.1", 2),  # I.C.1.g.1.a
    ("A40|A41|A02.1|A22.7|A26.7|A32.7|A42.7|B37.7|P36|T81.44", 2),  # sepsis on admission: I.C.1.d.4
    ("R65|R29.7", 7),  # never first
    ("Z37|Z3A|Z66|Z68|Z79|Z80-Z99|Z55-Z65|Z71-Z78|Z14-Z23|Z28|Z33|B95-B97|Y90", 8),
    ("V00-Y99", 9),
    ("Z", 7),
)
_CLASS_LATE = re.compile(r"[RZVWXYT]|B9[5-7]")
_CAUSES = (("I85.1", "K70|K71|K74"),)  # causes that a code-first note does not name by code
_DIAGNOSIS = 4  # the class of most diagnoses
_LIKELY = 0.6
_POISONING = re.compile(r"T(?:3[6-9]|4\d|50|5[1-9]|6[0-5])\.[0-9A-Z]{2}[1-4]")
_ADVERSE = re.compile(r"T(?:3[6-9]|4\d|50)\.[0-9A-Z]{2}[56]")
_ACQUIRED = re.compile(
    r"\b(?:hospital[- ]acquired|nosocomial|post-?op(?:erative(?:ly)?)?|HD ?#?\d+|POD ?#?\d+|hospital day|developed"
    r"|(?:course|stay) (?:was )?complicated by|overnight|during (?:the )?(?:admission|stay|hospitalization))\b",
    re.IGNORECASE,
)
_PRESENT = re.compile(r"\b(?:POA|present on admission|on arrival|on admission)\b", re.IGNORECASE)


def ordered(draft: Draft) -> list[Entry]:
    """The entries in billing order."""
    entries = sorted(draft.entries.values(), key=lambda entry: (_class(draft, entry.code), _place(draft, entry)))
    result = _code_first(draft, _combination_before_parts(entries))
    likely = [entry for entry in result if entry.probability >= _LIKELY and _class(draft, entry.code) <= _DIAGNOSIS]
    if likely and result[0].probability < _LIKELY:  # an unlikely code is not what the encounter was for
        result.remove(likely[0])
        result.insert(0, likely[0])
    return result


def _class(draft: Draft, code: str) -> int:
    """The class of a code; 4 for most diagnoses, the lower the earlier."""
    if _POISONING.match(code):
        return 2  # before its manifestations: I.C.19.e.5.b
    if _ADVERSE.match(code):
        return 7
    if not draft.encounter.is_inpatient and matches("A40|A41", code):
        return 4
    return next((value for pattern, value in _CLASSES if matches(pattern, code)), _DIAGNOSIS)


def _place(draft: Draft, entry: Entry) -> tuple[int, list[int], str]:
    """Rank of the best section that mentions a code, and the positions there."""
    places = sorted((_section_rank(draft, span.start), span.start) for span in entry.evidence)
    best = places[0][0] if places else _OTHER_SECTION
    return best, [start for rank, start in places if rank == best] or [len(draft.text)], entry.code


def _section_rank(draft: Draft, position: int) -> int:
    section = next((it for it in draft.sections if it.span.start <= position < it.span.end), None)
    if section is None:
        return _OTHER_SECTION
    if section.kind in _BACKGROUND:
        return _OTHER_SECTION + 1
    line = draft.text.rfind("\n", 0, position) + 1
    if _PRINCIPAL.match(draft.text, line, position) or _PRINCIPAL.search(f"{section.title}:"):
        return -1
    if not draft.encounter.is_inpatient and draft.assessment.place(Span(position, position)) >= STATEMENT:
        return 0  # IV.G: the problems of a visit stand in the order of their importance
    rank = _SECTION_RANK.get(section.kind, _OTHER_SECTION)
    if rank == _OTHER_SECTION and _REASON.search(draft.text, draft.sentence(position).start, position):
        return _SECTION_RANK["hpi"]
    return rank


def _combination_before_parts(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with a code that a rule made directly before the first code that shares its evidence."""
    result = list(entries)
    for entry in entries:
        if not entry.rule or _CLASS_LATE.match(entry.code):
            continue
        shared = [other for other in result if other is not entry and set(other.evidence) & set(entry.evidence)]
        later = [result.index(other) for other in shared if other.code[0] == entry.code[0]]
        if later and min(later) < result.index(entry) and result[min(later)].evidence[:1] == entry.evidence[:1]:
            result.remove(entry)
            result.insert(min(later), entry)
    return result


def _code_first(draft: Draft, entries: Sequence[Entry]) -> list[Entry]:
    """The entries with each code after those that its code-first notes name."""
    result = list(entries)
    for entry in entries:
        notes = code_first_notes(draft.table, entry.code).values()
        wanted = [reference for group in notes for note in group for reference in code_references(note)]
        causes = [pattern for code, pattern in _CAUSES if matches(code, entry.code)]
        before = [
            place
            for place, it in enumerate(result)
            if any(reference.covers(it.code) for reference in wanted)
            or any(matches(cause, it.code) for cause in causes)
        ]
        if before and min(before) > result.index(entry):
            first = result[min(before)]
            result.remove(first)
            result.insert(result.index(entry), first)
    return result


def present_on_admission(draft: Draft, entry: Entry) -> str:
    """The indicator of an inpatient's diagnosis: Y, N, 1 (exempt), or "" for other settings."""
    if not draft.encounter.is_inpatient:
        return ""
    if is_poa_exempt(entry.code, draft.encounter.date or None):
        return "1"
    sentences = [draft.sentence(span.start) for span in entry.evidence]
    texts = [draft.text[sentence.start : sentence.end] for sentence in sentences]
    acquired = [bool(_ACQUIRED.search(text)) and not _PRESENT.search(text) for text in texts]
    return "N" if acquired and all(acquired) else "Y"
