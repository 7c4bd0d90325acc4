"""The verifier of siblings in claims: it replaces a code only where it is sure and the set has no better one."""

from __future__ import annotations

import pytest

import nosology
from nosology.claims.claim import build_claim
from nosology.claims.gap_records import GapFinder, PlacedNote
from nosology.claims.sibling_choice import RULE
from nosology.core import EvidenceSpan, Note, Suggestion
from nosology.models.siblings.sibling_chooser import SiblingChooser

WORDS = "chronic systolic heart failure"
TEXT = f"Assessment: {WORDS}."


@pytest.fixture(scope="module")
def chooser():
    return SiblingChooser.load("day-one")


def claim(wrong, right, chooser, *, accepted=False):
    """The claim of a coder that accepts the wrong code I50.33; wrong, right: its probabilities."""
    span = EvidenceSpan(TEXT.index(WORDS), TEXT.index(WORDS) + len(WORDS), WORDS, 1.0)
    known = [
        Suggestion("icd10cm", "I50.33", "", wrong, True, (span,)),
        Suggestion("icd10cm", "I50.22", "", right, accepted, (span,)),
    ]
    return build_claim("n", TEXT, known, {"setting": "outpatient"}, chooser=chooser)


def test_a_sure_choice_replaces_a_code_and_says_so(chooser):
    assert [item.code for item in claim(0.4, 0.6, None).codes] == ["I50.33"]
    found = claim(0.4, 0.6, chooser)
    assert [(item.code, item.rule) for item in found.codes] == [("I50.22", RULE)]
    assert found.words(found.codes[0].evidence) == [WORDS]
    assert [(item.code, item.rule) for item in found.left_out] == [("I50.33", RULE)]


def test_an_unsure_choice_changes_nothing(chooser):
    assert claim(0.4, 0.3, chooser).codes == claim(0.4, 0.3, None).codes


def test_a_code_stays_if_the_better_one_is_in_the_set(chooser):
    both = [claim(0.4, 0.6, used, accepted=True) for used in (None, chooser)]
    assert both[0].codes == both[1].codes


def test_claims_in_python_and_gaps_ask_the_verifier_of_the_coder(chooser):
    text = "Assessment: patient with sepsis; MRSA."
    found = nosology.claim(text, setting="outpatient")
    assert [(item.code, item.rule) for item in found.codes] == [("A41.02", RULE)]
    span = EvidenceSpan(TEXT.index(WORDS), TEXT.index(WORDS) + len(WORDS), WORDS, 1.0)
    known = [
        Suggestion("icd10cm", code, "", probability, accepted, (span,))
        for code, probability, accepted in (("I50.33", 0.4, True), ("I50.22", 0.6, False))
    ]
    item = PlacedNote(Note("n", TEXT, extra={"setting": "outpatient"}), "note 1")
    codes = [GapFinder(lambda _: known, {}, used)(item)["codes"] for used in (None, chooser)]
    assert codes == [["I50.33"], ["I50.22"]]
