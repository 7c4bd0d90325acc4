"""The planted errors of benchmarks/quality/audit.py."""

import random
import runpy
from pathlib import Path

import pytest

AUDIT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/quality/audit.py"))
plant_errors, edit_evidence = AUDIT["plant_errors"], AUDIT["edit_evidence"]
GOLD = ["I13.0", "I50.23", "N18.4", "E11.22", "J44.1", "Z79.4", "I48.21", "F32.1"]
OTHERS = ["K35.80", "I50.9", "S72.001A", "J18.9"]


@pytest.mark.parametrize("kind", ["dropped", "sibling", "foreign", "moved"])
def test_a_quarter_of_the_codes_is_planted_and_the_rest_stays(kind):
    bill = plant_errors(kind, GOLD, OTHERS, random.Random(1))
    assert bill == plant_errors(kind, GOLD, OTHERS, random.Random(1))
    assert len(bill.planted) == (1 if kind == "moved" else 2)
    right, wrong = set(bill.codes) & set(GOLD), set(bill.codes) - set(GOLD)
    assert len(bill.codes) == {"dropped": 6, "sibling": 8, "foreign": 10, "moved": 8}[kind]
    if kind == "dropped":
        assert bill.planted == set(GOLD) - right
    elif kind == "moved":
        assert not wrong and bill.planted == {bill.codes[0]} != {GOLD[0]}
    else:
        assert wrong == bill.planted
    if kind == "foreign":
        assert wrong <= {"K35.80", "S72.001A", "J18.9"}  # I50 is a category of the note
    if kind == "sibling":
        assert {code[:3] for code in bill.codes} == {code[:3] for code in GOLD}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("negated", "No evidence of gout; asthma. No evidence of Gout again."),
        ("aged", "History of gout, resolved years ago; asthma. History of Gout, resolved years ago again."),
    ],
)
def test_all_places_of_the_evidence_are_changed_and_no_shared_words(kind, text):
    words = "gout; asthma. Gout again."
    spans = {"M10.9": (0, 4), "J45.909": (6, 12), "J45.20": (6, 12)}  # the words of asthma are evidence of two codes
    evidence = [{"code": code, "start": start, "end": end} for code, (start, end) in spans.items()]
    edited = edit_evidence(kind, {"text": words, "evidence": evidence}, list(spans), random.Random(0))
    assert edited.codes == {"M10.9"} and edited.text.lower() == text.lower()
