"""Claims of outpatient visits: what the assessment names, the symptom of an open problem, sides, encounters, order."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from nosology.claims.claim import Claim, build_claim
from nosology.claims.draft import Draft
from nosology.claims.encounter import Encounter
from nosology.claims.final_set import join_encounters
from nosology.serving.coder import Coder

TITLES = Path(__file__).parent / "cases" / "problem_titles.tsv"
NOTE = """CHIEF COMPLAINT

{complaint}

HISTORY OF PRESENT ILLNESS

The patient is a 54-year-old man who presents today. He was told that he has cirrhosis. He takes naproxen for gout.

REVIEW OF SYSTEMS

Positive for fatigue and dizziness.

PHYSICAL EXAM

Heart: Systolic murmur. Legs: Edema.

ASSESSMENT AND PLAN

{assessment}

We went over all of this today, and the patient knows what to do next. He will call us with any questions that he has in
the meantime, and I will see him again in the clinic in about six weeks.
"""


@pytest.fixture(scope="module")
def coder():
    return Coder.for_claims("day-one")


def visit(coder, assessment: str, complaint: str = "Follow-up.") -> Claim:
    text = NOTE.format(assessment=assessment, complaint=complaint)
    return build_claim("", text, coder.code(text), {"setting": "outpatient"})


def codes(claim: Claim) -> list[str]:
    return [item.code for item in claim.codes]


@pytest.mark.parametrize(
    ("assessment", "expected"),
    [
        ("Hypertension.\n- Not at goal. Fatigue and dizziness can be side effects.", ["I10"]),
        ("1. Hypertension. No anemia.\n2. Asthma. Stable.", ["I10", "J45.909"]),
        ("He has hypertension. He may have asthma.", ["I10"]),
        ("Hypertension.\n- His father had a stroke.\n- He had kidney stones in 2010.", ["I10"]),
        ("Hypertension.\n- Annual eye exam and screening colonoscopy next year.", ["I10"]),
        ("Hypertension.\n- He has a history of asthma, on no inhaler.", ["I10"]),
        ("Chronic systolic heart failure.\n- Stable.\n\nHypertension.\n- Stable.", ["I11.0", "I50.22"]),
    ],
)
def test_the_problems_of_the_assessment_are_coded_in_their_order(coder, assessment, expected):
    assert codes(visit(coder, assessment)) == expected


def test_a_problem_that_is_over_is_not_coded_as_current(coder):
    found = visit(coder, "Pneumonia, resolved.\n- Clear lungs.\n\nHypertension.\n- Stable.")
    assert codes(found)[0] == "I10" and "J18.9" not in codes(found)


@pytest.mark.parametrize(
    "assessment",
    [
        "I believe this is a medial meniscus tear.",
        "Suspected medial meniscus tear.\n- MRI ordered.",
        "This is likely a medial meniscus tear.",
        "It appears that he has a medial meniscus tear.",
        "Right knee pain, likely due to osteoarthritis.",
        "We will get an MRI to look for a medial meniscus tear.",
    ],
)
def test_the_symptom_stays_if_its_cause_is_uncertain(coder, assessment):
    assert codes(visit(coder, assessment, "Right knee pain.")) == ["M25.561"]


@pytest.mark.parametrize(
    ("assessment", "complaint", "expected"),
    [
        ("Right knee pain due to osteoarthritis.", "Follow-up.", "M17.11"),
        ("Carpal tunnel syndrome.\n- Splint for the left wrist.", "Numb hand.", "G56.02"),
        ("This is a medial meniscus tear.", "Right knee pain.", "S83.241A"),
        ("Carpal tunnel syndrome.\n- Right worse than left.", "Numb hands.", "G56.00"),
        ("Nondisplaced fracture of the left fifth metatarsal.", "Foot injury.", "S92.355A"),
    ],
)
def test_the_side_of_the_problem(coder, assessment, complaint, expected):
    assert codes(visit(coder, assessment, complaint)) == [expected]


def test_a_problem_of_its_own_is_not_a_part_of_another(coder):
    found = visit(coder, "Neoplasm of uncertain behavior of skin.\n- Biopsy.\n\nSeborrheic keratosis.\n- Benign.")
    assert codes(found) == ["D48.5", "L82.1"]


def test_one_side_beside_both(coder):
    both = visit(coder, "Bilateral carpal tunnel syndrome, right carpal tunnel syndrome is worse.")
    assert codes(both) == ["G56.03"]


def test_a_later_encounter_replaces_the_initial_one_of_the_same_injury():
    draft = Draft("", Encounter())
    for code in ("S92.354A", "S92.354D", "S52.502A"):
        draft.add(code, 0.8, (), "")
    join_encounters(draft)
    assert list(draft.entries) == ["S92.354D", "S52.502A"]


def test_a_routine_examination_comes_first(coder):
    text = "CC: Annual physical.\n\nAssessment:\n1. Hypertension.\n2. Screening colonoscopy today.\n3. Annual physical."
    found = build_claim("", text, coder.code(text), {"setting": "outpatient"})
    assert codes(found)[0].startswith("Z00.0")


def test_findings_are_left_out_without_an_assessment(coder):
    text = "HPI: Here for hypertension.\n\nREVIEW OF SYSTEMS: Positive for fatigue.\n\nPHYSICAL EXAM: Leg edema."
    found = build_claim("", text, coder.code(text), {"setting": "outpatient"})
    assert codes(found) == ["I10"]


def test_clinic_notes_with_an_exam_are_no_radiology_reports(coder):
    text = "HPI: Cough.\n\nExam: Lungs clear.\n\nA/P: Acute bronchitis."
    assert build_claim("", text, coder.code(text), {"setting": "outpatient"}).encounter.role == "attending"


def test_titles_of_problems(coder):
    """Common titles give their codes; the share is below 1 so that one change of a term does not break it."""
    rows = list(csv.DictReader(TITLES.read_text(encoding="utf-8").splitlines(), delimiter="\t"))
    texts = [NOTE.format(assessment=f"{row['title']}.\n- Stable.", complaint="Follow-up.") for row in rows]
    claims = [
        build_claim("", text, found, {"setting": "outpatient"}) for text, found in zip(texts, coder.code_all(texts))
    ]
    right = sum(set(codes(claim)) == set(row["codes"].split()) for claim, row in zip(claims, rows))
    assert right >= 0.95 * len(rows)
