"""Documentation gaps: which ones a claim has, what their answers change, and how they are ranked."""

from __future__ import annotations

import json

import pytest

from nosology.claims.claim import build_claim
from nosology.claims.documentation_gaps import Answer, Gap, _billable, find_gaps, query_answers
from nosology.claims.gap_ranking import EncounterGap, answer_shares, likely_change, rank_gaps
from nosology.claims.rules import rules
from nosology.codes import table
from nosology.serving.coder import Coder

STAY = {"setting": "inpatient", "sex": "F", "age": 78, "date": "2026-02-01"}
TEXT = "DISCHARGE DIAGNOSES:\n1. Pneumonia\n2. Heart failure, continue furosemide\n"


@pytest.fixture(scope="module")
def coder():
    return Coder.for_claims("day-one", systems=["icd10cm"])


def claim_of(coder, text, stated):
    return build_claim("a", text, coder.code(text), stated)


def gap(subject, *answers, question="?", drg=195):
    return Gap("specificity", subject, "Missing.", "X", question, (), answers, drg)


def test_answers_of_a_query_replace_the_open_code_and_change_the_groups(coder):
    claim = claim_of(coder, TEXT, STAY)
    assert [item.code for item in claim.codes][:2] == ["J18.9", "I50.9"]
    by_subject = {item.subject: item for item in find_gaps(claim)}
    failure = by_subject["query-heart-failure-type"]
    assert (failure.kind, failure.code) == ("specificity", "I50.9")
    assert [claim.text[span.start : span.end] for span in failure.evidence] == ["Heart failure"]
    drgs = {answer.code: answer.drg for answer in failure.answers}
    # I50.9 is neither CC nor MCC, chronic failure is a CC, acute failure an MCC.
    assert (failure.drg, drgs["I50.22"], drgs["I50.21"]) == (195, 194, 193)
    assert all(answer.risk is not None and answer.weight is None for answer in failure.answers)
    assert Gap.of_json(json.loads(json.dumps(failure.to_json()))) == failure


def test_a_finding_without_diagnosis_adds_a_code(coder):
    claim = claim_of(coder, f"{TEXT}Labs: Na 122. Fluid restriction started.", STAY)
    sodium = {item.subject: item for item in find_gaps(claim)}["query-sodium-low"]
    assert (sodium.kind, sodium.code, [answer.code for answer in sodium.answers]) == ("diagnosis", "", ["E87.1"])
    assert sodium.can_change_drg  # hyponatremia is a CC


def test_open_sides_and_unspecified_codes_are_gaps_but_not_combined_ones(coder):
    text = "DISCHARGE DIAGNOSES: Acute kidney injury. Hypertension. CKD stage 4. Chronic systolic CHF. Knee pain."
    found = {item.subject: item for item in find_gaps(claim_of(coder, text, STAY))}
    assert found["N17.9"].kind == "unspecified" and "N17.0" in [answer.code for answer in found["N17.9"].answers]
    assert "I13.0" not in found  # "stage 1 through stage 4, or unspecified": the stage is stated
    assert found["M25.569"].kind == "side"
    assert {"M25.561", "M25.562"} <= {answer.code for answer in found["M25.569"].answers}


def test_every_query_of_a_code_or_finding_has_answers_that_exist():
    listed = {rule for rule, _ in query_answers()}
    asked = {rule.id for rule in rules() if rule.query}
    assert asked - listed == {"query-pressure-ulcer-stage"}  # the stages of the same site
    assert listed <= asked
    for names in query_answers().values():
        assert all(name in table("icd10cm") and _billable(None, (name,)) for name in names)


def test_likely_changes_follow_the_frequency_of_codes():
    two = (Answer("I50.22", 194, 0.2, 0.1), Answer("I50.21", 193, 0.7, 0.1))
    assert answer_shares(gap("q", *two), {}) == [0.5, 0.5]
    assert answer_shares(gap("q", *two), {"I50.22": 2}) == [0.75, 0.25]
    assert likely_change(gap("q", *two), "weight", {"I50.22": 2}) == pytest.approx(0.75 * 0.2 + 0.25 * 0.7)
    plain = gap("I50.9", *two, question="")
    assert answer_shares(plain, {}) == [] and likely_change(plain, "weight", {}) is None
    assert likely_change(plain, "weight", {"I50.21": 1}) == pytest.approx(0.7)


def test_ranks_are_by_likely_weight_then_drg_then_risk():
    items = [
        EncounterGap("1", "surgery", gap("risk", Answer("a", 195, 0.0, 0.9)), ()),
        EncounterGap("2", "surgery", gap("weight", Answer("b", 194, 0.2, 0.0)), ()),
        EncounterGap("3", "surgery", gap("weight", Answer("b", 194, 0.2, 0.0), Answer("c", 195, 0.0, 0.3)), ()),
        EncounterGap("4", "medicine", gap("drg", Answer("b", 194, None, None)), ()),
        EncounterGap("5", "medicine", gap("nothing"), ()),
    ]
    ranked = rank_gaps(items, {})
    assert [item.subject for item in ranked] == ["weight", "drg", "risk", "nothing"]
    first = ranked[0]
    assert (first.encounters, first.drg_can_change, first.drg_likely) == (2, 2, 1.5)
    assert (first.weight.low, first.weight.likely, first.weight.high) == (0.2, 0.3, 0.4)
    assert first.risk.encounters == 2 and ranked[1].risk.encounters == 0
    assert rank_gaps(items[::-1], {}) == ranked


def test_an_answer_that_cannot_be_grouped_changes_no_drg():
    ungrouped, other = Answer("D63.8", None, None, 0.1), Answer("D62", 194, 0.2, 0.1)
    assert not gap("q", ungrouped).can_change_drg and gap("q", ungrouped, other).can_change_drg
    items = [
        EncounterGap("1", "surgery", gap("q", ungrouped), ()),
        EncounterGap("2", "surgery", gap("q", ungrouped, other), ()),
    ]
    (ranked,) = rank_gaps(items, {})
    assert (ranked.encounters, ranked.drg_can_change, ranked.drg_likely) == (2, 1, 0.5)
    assert gap("q", other, drg=None).can_change_drg  # the claim itself has none
