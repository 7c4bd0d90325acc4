"""Which conditions an outpatient visit dealt with (IV.J): those that were treated, evaluated or monitored."""

from __future__ import annotations

import re

from nosology.claims.draft import Draft, Entry
from nosology.codes.tabular import code_references

_ASSESSED = ("discharge_diagnosis", "impression", "assessment")
_NOT_ASSESSED = (
    "hpi", "review_of_systems", "physical_exam", "vital_signs", "results", "chief_complaint", "instructions",
    "technique",
)  # fmt: skip
_NO_PLACE_FOR_SYMPTOMS = (*_NOT_ASSESSED, "indication", "findings")
_MANAGED = re.compile(
    r"\b(?:on|takes?|taking|continues?|continued|cont|started?|starting|increased?|decreased?|refill(?:ed)?|prescribed"
    r"|controlled|uncontrolled|stable|worsening|improving|at goal|well managed|managed|treated|treatment|monitor(?:ed)?"
    r"|follow(?:ed|s)? by|referred|\d+ ?(?:mg|mcg|units?|g)|daily|b\.?i\.?d|t\.?i\.?d|q\.?h\.?s|prn|therapy|inhaler"
    r"|insulin|dialysis|chemo(?:therapy)?|surgery scheduled)\b",
    re.IGNORECASE,
)
_SYMPTOM = ("R", "M25.5", "M54.2", "M54.5", "M54.6", "M54.9", "M79.1", "M79.6", "N23", "G44.1", "H57.1", "H92.0")


def drop_irrelevant(draft: Draft) -> None:
    """Leaves out what an outpatient note with an assessment mentions only outside of it, without managing it."""
    if draft.encounter.is_inpatient or draft.encounter.role != "attending":
        return
    kinds = {code: {draft.section_kind(span.start) for span in entry.evidence} for code, entry in draft.entries.items()}
    if not any(found.intersection(_ASSESSED) for found in kinds.values()):
        return
    for code, found in kinds.items():
        entry = draft.entries[code]
        is_symptom = code.startswith(_SYMPTOM)
        outside = found.issubset(_NO_PLACE_FOR_SYMPTOMS if is_symptom else _NOT_ASSESSED)
        if code[0] in "STVWXYZ" or not found or not outside or _is_requested(draft, code):
            continue
        if is_symptom or not _is_managed(draft, entry):
            draft.drop(code, "IV.J: the visit did not treat, evaluate or monitor it", "not-assessed")


def _is_requested(draft: Draft, code: str) -> bool:
    """Whether the tabular list asks for this code in addition to another one of the set."""
    notes = (note for other in draft.entries for _, note in draft.table.inherited_notes(other, "use_additional"))
    return any(reference.covers(code) for note in notes for reference in code_references(note))


def _is_managed(draft: Draft, entry: Entry) -> bool:
    sentences = (draft.sentence(span.start) for span in entry.evidence)
    return any(_MANAGED.search(draft.text, sentence.start, sentence.end) for sentence in sentences)
