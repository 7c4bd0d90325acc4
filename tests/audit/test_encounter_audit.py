"""The audit of one encounter: each kind of finding with its evidence, reason and effect."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from nosology.audit.correction import corrected
from nosology.audit.encounter_audit import audit_encounter
from nosology.audit.finding import KINDS, BilledCode, Finding
from nosology.codes import table
from nosology.core import Code, ConfigError, EvidenceSpan, Suggestion
from nosology.serving.coder import Coder

TEXT = """DISCHARGE DIAGNOSES:
1. Acute on chronic systolic heart failure
2. Essential hypertension
3. CKD stage 4
4. No pneumonia
"""
RIGHT = ("I13.0", "I50.23", "N18.4")
STATED = {"setting": "inpatient", "sex": "F", "age": 70, "date": "2025-11-03"}


@pytest.fixture(scope="module")
def coder():
    return Coder.for_claims("day-one")


def audit(coder, codes, text=TEXT, stated=STATED, **more):
    billed = [BilledCode(Code("icd10cm", code.partition(":")[0]), code.partition(":")[2]) for code in codes]
    return audit_encounter("n", text, billed, coder.code(text), stated, **more)


def by_code(result):
    return {item.code.code: item for item in result.findings}


def words(item):
    return [TEXT[span.start : span.end] for span in item.evidence]


def test_a_right_bill_has_no_findings_and_its_evidence(coder):
    result = audit(coder, [f"{code}:Y" for code in RIGHT])
    assert result.findings == ()
    assert [code.code for code in result.supported] == list(RIGHT) and all(result.supported.values())


def test_a_denied_mention_explains_an_unsupported_code(coder):
    (item,) = audit(coder, [*RIGHT, "J18.9"]).findings
    assert (item.kind, item.code.code, item.rule) == ("unsupported", "J18.9", "negated")
    assert words(item) == ["pneumonia"] and item.confidence == 0.9


def test_a_disease_of_a_relative_explains_an_unsupported_code(coder):
    text = TEXT + "\nFAMILY HISTORY: father had gout.\n"
    item = by_code(audit(coder, [*RIGHT, "M10.9"], text))["M10.9"]
    assert (item.kind, item.rule) == ("unsupported", "relative")
    assert [text[span.start : span.end] for span in item.evidence] == ["gout"]


@pytest.mark.parametrize(
    ("billed", "added", "rule", "words_of_it"),
    [
        ("M10.071", "FAMILY HISTORY: father had gout.", "relative", "gout"),
        ("J18.1", "", "negated", "pneumonia"),
        ("C50.911", "FAMILY HISTORY: mother had breast cancer.", "relative", "breast cancer"),
    ],
)
def test_an_objection_to_a_code_of_the_category_explains_an_unsupported_code(coder, billed, added, rule, words_of_it):
    text = f"{TEXT}\n{added}\n"
    item = by_code(audit(coder, [*RIGHT, billed], text))[billed]
    assert (item.kind, item.rule) == ("unsupported", rule) and "of its category: the note" in item.reason
    assert words_of_it in [text[span.start : span.end] for span in item.evidence] and item.looked_for


def test_a_mention_of_the_category_that_counts_is_no_objection(coder):
    text = f"{TEXT}\nGout of the left knee.\nFAMILY HISTORY: father had gout.\n"
    found = by_code(audit(coder, [*RIGHT, "M10.071"], text))["M10.071"]
    assert found.rule != "relative"


def test_every_finding_has_words_or_names_and_its_words_do_not_overlap(coder):
    text = TEXT + "\nPMH: type 2 diabetes mellitus, type 2 DM without complications. Asthma, resolved.\n"
    lines = [line for line in table("icd10cm").codes(billable=True) if line[0] in "CEIJKMNOQZ"]
    chance = random.Random(0)
    bills = [[*RIGHT, *chance.sample(lines, 12)] for _ in range(15)]
    bills += [["I10", "I13.0", "I50.9", "E11.9", "E10.9"], ["K99.9", "ZZ9.9"], ["C61", "P07.00", "O80", "I13.0"]]
    kinds = set()
    for codes in bills:
        billed = [BilledCode(Code("icd10cm", code), "1") for code in codes]
        billed += [BilledCode(Code("icd10pcs", code)) for code in ("0DTJ4ZZ", "0000001")]
        result = audit_encounter("n", text, billed, coder.code(text), STATED)
        kinds |= {item.kind for item in result.findings}
        for item in result.findings:
            assert item.evidence or any(item.looked_for), item
            assert all(one.end <= other.start for one, other in pairwise(item.evidence)), item
        assert all(one.end <= other.start for spans in result.supported.values() for one, other in pairwise(spans))
    assert kinds >= {"unsupported", "conflict", "poa", "not_billed"}


def test_a_conflict_has_the_words_of_its_code_or_what_was_looked_for(coder):
    found = [item for item in audit(coder, [*RIGHT, "J18.9", "C61"]).findings if item.kind == "conflict"]
    by_rule = {item.rule: item for item in found if item.code.code == "C61"}
    assert "Malignant neoplasm of prostate" in by_rule["sex"].looked_for


def test_a_code_of_no_release_is_a_conflict_also_without_a_date(coder):
    for stated in (STATED, {"setting": "inpatient"}):
        found = [it for it in audit(coder, [*RIGHT, "I50.77"], stated=stated).findings if it.kind == "conflict"]
        assert [(it.code.code, it.rule) for it in found] == [("I50.77", "release")]
        assert "no known release has it" in found[0].reason and found[0].looked_for == ("Heart failure",)


def test_an_uncertain_diagnosis_counts_only_for_an_inpatient(coder):
    text = "ASSESSMENT:\n1. Cough.\n2. Probable pneumonia.\n"
    kinds = {
        setting: [
            item.kind
            for item in audit(coder, ["J18.9"], text, {"setting": setting}).findings
            if item.code.code == "J18.9"
        ]
        for setting in ("inpatient", "outpatient")
    }
    assert kinds == {"inpatient": [], "outpatient": ["unsupported"]}


def test_a_code_that_the_text_does_not_name_has_what_was_looked_for(coder):
    (item,) = audit(coder, [*RIGHT, "K35.80"]).findings
    assert item.kind == "unsupported" and not item.evidence
    assert "Unspecified acute appendicitis" in item.looked_for


def test_a_missing_code_has_evidence_confidence_and_effect(coder):
    (item,) = audit(coder, ["I13.0", "N18.4"]).findings
    assert (item.kind, item.code.code) == ("not_billed", "I50.23")
    assert "Acute on chronic systolic heart failure" in words(item) and 0.35 < item.confidence < 1
    effect = item.effect  # an MCC, and a higher HCC
    assert (effect.drg, effect.drg_after, effect.added, effect.dropped) == (292, 291, ("224",), ("226",))


@pytest.mark.parametrize(
    ("billed", "kind"), [("I50.9", "less_specific"), ("I50.33", "other_code"), ("I50.20", "less_specific")]
)
def test_a_code_of_the_same_category_is_one_finding(coder, billed, kind):
    (item,) = audit(coder, ["I13.0", billed, "N18.4"]).findings
    assert (item.kind, item.code.code, item.instead) == (kind, billed, "I50.23") and words(item)


def test_a_code_more_specific_than_the_text(coder):
    text = "DISCHARGE DIAGNOSES:\n1. Heart failure\n"
    found = by_code(audit(coder, ["I50.23"], text))
    assert (found["I50.23"].kind, found["I50.23"].instead) == ("more_specific", "I50.9")


def test_a_moved_principal_diagnosis(coder):
    found = [item for item in audit(coder, ["N18.4", "I13.0", "I50.23"]).findings if item.kind == "sequencing"]
    assert [(item.code.code, item.instead) for item in found] == [("N18.4", "I13.0")]
    assert (found[0].effect.drg, found[0].effect.drg_after) == (682, 291)


def test_present_on_admission_that_the_text_contradicts(coder):
    text = "DISCHARGE DIAGNOSES:\n1. Hip fracture, left\n2. Hospital-acquired pneumonia on hospital day 4\n"
    claimed = audit(coder, [], text)
    code = next(item.code.code for item in claimed.findings if item.code.code.startswith("J"))
    found = by_code(audit(coder, [f"{code}:Y"], text))
    assert (found[code].kind, found[code].instead) == ("poa", "N")


def test_codes_that_exclude_each_other_are_a_conflict(coder):
    found = [item for item in audit(coder, [*RIGHT, "I10"]).findings if item.kind == "conflict"]
    assert found and {item.rule for item in found} <= {"excludes1", "combination"}


def test_against_a_coder_every_accepted_code_is_expected(coder):
    found = by_code(audit(coder, RIGHT, reference="coder"))
    assert found["I10"].kind == "not_billed"  # the claim has it in I13.0
    with pytest.raises(ConfigError, match="reference must be one of claim, coder"):
        audit(coder, RIGHT, reference="gold")


def test_what_a_coder_suggests_supports_a_billed_code_against_this_coder():
    text = "The scan is odd."
    span = EvidenceSpan(4, 8, "scan", 0.1)
    weak = Suggestion("icd10cm", "R93.89", "", 0.1, False, (span,))
    billed = [BilledCode(Code("icd10cm", "R93.89"))]
    support = {
        reference: audit_encounter("n", text, billed, [weak], {}, reference=reference).supported
        for reference in ("claim", "coder")
    }
    assert support == {"claim": {}, "coder": {billed[0].code: ((4, 8),)}}


def test_a_code_without_support_is_reported_even_if_the_right_one_is_unsure():
    text = "The pump is weak."
    span = EvidenceSpan(4, 16, text[4:16], 0.3)
    unsure = Suggestion("icd10cm", "I50.9", "", 0.3, True, (span,))
    billed = [BilledCode(Code("icd10cm", "I50.23"))]
    (item,) = audit_encounter("n", text, billed, [unsure], {}, reference="coder").findings
    assert (item.kind, item.instead, item.confidence) == ("more_specific", "I50.9", 0.6)


def test_json_has_offsets_and_words(coder):
    record = json.loads(json.dumps(audit(coder, [*RIGHT, "J18.9"]).to_json()))
    (span,) = record["findings"][0]["evidence"]
    assert TEXT[span["start"] : span["end"]] == span["text"] == "pneumonia"
    assert record["findings"][0]["kind"] in KINDS and "text" not in record


@pytest.mark.parametrize(("code", "lowers"), [("J18.9", False), ("I50.23", True)])
def test_the_removal_of_the_only_code_lowers_the_risk_score_by_its_hcc_alone(coder, code, lowers):
    text = "DISCHARGE DIAGNOSES: No pneumonia. No acute on chronic systolic heart failure."
    effect = by_code(audit(coder, [code], text))[code].effect
    both = by_code(audit(coder, ["I10", code], f"{text} Essential hypertension."))[code].effect
    assert effect.risk == both.risk and (effect.risk < 0) == lowers == bool(effect.dropped)


def test_a_correction_changes_only_what_it_names():
    bill = tuple(BilledCode(Code("icd10cm", code), "Y") for code in ("I50.9", "N18.4"))

    def codes(kind, instead=""):
        after = corrected(bill, Finding(kind, bill[0].code, "", 1.0, instead=instead))
        return [(item.code.code, item.poa) for item in after]

    assert codes("unsupported") == [("N18.4", "Y")]
    assert codes("less_specific", "I50.23") == [("I50.23", "Y"), ("N18.4", "Y")]
    assert codes("sequencing", "N18.4") == [("N18.4", "Y"), ("I50.9", "Y")]
    assert codes("poa", "N") == [("I50.9", "N"), ("N18.4", "Y")]
    assert codes("conflict") == [("I50.9", "Y"), ("N18.4", "Y")]
