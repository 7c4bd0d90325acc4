"""Which conditions an outpatient visit dealt with (IV.J): those that were treated, evaluated or monitored."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nosology.claims.advice import is_advice
from nosology.claims.assessment import ASSESSED, DETAIL, OUTSIDE, STATEMENT, TITLE
from nosology.claims.draft import Draft, Entry, matches
from nosology.codes.tabular import code_references
from nosology.core import Span

_NOT_ASSESSED = (
    "hpi", "review_of_systems", "physical_exam", "vital_signs", "results", "chief_complaint", "instructions",
    "technique",
)  # fmt: skip
_FINDINGS = ("review_of_systems", "physical_exam", "vital_signs", "instructions")
_NO_PLACE_FOR_SYMPTOMS = (*_NOT_ASSESSED, "indication", "findings")
_MANAGED = re.compile(
    r"\b(?:on(?! (?:the|both|right|left|a|an|his|her|exam\w*|palpation|physical|imaging|x-?ray|CT|MRI)\b)|takes?"
    r"|taking|continues?|continued|cont|started?|starting|increased?|decreased?|refill(?:ed)?|prescribed"
    r"|controlled|uncontrolled|stable|worsening|improving|at goal|well managed|managed|treated|treatment|monitor(?:ed)?"
    r"|follow(?:ed|s)? by|referred|\d+ ?(?:mg|mcg|units?|g)|daily|b\.?i\.?d|t\.?i\.?d|q\.?h\.?s|prn|therapy|inhaler"
    r"|insulin|dialysis|chemo(?:therapy)?|surgery scheduled)\b",
    re.IGNORECASE,
)
_SYMPTOM = ("R", "M25.5", "M54.2", "M54.5", "M54.6", "M54.9", "M79.1", "M79.6", "N23", "G44.1", "H57.1", "H92.0")
_SYSTEMIC = "B20|E08-E13|E78|I10-I15|I48|I50|J43|J44|N18"  # chronic diseases that bear on every visit
_REASON = ("chief_complaint", "hpi")  # sections that say why the patient came
_OPENING = (*_REASON, "start")
# Codes that say why the patient came or what was done: the chief complaint and the history count as well.
_ENCOUNTER = "Z00-Z13|Z20-Z53|Z3A"
_SYMPTOM_LIKE = (*_SYMPTOM, "G47.0", "G47.9", "K30", "K59.0", "L29")  # in the details of a problem: a symptom of it
# In the plan of a problem: examinations of another day, usual drugs, and what is past or of relatives.
_NOT_IN_PLAN = "Z00-Z13|Z40-Z53|Z79.1|Z79.2|Z79.3|Z79.5|Z79.82|Z79.83|Z79.89|Z80-Z84|Z87|!Z87.891"
_COUNSELING = "Z71.9"  # the word is a label of a plan
_INJURY = "S00-T88|M80|M84|O9A|F43"
_DRUG_OF_DISEASE = "Z79.0|Z79.4|Z79.84|Z79.85"
_NOT_ASSESSED_REASON = "IV.J: the visit did not treat, evaluate or monitor it"


def drop_irrelevant(draft: Draft) -> None:
    """Leaves out what an outpatient note with an assessment mentions only outside of it, without managing it."""
    if draft.encounter.is_inpatient or draft.encounter.role != "attending":
        return
    if draft.assessment.is_discussion:
        return
    kinds = {code: {draft.section_kind(span.start) for span in entry.evidence} for code, entry in draft.entries.items()}
    if not any(found.intersection(ASSESSED) for found in kinds.values()):
        _drop_findings(draft, kinds)
        return
    for code, found in kinds.items():
        entry = draft.entries[code]
        is_symptom = code.startswith(_SYMPTOM)
        outside = found.issubset(_NO_PLACE_FOR_SYMPTOMS if is_symptom else _NOT_ASSESSED)
        if code[0] in "STVWXYZ" or not found or not outside or _is_requested(draft, code, draft.entries):
            continue
        if is_symptom or not (matches(_SYSTEMIC, code) or _is_managed(draft, entry)):
            draft.drop(code, _NOT_ASSESSED_REASON, "not-assessed")


def _drop_findings(draft: Draft, kinds: dict[str, set[str]]) -> None:
    """Leaves out what a visit without an assessment only asked or found on examination, if it has other codes."""
    findings = [code for code, found in kinds.items() if code[0] not in "VWXYZ" and found and found.issubset(_FINDINGS)]
    if any(code[0] not in "VWXYZ" for code in kinds if code not in findings):
        for code in findings:
            draft.drop(code, _NOT_ASSESSED_REASON, "not-assessed")


def keep_assessed(draft: Draft) -> None:
    """Leaves out what a full assessment of an outpatient visit does not name as a problem."""
    is_visit = not draft.encounter.is_inpatient and draft.encounter.role == "attending"
    if not is_visit or not draft.assessment.is_discussion:
        return
    places = {code: _place(draft, entry) for code, entry in draft.entries.items()}
    named = [entry for code, entry in draft.entries.items() if places[code] >= STATEMENT]
    kept = {code for code, place in places.items() if _is_assessed(draft, draft.entries[code], place, named)}
    kept |= {code for code in places if _belongs_to(draft, code, kept)}
    if not named and not any(code[0] != "Z" or matches(_ENCOUNTER, code) for code in kept):
        kept |= _reason_for_visit(draft)
    if _has_open_problem(draft, kept):
        kept |= {code for code in _reason_for_visit(draft) if code.startswith(_SYMPTOM)}
    for code in places:
        if code not in kept:
            draft.drop(code, _NOT_ASSESSED_REASON, "not-assessed")


def _place(draft: Draft, entry: Entry) -> int:
    """The best place of the words of a code in the assessment, also where a rule found them elsewhere first."""
    spans = list(entry.evidence)
    if entry.rule:
        words = {draft.text[span.start : span.end] for span in entry.evidence}
        for word in words:
            found = re.finditer(rf"\b{re.escape(word)}\b", draft.text, re.IGNORECASE)
            spans += [Span(*match.span()) for match in found]
    return max(map(draft.assessment.place, spans), default=OUTSIDE)


def _is_assessed(draft: Draft, entry: Entry, place: int, named: list[Entry]) -> bool:
    """Whether the visit dealt with a code, by the place of its best mention; named: codes of the problems."""
    code = entry.code
    if code == _COUNSELING:
        return False
    if place >= STATEMENT and code[0] not in "VWXY":
        return True
    if matches(_ENCOUNTER, code) and any(draft.section_kind(span.start) in _OPENING for span in entry.evidence):
        return True
    if matches(_NOT_IN_PLAN, code) or code.startswith(_SYMPTOM_LIKE):
        return False
    if code[0] == "Z":
        return place == DETAIL and not all(is_advice(draft, span) for span in entry.evidence)
    if code[0] in "VWXY":
        return False
    if place == DETAIL:
        return _is_problem_of_its_own(draft, entry, named)
    return False


def _belongs_to(draft: Draft, code: str, kept: set[str]) -> bool:
    """Whether a code is added to one that is kept: the drug of a disease, the cause of an injury."""
    if code[0] in "VWXY":
        return any(matches(_INJURY, other) for other in kept)
    return matches(_DRUG_OF_DISEASE, code) and _is_requested(draft, code, kept)


def _is_problem_of_its_own(draft: Draft, entry: Entry, named: list[Entry]) -> bool:
    """Whether a disease in the details of a problem is what its title does not name, or is managed there."""
    problems = {
        draft.assessment.problem(span.start) for span in entry.evidence if draft.assessment.place(span) == DETAIL
    }
    for problem in problems:
        inside = problem is not None and any(
            problem.start <= span.start < problem.end for it in named for span in it.evidence
        )
        if not inside:
            return True
    return _is_managed(draft, entry)


def _has_open_problem(draft: Draft, kept: set[str]) -> bool:
    """Whether a problem has only an uncertain diagnosis; then the symptom is coded (IV.H)."""
    assessment = draft.assessment
    stated = [span for code in kept for span in draft.entries[code].evidence]
    for item in draft.left_out:
        for span in item.evidence if item.rule == "uncertain" else ():
            place = assessment.place(span)
            title = assessment.problem(span.start) if place == TITLE else None
            if title is not None and not any(title.start <= it.start < title.end for it in stated):
                return True
            if place == STATEMENT and not any(assessment.place(it) == STATEMENT for it in stated):
                return True
    return False


def _reason_for_visit(draft: Draft) -> set[str]:
    """The codes of the chief complaint, or else of the history of the present illness."""
    for kind in _REASON:
        found = {
            code
            for code, entry in draft.entries.items()
            if any(draft.section_kind(span.start) == kind for span in entry.evidence)
        }
        if found:
            return found
    return set()


def _is_requested(draft: Draft, code: str, others: Iterable[str]) -> bool:
    """Whether the tabular list asks for this code in addition to another one."""
    notes = (note for other in others for _, note in draft.table.inherited_notes(other, "use_additional"))
    return any(reference.covers(code) for note in notes for reference in code_references(note))


def _is_managed(draft: Draft, entry: Entry) -> bool:
    sentences = (draft.sentence(span.start) for span in entry.evidence)
    return any(_MANAGED.search(draft.text, sentence.start, sentence.end) for sentence in sentences)
