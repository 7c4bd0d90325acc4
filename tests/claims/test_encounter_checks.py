"""Checks of the codes of an encounter by the rules of claims and the Medicare Code Editor."""

import pytest

from nosology.claims.checks import AssignedCode, AssignedCodes, check_codes
from nosology.claims.code_issue import CodeIssue
from nosology.claims.encounter_checks import check_encounter
from nosology.claims.grouping import payment_groups
from nosology.codes import release_on, table
from nosology.core import Code

INPATIENT = {"kind": "inpatient", "date": "2025-11-01", "sex": "F", "age": 70}


def issues_of(*codes: str, text: str = "", **encounter) -> list[CodeIssue]:
    assigned = AssignedCodes(tuple(AssignedCode(Code("icd10cm", code), "added") for code in codes))
    return check_encounter(assigned, INPATIENT | encounter, text)


def of_kind(kind: str, issues: list[CodeIssue]) -> list[tuple[str, str, list[str]]]:
    found = [issue for issue in issues if issue.kind == kind and issue.level != "hint"]
    return [(issue.code.code, issue.level, [code.code for code in issue.alternatives]) for issue in found]


@pytest.mark.parametrize(
    ("codes", "wrong", "offers"),
    [
        (("I10", "I50.9"), "I10", ["I11.0"]),
        (("I10", "N18.4"), "I10", ["I12.9"]),
        (("I10", "I50.9", "N18.6"), "I10", ["I13.2"]),
        (("E11.9", "E11.22", "N18.4"), "E11.9", []),
        (("O80", "O70.0", "Z37.0"), "O80", []),
    ],
)
def test_combinations_of_the_guidelines(codes, wrong, offers):
    assert of_kind("combination", issues_of(*codes, age=30 if codes[0] == "O80" else 70)) == [
        (wrong, "warning", offers)
    ]


@pytest.mark.parametrize("codes", [("I11.0", "I50.9"), ("E11.22", "N18.4"), ("O80", "Z37.0"), ("I10", "J18.9")])
def test_correct_sets_have_no_combination_issue(codes):
    assert not of_kind("combination", issues_of(*codes))


def test_the_same_problem_is_told_once():
    issues = [issue for issue in issues_of("R73.03", "E11.9") if issue.level != "hint"]
    assert [(issue.kind, issue.level) for issue in issues] == [("excludes1", "error")]


@pytest.mark.parametrize("code", ["Y92.9", "F02.80", "R65.20"])
def test_diagnoses_that_cannot_be_principal(code):
    assert of_kind("code_editor", issues_of(code, "A41.9")) == [(code, "error", [])]
    assert not of_kind("code_editor", issues_of("A41.9", code)), "as a secondary diagnosis it is accepted"
    assert not of_kind("code_editor", issues_of(code, kind="outpatient")), "the editor is for inpatients"


def test_ages_of_the_code_editor():
    assert of_kind("age", issues_of("J18.9", "Z38.00")) == [("Z38.00", "warning", [])]
    assert not of_kind("age", issues_of("Z38.00", age=0))


def test_billable_is_judged_by_the_date():
    assert not [issue for issue in issues_of("N18.3", date="2019-11-01") if issue.level == "error"]
    assert of_kind("not_billable", issues_of("N18.3")) == [("N18.3", "error", ["N18.30", "N18.31", "N18.32"])]
    assert of_kind("release", issues_of("N18.31", date="2019-11-01")) == [("N18.31", "error", ["N18.3"])]


def test_codes_and_dates_that_no_table_has_raise_nothing():
    assert issues_of("X99.999Z", "I10", date="1999-01-01")
    assert issues_of("I10", "I50.9", date="not a date")
    assert issues_of() == []


def test_the_discharge_counts_before_the_date():
    stay = {"date": "2025-11-01", "discharged": "2019-11-01", "admitted": "2019-10-28"}
    assert of_kind("release", issues_of("N18.31", **stay)) == [("N18.31", "error", ["N18.3"])]
    assigned = AssignedCodes((AssignedCode(Code("icd10cm", "I50.9"), "added"),))
    assert "before v40" in payment_groups(assigned, INPATIENT | stay).drg_reason


@pytest.mark.parametrize("day", ["2025-11-01", "2019-11-01"])
def test_every_code_that_is_offered_can_be_billed(day):
    codes = table("icd10cm", release_on(day))
    unspecific = [code for chapter in codes.chapters() for code in codes.descendants(chapter)]
    unspecific = [code for code in unspecific if codes.billable(code) and "nspecified" in codes.description(code)]
    assigned = [AssignedCodes((AssignedCode(Code("icd10cm", code), "added"),)) for code in unspecific[::60]]
    issues = [issue for codes_of_note in assigned for issue in check_codes(codes_of_note, {"date": day})]
    offered = {code.code for issue in issues for code in issue.alternatives}
    assert len(offered) > 500 and not [code for code in offered if not codes.billable(code)]


def test_procedures_are_judged_by_the_date_and_need_a_diagnosis():
    def errors(code: str, day: str) -> list[str]:
        codes = (Code("icd10cm", "M48.061"), Code("icd10pcs", code))
        assigned = AssignedCodes(tuple(AssignedCode(it, "added") for it in codes))
        return [it.message for it in check_encounter(assigned, INPATIENT | {"date": day}) if it.level == "error"]

    assert errors("0SG604Z", "2025-11-01") == ["0SG604Z is not in the code set of 2025-11-01 (release 2026)"]
    assert errors("0SG604Z", "2024-01-01") == errors("00503Z4", "2025-11-01") == []
    assert errors("00503Z4", "2024-01-01") == ["00503Z4 is not in the code set of 2024-01-01 (release 2024)"]
    assert errors("00503Z4", "2025-01-01") == [], "the release of that year is not known"
    alone = AssignedCodes((AssignedCode(Code("icd10pcs", "0DTJ4ZZ"), "added"),))
    assert [(it.kind, it.level) for it in check_encounter(alone, INPATIENT)] == [("principal", "error")]
