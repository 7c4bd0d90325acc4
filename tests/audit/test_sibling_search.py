"""The verifier of siblings in an audit: it names another code of the category only where it is sure."""

from __future__ import annotations

import pytest

from nosology.audit.encounter_audit import audit_encounter
from nosology.audit.finding import BilledCode
from nosology.audit.support_model import Judgement
from nosology.claims.sibling_choice import RULE
from nosology.core import Code, EvidenceSpan, Suggestion
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.serving.coder import Coder

TEXT = "Echo: chronic systolic heart failure."


@pytest.fixture(scope="module")
def chooser():
    return SiblingChooser.load("day-one")


def audit(billed, chooser, text=TEXT, words="chronic systolic heart failure", suggested="I50.22", judgement=None):
    start = text.index(words)
    span = EvidenceSpan(start, start + len(words), words, 0.3)
    weak = Suggestion("icd10cm", suggested, "", 0.3, False, (span,))  # named, but not accepted
    codes = [BilledCode(Code("icd10cm", code)) for code in billed]
    result = audit_encounter(
        "n", text, codes, [weak], {"setting": "outpatient"}, reference="coder", chooser=chooser, judgement=judgement
    )
    return {item.code.code: item for item in result.findings if item.kind != "conflict"}


def test_the_code_that_the_text_supports_is_named_in_place_of_an_unsupported_one(chooser):
    without, found = audit(["I50.33"], None)["I50.33"], audit(["I50.33"], chooser)["I50.33"]
    assert without.kind == "unsupported" and without.looked_for
    assert (found.kind, found.instead, found.rule) == ("other_code", "I50.22", RULE)
    assert [TEXT[span.start : span.end] for span in found.evidence] == ["chronic systolic heart failure"]
    assert 0.6 <= found.confidence <= 1


@pytest.mark.parametrize(("kind", "confidence"), [("unsupported", 0.83), ("other_code", 0.72)])
def test_a_code_that_an_auditor_doubts_has_the_supported_one_named(chooser, kind, confidence):
    doubts = {"unsupported": {"I50.33": 0.0}, "other_code": {"I50.33": 0.0}, "not_billed": {}}
    doubts[kind] = {"I50.33": confidence}
    judgement = Judgement(**doubts, thresholds=dict.fromkeys(doubts, 0.5))
    found = audit(["I50.33"], chooser, judgement=judgement)["I50.33"]
    assert (found.kind, found.instead, found.rule) == ("other_code", "I50.22", RULE) and found.evidence
    assert found.confidence == confidence
    assert {it.kind for it in audit(["I50.33"], None, judgement=judgement).values()} <= {"unsupported"}
    trusted = Judgement({}, {}, {}, dict.fromkeys(doubts, 0.5))
    assert audit(["I50.33"], chooser, judgement=trusted) == {}


def test_words_of_a_code_that_is_billed_explain_no_other_code(chooser):
    assert audit(["I50.33", "I50.22"], chooser)["I50.33"].kind == "unsupported"


def test_one_sibling_explains_one_billed_code(chooser):
    found = audit(["I50.33", "I50.43"], chooser)
    assert [item.instead for item in found.values()].count("I50.22") == 1


def test_where_the_verifier_abstains_the_code_stays_unsupported(chooser):
    text = "Echo: the heart is weak."
    found = audit(["I50.33"], chooser, text, "the heart is weak", "I50.9")["I50.33"]
    assert found.kind == "unsupported"


def test_a_denied_category_supports_no_sibling(chooser):
    found = audit(["J18.1"], chooser, "Assessment: no pneumonia.", "pneumonia", "J18.9")["J18.1"]
    assert (found.kind, found.rule) == ("unsupported", "negated")


def test_a_condition_that_is_not_in_the_claim_has_its_code_named(chooser):
    text = "HPI: He presented with constipation for 9 days.\nAssessment: pneumonia, start ceftriaxone."
    billed = [BilledCode(Code("icd10cm", code)) for code in ("J18.9", "K59.09")]
    suggestions = Coder.for_claims("day-one").code(text)
    stated = {"setting": "outpatient"}
    without, found = (
        audit_encounter("n", text, billed, suggestions, stated, chooser=used).findings for used in (None, chooser)
    )
    assert [(it.kind, it.code.code, it.instead) for it in without] == [("unsupported", "K59.09", "")]
    assert [(it.kind, it.code.code, it.instead, it.rule) for it in found] == [
        ("more_specific", "K59.09", "K59.00", RULE)
    ]
