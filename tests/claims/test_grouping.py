"""Payment groups of assigned codes."""

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.claim import build_claim
from nosology.claims.grouping import drg_version_on, payment_groups
from nosology.core import Code, EvidenceSpan, Suggestion


def assigned(*codes: str) -> AssignedCodes:
    return AssignedCodes(tuple(AssignedCode(Code("icd10cm", code), "added") for code in codes))


def test_payment_groups():
    groups = payment_groups(
        assigned("I50.23", "J96.01", "N17.9", "E11.65"), {"sex": "F", "age": 70, "date": "2025-11-01"}
    )
    assert groups.drg == 291 and "Heart Failure" in groups.drg_title
    assert groups.severity[Code("icd10cm", "J96.01")] == "MCC"
    assert groups.severity[Code("icd10cm", "N17.9")] == "CC"
    assert groups.hcc[Code("icd10cm", "E11.65")] and groups.risk > 0
    assert payment_groups(assigned("I50.23"), {}).drg is None


def test_drg_version_of_a_date():
    versions = (400, 401, 410, 411, 420, 421, 430, 431)
    assert drg_version_on("2025-10-01", versions) == 430
    assert drg_version_on("2025-09-30", versions) == 421
    assert drg_version_on("2025-02-01", versions) == 420
    assert drg_version_on("2022-10-01", versions) == 400 and drg_version_on("2022-09-30", versions) is None
    assert drg_version_on(None, versions) == 431


def test_excluded_severity_is_apart_from_severity_that_counts():
    groups = payment_groups(assigned("A41.9", "R65.20"), {"sex": "F", "age": 70, "date": "2025-11-01"})
    assert "without MCC" in groups.drg_title and groups.drg_version == "v43"
    assert not groups.severity and groups.excluded == {Code("icd10cm", "R65.20"): "MCC"}
    counted = payment_groups(assigned("N17.9", "R65.20"), {"sex": "F", "age": 70, "date": "2025-11-01"})
    assert counted.severity == {Code("icd10cm", "R65.20"): "MCC"} and not counted.excluded


def test_the_reason_of_a_missing_drg_is_stated():
    external = payment_groups(assigned("Y92.9"), {"sex": "F", "age": 70, "date": "2025-11-01"})
    assert external.drg is None and external.drg_reason == "Y92.9 cannot be a principal diagnosis"
    early = payment_groups(assigned("I50.9"), {"sex": "F", "age": 70, "date": "2019-11-01"})
    assert early.drg is None and early.drg_reason == "no MS-DRG version before v40 (October 2022) is known"


def test_outpatients_have_no_drg():
    groups = payment_groups(assigned("I50.23", "J96.01"), {"sex": "F", "age": 70, "kind": "outpatient"})
    assert groups.drg is None and not groups.severity
    assert list(groups.hcc) == [Code("icd10cm", "I50.23"), Code("icd10cm", "J96.01")]


def suggestions(*codes: str) -> list[Suggestion]:
    return [Suggestion("icd10cm", code, "", 0.9, True, (EvidenceSpan(0, 4, "Text", 1.0),)) for code in codes]


def test_groups_of_a_claim():
    stated = {"setting": "inpatient", "sex": "F", "age": 70, "date": "2025-11-01"}
    claim = build_claim("n", "Text", suggestions("I50.23", "J96.01"), stated)
    assert claim.groups and claim.groups.drg
    groups = claim.to_json()["groups"]
    assert groups["drg"] == claim.groups.drg and "MCC" in groups["severity"].values() and groups["risk"] > 0


def test_a_claim_has_no_groups_without_age_or_groupers(monkeypatch):
    assert "groups" not in build_claim("n", "Text", suggestions("I50.23"), {"setting": "inpatient"}).to_json()
    monkeypatch.setattr("nosology.claims.grouping._drg_grouper", lambda: None)
    monkeypatch.setattr("nosology.claims.grouping._hcc_model", lambda: None)
    claim = build_claim("n", "Text", suggestions("I50.23"), {"setting": "inpatient", "sex": "F", "age": 70})
    assert claim.groups is None and "groups" not in claim.to_json()


def test_codes_exempt_from_present_on_admission_are_grouped():
    chosen = [AssignedCode(Code("icd10cm", code), "added", poa) for code, poa in (("J18.9", "Y"), ("Z79.4", "1"))]
    assert payment_groups(AssignedCodes(tuple(chosen)), {"sex": "F", "age": 68, "kind": "inpatient"}).drg
