"""The proposed claim of a note, made by nosology.claims of the coder's suggestions and the fields of the encounter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from nosology.claims.claim import Claim, ClaimCode
from nosology.core import Code, ConfigError, ReviewError, Span, Suggestion
from nosology.workbench.cases import Case
from nosology.workbench.documents import Document, DocumentText
from nosology.workbench.report_evidence import report_spans
from nosology.workbench.stored_claims import ClaimInput
from nosology.workbench.uploads import claim_fields


def propose_claim(case: Case) -> Claim:
    """The claim of a note, whatever people have decided.

    ReviewError if the note is not coded, ConfigError if its date has no ICD-10-CM code set.
    """
    if case.coder is None:
        raise ReviewError("the note is not coded yet")
    made_of = claim_input(case.note["text"], case.note["encounter"], case.current, case.suggestions)
    made_of = replace(made_of, made_by=case.coder["suggestions"])
    return replace(_build(made_of, case.coder["claim"]), id=case.note["ref"])


def claim_input(
    text: str,
    encounter: Mapping[str, Any],
    documents: Sequence[Document] | Sequence[DocumentText],
    suggestions: Sequence[Suggestion],
) -> ClaimInput:
    """What the claim of an encounter is made of; encounter: completed, documents: the current ones."""
    return ClaimInput(text, tuple(claim_fields(encounter).items()), report_spans(documents), suggestions)


@lru_cache(maxsize=256)  # every decision shows the panel again
def _build(made_of: ClaimInput, stored: str | None) -> Claim:
    return (made_of.from_json(stored) if stored else None) or made_of.build()


def claim_evidence(case: Case) -> dict[Code, tuple[Span, ...]]:
    """The evidence of each code of the proposed claim; empty if there is no claim."""
    try:
        claim = propose_claim(case)
    except (ConfigError, ReviewError):
        return {}
    return {Code(item.system, item.code): item.evidence for item in claim_codes(claim)}


def claim_codes(claim: Claim) -> tuple[ClaimCode, ...]:
    """The diagnoses of a claim in billing order, then its procedures."""
    return (*claim.codes, *claim.procedures)


def open_codes(case: Case, claim: Claim) -> list[ClaimCode]:
    """The codes of a claim about which nobody has decided."""
    decided = {*case.review.codes, *case.review.rejected}
    return [item for item in claim_codes(claim) if Code(item.system, item.code) not in decided]


def claim_decision(item: ClaimCode) -> dict[str, Any]:
    """The details of the decision that accepts a code of the claim; the coder's own evidence is stored already."""
    details: dict[str, Any] = {"code": f"{item.system}:{item.code}"}
    if item.poa:
        details["poa"] = item.poa
    if item.rule:
        details |= {"rule": item.rule, "evidence": [[span.start, span.end] for span in item.evidence]}
    return details
