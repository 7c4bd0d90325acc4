"""No section, sentence or context extends over the border between two documents."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from nosology.claims.encounter import Encounter
from nosology.core import Span
from nosology.text import contexts, sections, sentences
from nosology.text.borders import BORDER, documents_of, join_documents

NOTES = [path.read_text() for path in sorted(Path("examples/notes").glob("*.txt"))]
TEXTS = [
    *NOTES,
    "Family History:\nMother had breast cancer, father",
    "congestive heart failure, on furosemide",
    "ANTECEDENTES FAMILIARES:\nDiabetes. El paciente no tiene fiebre.",
    "AF: rate controlled\nNo evidence of",
    "pneumonia in the right lower lobe",
    "Allergies:\n",
    "   \n ",
]


@pytest.mark.parametrize("first, second", list(permutations(TEXTS, 2)))
def test_what_is_found_in_a_document_does_not_depend_on_the_others(first, second):
    joined, by = join_documents([first, second]), len(first) + len(BORDER)

    def moved(span: Span) -> Span:
        return Span(span.start + by, span.end + by)

    expected = [(it.title, it.kind, it.span, it.body) for it in sections(first)]
    expected += [(it.title, it.kind, moved(it.span), moved(it.body)) for it in sections(second)]
    assert [tuple(it) for it in sections(joined)] == expected
    assert sentences(joined) == [*sentences(first), *map(moved, sentences(second))]
    alone = {(it.category, it.scope) for it in contexts(first)}
    alone |= {(it.category, moved(it.scope)) for it in contexts(second)}
    assert {(it.category, it.scope) for it in contexts(joined)} == alone


def test_documents_of_a_text():
    assert documents_of("a note") == [(0, "a note")]
    assert documents_of(f"one{BORDER}two") == [(0, "one"), (6, "two")]


def test_a_document_after_family_history_is_not_about_the_family():
    joined = join_documents(["Family History:\nMother had gout.", "congestive heart failure"])
    assert [it.kind for it in sections(joined)] == ["family_history", "start"]
    plain = "Family History:\nMother had gout.\n\ncongestive heart failure"
    assert [it.kind for it in sections(plain)] == ["family_history"]


def test_a_report_in_a_stay_leaves_it_a_stay_of_the_attending():
    report = "CT CHEST\nTechnique: contrast.\nFindings: nodule.\nImpression: lung nodule."
    stay = "DISCHARGE SUMMARY\nHospital course: treated for sepsis.\nDischarge diagnosis: sepsis."
    assert Encounter.of(report, {}).role == "radiology"
    for texts in ([report, stay], [stay, report]):
        found = Encounter.of(join_documents(texts), {})
        assert (found.role, found.setting) == ("attending", "inpatient")
