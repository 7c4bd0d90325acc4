"""Assigned codes and their checks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosology.claims.checks import AssignedCode, AssignedCodes, check_codes
from nosology.claims.laterality import side_variants
from nosology.codes import table
from nosology.codes.tabular import CodeReference, code_references
from nosology.core import Code, Span


def assigned(*codes: str, poa: str = "") -> AssignedCodes:
    return AssignedCodes(
        chosen=tuple(
            AssignedCode(Code("icd10pcs" if len(c) == 7 and "." not in c else "icd10cm", c), "added", poa)
            for c in codes
        )
    )


def issues_of(*codes: str, **encounter) -> dict[str, list]:
    by_kind: dict[str, list] = {}
    for item in check_codes(assigned(*codes), encounter):
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
    references = code_references(note)
    assert all(any(reference.covers(code) for reference in references) for code in inside)
    assert not any(reference.covers(code) for reference in references for code in outside)


@given(st.sampled_from(table("icd10cm").codes()), st.sampled_from(table("icd10cm").codes()))
def test_a_range_covers_the_codes_between_its_ends(one, other):
    first, last = sorted((one[:3], other[:3]))
    assert CodeReference(first, last).covers(one) and CodeReference(first, last).covers(other)


def test_excludes1_is_reported_once():
    conflicts = issues_of("E10.9", "E11.9")["excludes1"]
    assert len(conflicts) == 1 and conflicts[0].level == "error"
    assert "E10.9" in conflicts[0].message and "E11.9" in conflicts[0].message
    assert "excludes1" not in issues_of("E11.9", "I10")


def test_code_first_and_use_additional():
    late = issues_of("I50.9", "I11.0")["code_first"][0]
    assert late.level == "warning" and "I11.0 must come before I50.9" in late.message
    assert "code_first" not in issues_of("I11.0", "I50.9")
    assert any("Z37.0" in item.message for item in issues_of("O80")["use_additional"])
    assert not any("Z37.0" in item.message for item in issues_of("O80", "Z37.0").get("use_additional", []))


def test_codes_that_are_not_billable_offer_their_children():
    item = issues_of("M54.5")["not_billable"][0]
    assert [item.code for item in item.alternatives] == ["M54.50", "M54.51", "M54.59"]
    assert "unspecific" in issues_of("I50.9") and "unspecific" not in issues_of("I50.23")


def test_laterality():
    open_side = issues_of("H26.9")
    assert "laterality" not in open_side
    assert {item.code for item in issues_of("H25.019")["laterality"][0].alternatives} >= {"H25.011", "H25.012"}
    both = issues_of("H25.011", "H25.012")["laterality"]
    assert any("bilateral" in item.message and item.alternatives[0].code == "H25.013" for item in both)
    text = "Cortical cataract of the left eye."
    issues = check_codes(assigned("H25.011"), {}, text, {Code("icd10cm", "H25.011"): [Span(26, 34)]})
    assert any("says right, the note says left" in item.message for item in issues)
    assert not [
        i
        for i in check_codes(assigned("H25.012"), {}, text, {Code("icd10cm", "H25.012"): [Span(26, 34)]})
        if i.kind == "laterality"
    ]


def test_sex_and_age():
    assert issues_of("C61", sex="F")["sex"][0].level == "error"
    assert "sex" not in issues_of("C61", sex="M") and "sex" not in issues_of("C61")
    assert issues_of("O80", sex="F", age=70)["age"][0].level == "warning"
    assert "age" not in issues_of("O80", sex="F", age=30)


def test_release_of_the_encounter_date():
    old = issues_of("M54.50", date="2020-03-01")["release"][0]
    assert old.level == "error" and [item.code for item in old.alternatives] == ["M54.5"]
    assert "release" not in issues_of("M54.50", date="2023-03-01")
    nine = check_codes(AssignedCodes(chosen=(AssignedCode(Code("icd9cm", "428.0"), "added"),)), {"date": "2020-01-01"})
    assert any(item.kind == "release" and item.level == "error" for item in nine)


@pytest.mark.parametrize("date", ["", "2025-11-03", "2016-03-01"])
def test_a_code_of_no_release_is_an_error_with_and_without_a_date(date):
    for code in ("K99.9", "I50.77"):
        assert "no known release has it" in issues_of(code, date=date)["release"][0].message
    assert not [it for it in issues_of("I50.9", date=date).get("release", ()) if "no known release" in it.message]
    wrong = AssignedCodes(
        (AssignedCode(Code("icd10cm", "I10"), "added"), AssignedCode(Code("icd10pcs", "0000001"), "a"))
    )
    assert any("0000001 is not a code of icd10pcs" in item.message for item in check_codes(wrong, {"date": date}))


def test_present_on_admission_is_checked_for_inpatients():
    assert "poa" in issues_of("I10", kind="inpatient")
    assert "poa" not in issues_of("I10")
    assert not [i for i in check_codes(assigned("I10", poa="Y"), {"kind": "inpatient"}) if i.kind == "poa"]


def test_errors_come_first():
    levels = [item.level for item in check_codes(assigned("I50.9", "E10.9", "E11.9"), {})]
    assert levels == sorted(levels, key=("error", "warning", "hint").index)


def test_code_first_for_adverse_effects_is_not_for_poisonings():
    assert "code_first" not in issues_of("T39.011A", "K29.00")
    assert "code_first" not in issues_of("T37.91XA", "K29.00")
    assert issues_of("T39.015A", "K29.00")["code_first"][0].message == "K29.00 must come before T39.015A (T36-T50)"
    assert issues_of("T37.95XA", "K29.00")["code_first"][0].level == "warning"


@pytest.mark.parametrize("code", ["I50.9", "I82.401", "I42.9", "E66.9"])
def test_code_first_of_what_may_not_be_there_is_a_hint(code):
    assert {item.level for item in issues_of(code)["code_first"]} == {"hint"}


def test_code_first_of_an_underlying_disease_is_a_warning():
    assert issues_of("F02.80")["code_first"][0].level == "warning"
    assert issues_of("D63.1")["code_first"][0].level == "warning"


def test_excludes1_reads_the_seventh_character():
    assert "excludes1" not in issues_of("S01.112A", "S02.5XXA")
    assert "excludes1" in issues_of("S01.112A", "S02.5XXB")


def test_age_in_fractions_of_a_year():
    assert "age" not in issues_of("P27.1", age=0.5)
    assert issues_of("P27.1", age=1.5)["age"][0].level == "warning"


def test_a_code_without_a_side_in_its_condition_is_not_asked_for_one():
    assert "laterality" not in issues_of("L89.154") and "laterality" not in issues_of("M54.50")
    [issue] = issues_of("S52.509A")["laterality"]
    assert [item.code for item in issue.alternatives] == ["S52.501A", "S52.502A"], "the seventh character stays"


def test_every_code_offered_for_its_side_is_billable_and_of_the_same_condition():
    codes = table("icd10cm")
    billable = [code for code in codes.codes() if codes.billable(code)]
    asked = {code: variants for code in billable if (variants := side_variants(codes, code))}
    assert len(asked) > 20_000
    for code, variants in asked.items():
        assert all(codes.billable(variant) and variant[7:] == code[7:] for variant in variants.values()), code
        if code not in variants.values():
            assert "unspecified" in codes.description(code).lower(), code


def test_an_indicator_for_a_code_that_needs_none_is_reported():
    assert "poa" not in issues_of("Z79.4", kind="inpatient"), "it is exempt"
    exempt = [i for i in check_codes(assigned("Z79.4", poa="Y"), {"kind": "inpatient"}) if i.kind == "poa"]
    assert [(item.level, item.message) for item in exempt] == [("warning", "Z79.4 is exempt from present on admission")]
    wrong = [i for i in check_codes(assigned("I10", poa="1"), {"kind": "inpatient"}) if i.kind == "poa"]
    assert [item.level for item in wrong] == ["error"]


def test_excludes1_of_two_notes_is_reported_once():
    assert len(issues_of("R73.03", "E11.9")["excludes1"]) == 1


def test_all_associated_codes_come_first_and_one_of_several_causes():
    (late,) = issues_of("I13.0", "N18.32", "E11.22")["code_first"]
    assert late.message == "E11.22 must come before N18.32 (N18)"
    assert "code_first" not in issues_of("G30.9", "F02.A0", "E03.9")
