"""Diagnoses of a stay that only a report of radiology, pathology or the laboratory names.

For inpatients, the guidelines (section III.B) leave findings of such reports to the provider: a code needs the words of
somebody who treats the patient. Other words of a report still make a diagnosis more specific.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nosology.claims.claim import Claim
from nosology.claims.draft import LeftOut
from nosology.core import Span, Suggestion
from nosology.workbench.documents import Document, DocumentText

REPORTS = ("radiology", "pathology", "laboratory")
REASON = "Only a report names it: in a stay, a diagnosis needs the words of a provider."
RULE = "report-only"


def report_spans(documents: Sequence[Document] | Sequence[DocumentText]) -> tuple[Span, ...]:
    """The characters of the reports among current documents; none if there are only reports."""
    reports = tuple(Span(it.start, it.end) for it in documents if it.kind in REPORTS)
    return reports if len(reports) < len(documents) else ()


def without_reports(
    suggestions: Sequence[Suggestion], reports: Sequence[Span]
) -> tuple[list[Suggestion], list[LeftOut]]:
    """The suggestions, those whose evidence is all in reports as not accepted, and the codes that were."""
    kept, left_out = [], []
    for item in suggestions:
        spans = tuple(Span(it.start, it.end) for it in item.evidence)
        is_in_reports = bool(spans) and all(any(r.start <= it.start < r.end for r in reports) for it in spans)
        if is_in_reports and item.accepted and item.system == "icd10cm":
            left_out.append(LeftOut(item.code, REASON, RULE, spans))
            item = replace(item, accepted=False)
        kept.append(item)
    return kept, left_out


def with_left_out(claim: Claim, left_out: Sequence[LeftOut]) -> Claim:
    """The claim with more codes that were left out; those that it has all the same are not listed."""
    codes = {item.code for item in (*claim.codes, *claim.left_out)}
    return replace(claim, left_out=(*claim.left_out, *(item for item in left_out if item.code not in codes)))
