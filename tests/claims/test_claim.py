"""A claim as a whole: invariants on any text, the fields of its JSON, the encounter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nosology
from nosology.claims.checks import excluded_by
from nosology.claims.claim import STAGES, build_claim
from nosology.codes import table
from nosology.core import ConfigError, Suggestion
from nosology.serving.coder import Coder

CASES = Path(__file__).parent / "cases"
SENTENCES = [json.loads(line)["text"] for line in (CASES / "sentences_dev.jsonl").read_text("utf-8").splitlines()]
TEXT = "DISCHARGE DIAGNOSES:\n1. Hypertension\n2. CKD stage 4\n3. Chronic diastolic heart failure\n4. No pneumonia"


@pytest.fixture(scope="module")
def coder():
    return Coder.for_claims("day-one")


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=8),
    joiner=st.sampled_from([" ", "\n", "\n\nASSESSMENT:\n", "; "]),
    setting=st.sampled_from(["inpatient", "outpatient", "emergency"]),
)
def test_invariants(coder, parts, joiner, setting):
    text = joiner.join(parts)
    claim = build_claim("note", text, coder.code(text), {"setting": setting})
    codes = [item.code for item in claim.codes]
    lines = table("icd10cm")
    assert len(set(codes)) == len(codes) and all(map(lines.billable, codes))
    assert [item.role for item in claim.codes] == ["principal", *["secondary"] * len(codes)][: len(codes)]
    assert not [(a, b) for a in codes for b in codes if a < b and excluded_by(lines, a, b)]
    for item in claim.codes:
        assert item.evidence and all(0 <= span.start < span.end <= len(text) for span in item.evidence)
        assert (item.basis == "rule") == bool(item.rule) and 0 < item.probability < 1
        assert (item.poa != "") == (setting == "inpatient")
    assert all(item.reason and item.rule for item in claim.left_out)
    assert claim == build_claim("note", text, coder.code(text), {"setting": setting})


def test_json_has_the_documented_fields(coder):
    record = build_claim("n1", TEXT, coder.code(TEXT), {"setting": "inpatient", "sex": "F", "age": 70}).to_json()
    assert record == json.loads(json.dumps(record)) and record["id"] == "n1"
    assert [item["code"] for item in record["codes"]] == ["I13.0", "N18.4", "I50.32"]
    assert {
        "system", "code", "description", "probability", "accepted", "role", "poa", "evidence", "basis", "rule"
    } == set(record["codes"][0])  # fmt: skip
    for item in record["codes"]:
        assert all(TEXT[span["start"] : span["end"]] == span["text"] for span in item["evidence"])
    reasons = {item["code"]: item["rule"] for item in record["left_out"]}
    assert reasons["I10"] == "hypertension-heart-failure-kidney-disease"
    assert {"queries", "conflicts", "groups"} <= set(record)


def test_the_public_function_takes_the_fields_of_an_encounter():
    claim = nosology.claim("Probable pneumonia. Cough.", setting="outpatient", date="2025-11-03")
    assert {item.code for item in claim.codes} == {"R05.9"}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"setting": "home"}, "setting must be one of inpatient, outpatient, emergency"),
        ({"sex": "x"}, "sex must be F or M"),
        ({"age": 200}, "age must be between 0 and 130"),
        ({"age": "old"}, "age must be a number"),
        ({"date": "yesterday"}, "date must be YYYY-MM-DD"),
        ({"admitted": "2025-11-08", "discharged": "2025-11-03"}, "discharged must not be before admitted"),
        ({"role": "surgeon"}, "role must be one of"),
    ],
)
def test_wrong_fields_are_refused(stated, message):
    with pytest.raises(ConfigError, match=message):
        build_claim("note", "Gout.", [], stated)


def test_codes_are_those_of_the_date(coder):
    text = "Chronic kidney disease stage 3."
    codes = {
        date: {item.code for item in build_claim("n", text, coder.code(text), {"date": date}).codes}
        for date in ("2019-11-03", "2025-11-03")
    }
    assert codes == {"2019-11-03": {"N18.3"}, "2025-11-03": {"N18.30"}}


def test_a_code_of_an_old_release_is_no_conflict(coder):
    text = "Chronic kidney disease stage 3."
    claim = build_claim("n", text, coder.code(text), {"date": "2019-11-03"})
    assert [item.code for item in claim.codes] == ["N18.3"] and claim.conflicts == ()


def test_weak_evidence_never_empties_a_claim(coder):
    text = "Cough and fever. Assessment: probable pneumonia."
    claim = build_claim("n", text, coder.code(text), {"setting": "outpatient"})
    assert {item.code for item in claim.codes} == {"R05.9", "R50.9"}


def test_suggestions_without_evidence_are_left_out(coder):
    unsupported = Suggestion("icd10cm", "E11.9", "", 0.99, accepted=True)
    claim = build_claim("n", "Gout.", [*coder.code("Gout."), unsupported], {})
    assert [item.code for item in claim.codes] == ["M10.9"]
    assert [(item.code, item.rule) for item in claim.left_out] == [("E11.9", "weak-evidence")]
    alone = build_claim("n", "Gout.", [unsupported], {})
    assert alone.codes == () and len(alone.left_out) == 1


def test_an_empty_note_has_an_empty_claim(coder):
    claim = build_claim("note", "", coder.code(""), {})
    assert claim.codes == claim.left_out == claim.queries == claim.conflicts == ()


def test_every_stage_can_be_turned_off(coder):
    suggestions = coder.code(TEXT)
    mentioned = {item.code for item in build_claim("note", TEXT, suggestions, {}, off=STAGES).codes}
    assert "I10" in mentioned and "I13.0" not in mentioned
