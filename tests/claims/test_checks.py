"""Checks of assigned codes, and payment groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.claims.assigned_codes import AssignedCode
from nosology.claims.checks import check_codes
from nosology.claims.grouping import drg_version_on, payment_groups
from nosology.codes import table
from nosology.codes.tabular import CodeReference, code_references
from nosology.core import Code, Span
from nosology.workbench.review import Review


def reviewed(*codes: str, poa: str = "") -> Review:
    return Review(
        chosen=tuple(
            AssignedCode(Code("icd10pcs" if len(c) == 7 and "." not in c else "icd10cm", c), "added", poa)
            for c in codes
        )
    )


def found(*codes: str, **encounter) -> dict[str, list]:
    by_kind: dict[str, list] = {}
    for item in check_codes(reviewed(*codes), encounter):
        by_kind.setdefault(item.kind, []).append(item)
    return by_kind


@pytest.mark.parametrize(
    ("note", "inside", "outside"),
    [
        ("heart failure due to hypertension (I11.0)", ["I11.0"], ["I11.9", "I11"]),
        ("disorders of mineral metabolism (E83.-)", ["E83.01", "E83"], ["E84.0"]),
        ("pneumonia in coccidioidomycosis (B38.0-B38.2)", ["B38.1", "B38.2"], ["B38.3", "B39.0"]),
        (
            "adverse effect (T36-T50 with fifth or sixth character 5)",
            ["T36.0X5A", "T50.995A"],
            ["T36.0X1A", "T51.0X5A"],
        ),
        ("any associated otitis media (H65.-, H66.1-)", ["H65.01", "H66.11"], ["H66.20"]),
        ("mononeuropathy (E08-E13 with .41)", ["E11.41"], ["E11.42", "E14.41"]),
        (
            "fluency disorder (stuttering) following cerebrovascular disease (I69. with final characters -23)",
            ["I69.023"],
            ["I69.022"],
        ),
        ("vitamin B12 deficiency", [], ["B12"]),
    ],
)
def test_references_of_tabular_notes(note, inside, outside):
    found = code_references(note)
    assert all(any(reference.covers(code) for reference in found) for code in inside)
    assert not any(reference.covers(code) for reference in found for code in outside)


@given(st.sampled_from(table("icd10cm").codes()), st.sampled_from(table("icd10cm").codes()))
def test_a_range_covers_the_codes_between_its_ends(one, other):
    first, last = sorted((one[:3], other[:3]))
    assert CodeReference(first, last).covers(one) and CodeReference(first, last).covers(other)


def test_excludes1_is_reported_once():
    conflicts = found("E10.9", "E11.9")["excludes1"]
    assert len(conflicts) == 1 and conflicts[0].level == "error"
    assert "E10.9" in conflicts[0].message and "E11.9" in conflicts[0].message
    assert "excludes1" not in found("E11.9", "I10")


def test_code_first_and_use_additional():
    late = found("I50.9", "I11.0")["code_first"][0]
    assert late.level == "warning" and "I11.0 must come before I50.9" in late.message
    assert "code_first" not in found("I11.0", "I50.9")
    assert any("Z37.0" in item.message for item in found("O80")["use_additional"])
    assert not any("Z37.0" in item.message for item in found("O80", "Z37.0").get("use_additional", []))


def test_codes_that_are_not_billable_offer_their_children():
    item = found("M54.5")["not_billable"][0]
    assert [item.code for item in item.alternatives] == ["M54.50", "M54.51", "M54.59"]
    assert "unspecific" in found("I50.9") and "unspecific" not in found("I50.23")


def test_laterality():
    open_side = found("H26.9")
    assert "laterality" not in open_side
    assert {item.code for item in found("H25.019")["laterality"][0].alternatives} >= {"H25.011", "H25.012"}
    both = found("H25.011", "H25.012")["laterality"]
    assert any("bilateral" in item.message and item.alternatives[0].code == "H25.013" for item in both)
    text = "Cortical cataract of the left eye."
    said = check_codes(reviewed("H25.011"), {}, text, {Code("icd10cm", "H25.011"): [Span(26, 34)]})
    assert any("says right, the note says left" in item.message for item in said)
    assert not [
        i
        for i in check_codes(reviewed("H25.012"), {}, text, {Code("icd10cm", "H25.012"): [Span(26, 34)]})
        if i.kind == "laterality"
    ]


def test_sex_and_age():
    assert found("C61", sex="F")["sex"][0].level == "error"
    assert "sex" not in found("C61", sex="M") and "sex" not in found("C61")
    assert found("O80", sex="F", age=70)["age"][0].level == "warning"
    assert "age" not in found("O80", sex="F", age=30)


def test_release_of_the_encounter_date():
    old = found("M54.50", date="2020-03-01")["release"][0]
    assert old.level == "error" and [item.code for item in old.alternatives] == ["M54.5"]
    assert "release" not in found("M54.50", date="2023-03-01")
    nine = check_codes(Review(chosen=(AssignedCode(Code("icd9cm", "428.0"), "added"),)), {"date": "2020-01-01"})
    assert any(item.kind == "release" and item.level == "error" for item in nine)


def test_present_on_admission_is_checked_for_inpatients():
    assert "poa" in found("I10", kind="inpatient")
    assert "poa" not in found("I10")
    assert not [i for i in check_codes(reviewed("I10", poa="Y"), {"kind": "inpatient"}) if i.kind == "poa"]


def test_errors_come_first():
    levels = [item.level for item in check_codes(reviewed("I50.9", "E10.9", "E11.9"), {})]
    assert levels == sorted(levels, key=("error", "warning", "hint").index)


def test_payment_groups():
    made = payment_groups(
        reviewed("I50.23", "J96.01", "N17.9", "E11.65"), {"sex": "F", "age": 70, "date": "2025-11-01"}
    )
    assert made.drg == 291 and "Heart Failure" in made.drg_title
    assert made.severity[Code("icd10cm", "J96.01")] == "MCC"
    assert made.severity[Code("icd10cm", "N17.9")] == "CC"
    assert made.hcc[Code("icd10cm", "E11.65")] and made.risk > 0
    assert payment_groups(reviewed("I50.23"), {}).drg is None


def test_drg_version_of_a_date():
    versions = (400, 401, 410, 411, 420, 421, 430, 431)
    assert drg_version_on("2025-10-01", versions) == 430
    assert drg_version_on("2025-09-30", versions) == 421
    assert drg_version_on("2025-02-01", versions) == 420
    assert drg_version_on("2010-02-01", versions) == 400
    assert drg_version_on(None, versions) == 431
