"""A claim: the code set of an encounter in billing order, each code with its reason, and what was left out and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nosology.claims.calibration import calibrate
from nosology.claims.candidates import add_candidates
from nosology.claims.checks import AssignedCode, AssignedCodes, check_codes
from nosology.claims.code_issue import CodeIssue
from nosology.claims.draft import Draft, Entry, LeftOut, Query
from nosology.claims.encounter import Encounter
from nosology.claims.final_set import resolve_set
from nosology.claims.grouping import PaymentGroups, payment_groups
from nosology.claims.icd9 import icd9_codes, icd9_title
from nosology.claims.linked_conditions import combine_linked
from nosology.claims.order import ordered, present_on_admission
from nosology.claims.pregnancy import complete_trimesters
from nosology.claims.procedures import ProposedProcedures, propose_procedures
from nosology.claims.relevance import drop_irrelevant, keep_assessed
from nosology.claims.rules import FAMILIES, apply_rules
from nosology.claims.sibling_choice import choose_siblings
from nosology.claims.sides import complete_sides
from nosology.claims.specificity import refine
from nosology.core import Code, ConfigError, Span, Suggestion

if TYPE_CHECKING:
    from nosology.models.siblings.sibling_chooser import SiblingChooser

SYSTEMS = ("icd10cm", "icd9cm", "icd10pcs")
"""The code systems of a claim: diagnoses, diagnoses mapped back, or the procedures alone."""
STAGES = (*FAMILIES, "final_set", "calibration")
"""The parts of the engine that can be turned off to measure what each adds."""


@dataclass(frozen=True, slots=True)
class ClaimCode:
    """A code of the claim. role: principal or secondary; basis: mention, or the rule that adds it."""

    system: str
    code: str
    description: str
    probability: float
    role: str
    poa: str
    evidence: tuple[Span, ...]
    basis: str
    rule: str


@dataclass(frozen=True, slots=True)
class Claim:
    """The codes in billing order, codes left out, questions to the physician, and conflicts that remain.

    procedures: ICD-10-PCS codes of an inpatient, the principal procedure first.
    """

    id: str
    text: str = field(repr=False)
    encounter: Encounter
    codes: tuple[ClaimCode, ...]
    left_out: tuple[LeftOut, ...]
    queries: tuple[Query, ...]
    conflicts: tuple[CodeIssue, ...]
    procedures: tuple[ClaimCode, ...] = ()

    @property
    def groups(self) -> PaymentGroups | None:
        """DRG, CC and MCC of an inpatient, HCC and risk score; None without sex, age or the packages that group."""
        groups = payment_groups(self.assigned, self.checked_fields)
        return None if groups == PaymentGroups() else groups

    @property
    def assigned(self) -> AssignedCodes:
        """The codes and procedures in the form that checks and groupers read."""
        return _assigned((*self.codes, *self.procedures))

    @property
    def checked_fields(self) -> dict[str, Any]:
        """The fields of the encounter that checks and groupers read."""
        return _checked_fields(self.encounter)

    def to_json(self) -> dict[str, Any]:
        """The claim as one JSON object; evidence has offsets and words of the note."""
        groups = self.groups
        return {
            "id": self.id,
            "codes": [
                {
                    "system": item.system,
                    "code": item.code,
                    "description": item.description,
                    "probability": round(item.probability, 4),
                    "accepted": True,
                    "role": item.role,
                    "poa": item.poa,
                    "evidence": self._words(item.evidence),
                    "basis": item.basis,
                    "rule": item.rule,
                }
                for item in self.codes
            ],
            "procedures": [
                {
                    "system": item.system,
                    "code": item.code,
                    "description": item.description,
                    "probability": round(item.probability, 4),
                    "role": item.role,
                    "evidence": self._words(item.evidence),
                    "rule": item.rule,
                }
                for item in self.procedures
            ],
            "left_out": [
                {"code": item.code, "reason": item.reason, "rule": item.rule, "evidence": self._words(item.evidence)}
                for item in self.left_out
            ],
            "queries": [
                {"question": item.question, "rule": item.rule, "evidence": self._words(item.evidence)}
                for item in self.queries
            ],
            "conflicts": [
                {"code": item.code.code, "level": item.level, "kind": item.kind, "message": item.message}
                for item in self.conflicts
            ],
        } | ({"groups": _groups_to_json(groups)} if groups else {})

    def words(self, spans: Sequence[Span]) -> list[str]:
        """The words of the note at some spans."""
        return [self.text[span.start : span.end] for span in spans]

    def _words(self, spans: Sequence[Span]) -> list[dict[str, Any]]:
        return [{"start": span.start, "end": span.end, "text": text} for span, text in zip(spans, self.words(spans))]


def build_claim(
    note_id: str,
    text: str,
    suggestions: Sequence[Suggestion],
    stated: Mapping[str, Any] | None = None,
    *,
    system: str = "icd10cm",
    off: Collection[str] = (),
    chooser: SiblingChooser | None = None,
) -> Claim:
    """The claim for the ICD-10-CM suggestions of any coder; with system icd10pcs the procedures, without suggestions.

    stated: fields of the encounter; off: stages and rules not to run, or "procedures". chooser: of the coder; it may
    replace codes by other codes of their categories.
    """
    if system not in SYSTEMS:
        raise ConfigError(f"system must be one of {', '.join(SYSTEMS)}; got {system!r}")
    if system == "icd10pcs":
        draft = Draft(text, Encounter.of(text, stated or {}))
        found = propose_procedures(draft)
        return Claim(note_id, text, draft.encounter, _procedures(found), found.left_out, found.queries, ())
    draft = build_draft(text, suggestions, stated or {}, system=system, off=off, chooser=chooser)
    claim = _claim(note_id, draft)
    if system == "icd9cm":
        return in_icd9cm(claim)
    if not draft.encounter.is_inpatient or "procedures" in off:
        return claim
    found = propose_procedures(draft)
    return replace(claim, procedures=_procedures(found), queries=(*claim.queries, *found.queries))


def build_draft(
    text: str,
    suggestions: Sequence[Suggestion],
    stated: Mapping[str, Any],
    *,
    system: str = "icd10cm",
    off: Collection[str] = (),
    chooser: SiblingChooser | None = None,
) -> Draft:
    """The ICD-10-CM code set of a note after all stages, not yet in billing order; system: that of the claim."""
    draft = Draft(text, Encounter.of(text, stated, system), suggestions, system)
    add_candidates(draft)
    for family in FAMILIES:
        if family == "specificity" and family not in off:
            refine(draft)
            if chooser is not None:
                choose_siblings(draft, chooser)
        if family == "integral" and "relevance" not in off:
            keep_assessed(draft)  # what is not coded does not explain a symptom
        if family == "relevance" and "final_set" not in off:
            resolve_set(draft)
        if family == "relevance" and family not in off:
            drop_irrelevant(draft)
        if family not in off:
            apply_rules(draft, family, off)
        if family == "specificity" and family not in off:
            complete_sides(draft)
        if family == "combination" and family not in off:
            if system == "icd10cm":  # I.A.15 is newer than ICD-9-CM
                combine_linked(draft)
            complete_trimesters(draft)
    if "final_set" not in off:
        resolve_set(draft)
    if "calibration" not in off:
        calibrate(draft)
    return draft


def in_icd9cm(claim: Claim) -> Claim:
    """The claim in ICD-9-CM of its day: each code mapped back by the GEMs and the words of its evidence."""
    day = claim.encounter.date
    codes: dict[str, ClaimCode] = {}
    for item in claim.codes:
        for code in icd9_codes(item.code, " ".join(claim.words(item.evidence)), day):
            known = codes.get(code)
            evidence = tuple(sorted({*item.evidence, *(known.evidence if known else ())}))
            same = known or replace(item, system="icd9cm", code=code, description=icd9_title(code))
            codes[code] = replace(same, evidence=evidence, role="secondary" if known is None and codes else same.role)
    left_out = tuple(
        replace(it, code=code)
        for it in claim.left_out
        for code in icd9_codes(it.code, " ".join(claim.words(it.evidence)), day)
        if code not in codes
    )
    return replace(claim, codes=tuple(codes.values()), left_out=left_out, conflicts=())


def _claim(note_id: str, draft: Draft) -> Claim:
    entries = ordered(draft)
    codes = tuple(_claim_code(draft, entry, place) for place, entry in enumerate(entries))
    evidence = {Code(item.system, item.code): item.evidence for item in codes}
    issues = check_codes(_assigned(codes), _checked_fields(draft.encounter), draft.text, evidence)
    conflicts = tuple(issue for issue in issues if issue.level in ("error", "warning"))
    return Claim(note_id, draft.text, draft.encounter, codes, tuple(draft.left_out), tuple(draft.queries), conflicts)


def _procedures(found: ProposedProcedures) -> tuple[ClaimCode, ...]:
    return tuple(
        ClaimCode(
            system="icd10pcs",
            code=item.code,
            description=item.description,
            probability=item.probability,
            role="secondary" if place else "principal",
            poa="",
            evidence=item.evidence,
            basis="mention",
            rule=item.rule,
        )
        for place, item in enumerate(found.codes)
    )


def _assigned(codes: Sequence[ClaimCode]) -> AssignedCodes:
    """The codes in the form that checks and groupers read."""
    return AssignedCodes(
        tuple(AssignedCode(Code(item.system, item.code), "suggested", item.poa, item.evidence) for item in codes)
    )


def _checked_fields(encounter: Encounter) -> dict[str, Any]:
    """The fields of the encounter that checks and groupers read."""
    kind = "inpatient" if encounter.is_inpatient else "outpatient"
    fields = {"date": encounter.date, "sex": encounter.sex, "age": encounter.age, "kind": kind}
    return fields | ({"disposition": encounter.disposition} if encounter.disposition else {})


def _groups_to_json(groups: PaymentGroups) -> dict[str, Any]:
    return {
        "drg": groups.drg,
        "drg_title": groups.drg_title,
        "mdc_title": groups.mdc_title,
        "drg_version": groups.drg_version,
        "drg_reason": groups.drg_reason,
        "severity": {code.code: level for code, level in groups.severity.items()},
        "excluded": {code.code: level for code, level in groups.excluded.items()},
        "hcc": {code.code: category for code, category in groups.hcc.items()},
        "risk": None if groups.risk is None else round(groups.risk, 4),
    }


def _claim_code(draft: Draft, entry: Entry, place: int) -> ClaimCode:
    return ClaimCode(
        system="icd10cm",
        code=entry.code,
        description=draft.table.description(entry.code),
        probability=entry.probability,
        role="principal" if place == 0 else "secondary",
        poa=present_on_admission(draft, entry),
        evidence=_longest(entry.evidence),
        basis="rule" if entry.rule else "mention",
        rule=entry.rule,
    )


def _longest(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans that are not inside another one."""
    return tuple(
        span
        for span in spans
        if not any(other != span and other.start <= span.start and span.end <= other.end for other in spans)
    )
