import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.text import sections
from nosology.text.sections import kinds
from nosology.text.tokens import rows
from tests.timing import assert_linear_time

NOTE = """Name:  ___

Chief Complaint:
chest pain

History of Present Illness:
Seen by Dr. Smith: stable.

PMH: 1. HTN
FAMILY HISTORY
father with MI

Pertinent Results:
CT: normal
BRIEF HOSPITAL COURSE:
# CHF: diuresed at 10:30.

Transitional Plans:
- none
"""


def test_headings_on_their_own_line_inline_capitalised_and_unknown():
    result = [(s.title, s.kind, NOTE[slice(*s.body)].strip()) for s in sections(NOTE)]
    assert result == [
        ("Name", "service", "___"),
        ("Chief Complaint", "chief_complaint", "chest pain"),
        ("History of Present Illness", "hpi", "Seen by Dr. Smith: stable."),
        ("PMH", "past_medical_history", "1. HTN"),
        ("FAMILY HISTORY", "family_history", "father with MI"),
        ("Pertinent Results", "results", ""),
        ("CT", "results", "normal"),
        ("BRIEF HOSPITAL COURSE", "hospital_course", "# CHF: diuresed at 10:30."),
        ("Transitional Plans", "other", "- none"),
    ]


def test_a_report_on_one_line():
    report = "Portable film. INDICATION: Cough. FINDINGS: Clear lungs. IMPRESSION: No pneumonia."
    result = [(s.kind, report[slice(*s.body)].strip()) for s in sections(report)]
    assert result == [
        ("start", "Portable film."),
        ("indication", "Cough."),
        ("findings", "Clear lungs."),
        ("impression", "No pneumonia."),
    ]


def test_spanish_headings_with_and_without_accents():
    note = (
        "Motivo de consulta: tos\nExploracion fisica:\nnormal\nAntecedentes familiares: padre con IAM\nEvolución\nbuena"
    )
    assert [s.kind for s in sections(note)] == ["chief_complaint", "physical_exam", "family_history", "hospital_course"]


def test_every_heading_of_the_table_is_found():
    for row in rows("sections.tsv"):
        parts = sections(f"texto del caso\n{row['heading'].upper()}:\nbody")
        assert [s.kind for s in parts] == ["start", row["kind"]], row
        assert row["kind"] in kinds()


@given(
    st.text() | st.lists(st.sampled_from(["PMH", ":", "\n", " ", "x.", "FINDINGS", "Allergies:", "\r\n"])).map("".join)
)
def test_sections_cover_the_text(text):
    parts = sections(text)
    assert "".join(text[slice(*s.span)] for s in parts) == text
    assert all(s.span.start <= s.body.start <= s.body.end == s.span.end for s in parts)
    assert {s.kind for s in parts} <= set(kinds())


@pytest.mark.timeout(30)
@pytest.mark.parametrize("piece", [" ", ":", "\n", "A", "A:\n", ". A", ". AB ", "\n\nAb:", "_", "\r"])
def test_time_is_linear(piece):
    assert_linear_time(lambda count: sections(piece * count), 30_000)


VISIT = """ASSESSMENT AND PLAN

Hypertension:
- Education: low salt.
Follow-up: two weeks.

Type 2 diabetes
Continue metformin.

INSTRUCTIONS

Call for fever.

Problem #2: COPD
"""


def test_an_assessment_goes_on_after_labels_of_its_problems():
    found = [(section.title, section.kind) for section in sections(VISIT)]
    assert found == [
        ("ASSESSMENT AND PLAN", "assessment"),
        ("Follow-up", "instructions"),
        ("ASSESSMENT AND PLAN", "assessment"),
        ("INSTRUCTIONS", "instructions"),
        ("Problem #2:", "assessment"),
    ]


def test_the_number_of_a_problem_is_no_heading_inside_of_an_assessment():
    text = "IMPRESSION AND PLAN\n\nProblem #1: COPD\n\nProblem #2: gout\n"
    assert [section.kind for section in sections(text)] == ["assessment"]


def test_a_numbered_assessment_goes_on_after_results():
    text = "Assessment:\n1. Gout\nUA: no protein\n2. Obesity\nLabs: glucose 90\n1. glucose"
    found = [(it.title, it.kind) for it in sections(text)]
    assert found == [
        ("Assessment", "assessment"),
        ("UA", "results"),
        ("Assessment", "assessment"),
        ("Labs", "results"),
    ]


def test_slashes_and_ampersands_of_headings():
    text = "Exam:\nNormal.\n\nAssessment / Plan:\nGout.\n\nMDM\nFever.\n\nAssessment & Plan\nGout.\n"
    assert [it.kind for it in sections(text)] == ["physical_exam", "assessment", "assessment", "assessment"]


def test_letters_of_a_soap_note():
    text = "S. Here for follow-up of gout.\nO. Afebrile. No swelling.\nA. Gout.\nP. Allopurinol."
    assert [it.kind for it in sections(text)] == ["hpi", "physical_exam", "assessment", "assessment"]
    assert [it.kind for it in sections("A. Gout.\nB. Asthma.\nP. Allopurinol.")] == ["start"]
