"""The proposed claim of a note, made by nosology.claims of the coder's suggestions and the fields of the encounter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from nosology.claims.claim import Claim, ClaimCode, build_claim
from nosology.claims.encounter import Encounter
from nosology.core import Code, ConfigError, ReviewError, Span, Suggestion
from nosology.workbench.cases import Case, UncertainSuggestion
from nosology.workbench.report_evidence import report_spans, with_left_out, without_reports
from nosology.workbench.uploads import claim_fields


def propose_claim(case: Case) -> Claim:
    """The claim of a note, whatever people have decided.

    ReviewError if the note is not coded, ConfigError if its date has no ICD-10-CM code set.
    """
    if case.coder is None:
        raise ReviewError("the note is not coded yet")
    fields = claim_fields(case.note["encounter"])
    reports = report_spans(case.current)
    return _build(case.note["ref"], case.note["text"], tuple(case.suggestions), tuple(fields.items()), reports)


@lru_cache(maxsize=128)  # every decision shows the panel again
def _build(
    ref: str,
    text: str,
    suggestions: Sequence[Suggestion],
    fields: Sequence[tuple[str, Any]],
    reports: Sequence[Span],
) -> Claim:
    usable, stated = for_claim(suggestions), dict(fields)
    if not reports or not Encounter.of(text, stated).is_inpatient:
        return build_claim(ref, text, usable, stated)
    kept, left_out = without_reports(usable, reports)
    return with_left_out(build_claim(ref, text, kept, stated), left_out)


def for_claim(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """The suggestions as a claim needs them: it decides itself which uncertain diagnoses count."""
    return [replace(it, accepted=True) if isinstance(it, UncertainSuggestion) else it for it in suggestions]


def claim_evidence(case: Case) -> dict[Code, tuple[Span, ...]]:
    """The evidence of each code of the proposed claim; empty if there is no claim."""
    try:
        claim = propose_claim(case)
    except (ConfigError, ReviewError):
        return {}
    return {Code(item.system, item.code): item.evidence for item in claim.codes}


def open_codes(case: Case, claim: Claim) -> list[ClaimCode]:
    """The codes of a claim about which nobody has decided."""
    decided = {*case.review.codes, *case.review.rejected}
    return [item for item in claim.codes if Code(item.system, item.code) not in decided]


def claim_decision(item: ClaimCode) -> dict[str, Any]:
    """The details of the decision that accepts a code of the claim; the coder's own evidence is stored already."""
    details: dict[str, Any] = {"code": f"{item.system}:{item.code}"}
    if item.poa:
        details["poa"] = item.poa
    if item.rule:
        details |= {"rule": item.rule, "evidence": [[span.start, span.end] for span in item.evidence]}
    return details
