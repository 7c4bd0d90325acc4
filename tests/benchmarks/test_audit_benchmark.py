"""The planted errors of benchmarks/quality/audit.py."""

import random
import runpy
from pathlib import Path

import pytest

plant = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/quality/audit.py"))["plant"]
GOLD = ["I13.0", "I50.23", "N18.4", "E11.22", "J44.1", "Z79.4", "I48.21", "F32.1"]
OTHERS = ["K35.80", "I50.9", "S72.001A", "J18.9"]


@pytest.mark.parametrize("kind", ["dropped", "sibling", "foreign", "moved"])
def test_a_quarter_of_the_codes_is_planted_and_the_rest_stays(kind):
    bill = plant(kind, GOLD, OTHERS, random.Random(1))
    assert bill == plant(kind, GOLD, OTHERS, random.Random(1))
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
