"""Coding of encounters with the day-one coder: each document alone, merged; and claims of the joined text."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from nosology.claims.claim import build_claim
from nosology.core import Note
from nosology.serving.coder import Coder
from nosology.text.borders import documents_of, join_documents
from nosology.workbench.coding import CodedNote, WaitingNote, code_notes
from nosology.workbench.documents import Document, DocumentText
from nosology.workbench.report_evidence import REASON, report_spans
from nosology.workbench.stored_claims import ClaimInput, for_claim

NOTES = [path.read_text() for path in sorted(Path("examples/notes").glob("*.txt"))]
CT = "CT CHEST\nTechnique: contrast.\nFindings: consolidation.\nImpression: pneumonia of the right lower lobe."
HP = (
    "HISTORY AND PHYSICAL\nHPI: 70-year-old woman with dyspnea.\nPast medical history: hypertension, type 2 diabetes.\n"
    "Family history: mother had breast cancer."
)
PROGRESS = (
    "Progress note, hospital day 2\nAssessment and plan:\n1. Acute on chronic systolic heart failure, on furosemide.\n"
    "2. Hypokalemia, replaced."
)
LABS = "LABORATORY\nSodium 128, potassium 4.1. Creatinine 1.1."


@pytest.fixture(scope="module")
def coder() -> Coder:
    return Coder.for_claims("day-one")


def coded(coder: Coder, text: str) -> CodedNote:
    """The merged result of the documents of a text."""
    waiting = WaitingNote(1, {}, [DocumentText(1, part.start, "", part.text) for part in documents_of(text)])
    return waiting.merge(code_notes(coder, waiting.notes))


def test_documents_coded_alone_give_the_codes_of_the_joined_text(coder):
    for texts in combinations([*NOTES, CT, HP, PROGRESS, LABS], 2):
        joined = join_documents(texts)
        merged, (whole,) = coded(coder, joined), code_notes(coder, [Note("", joined)])
        accepted = [{item.code for item in result.suggestions if item.accepted} for result in (merged, whole)]
        assert accepted[0] == accepted[1]
        claims = [build_claim("", joined, for_claim(result.suggestions)) for result in (merged, whole)]
        assert [item.code for item in claims[0].codes] == [item.code for item in claims[1].codes]


def test_one_document_is_coded_like_its_text(coder):
    for text in NOTES:
        assert [coded(coder, text)] == code_notes(coder, [Note("", text)])


def test_a_diagnosis_of_a_stay_that_only_a_report_names_is_left_out(coder):
    joined = join_documents([HP, CT, PROGRESS])
    kinds = ("h&p", "radiology", "progress")
    parts = [
        Document(number, "", 1, kind, "", None, part.start, part.start + len(part.text), "current", 0.0)
        for number, (part, kind) in enumerate(zip(documents_of(joined), kinds))
    ]
    suggestions = tuple(coded(coder, joined).suggestions)
    claim = ClaimInput(joined, (), report_spans(parts), suggestions).build()
    assert "J18.9" not in [item.code for item in claim.codes]
    (left,) = [item for item in claim.left_out if item.reason == REASON]
    assert left.code == "J18.9" and {"I50.23", "E11.9"} <= {item.code for item in claim.codes}
    visit = ClaimInput(joined, (("setting", "outpatient"),), report_spans(parts), suggestions).build()
    assert "J18.9" in [item.code for item in visit.codes]
    assert report_spans([part for part in parts if part.kind == "radiology"]) == ()
