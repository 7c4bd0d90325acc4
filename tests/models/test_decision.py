import json

import numpy as np
import pytest

from nosology.codes.label_space import LabelSpace
from nosology.core import Code
from nosology.models.decision import Decision
from nosology.models.settings import DecisionSettings

A, B = Code("icd10cm", "A00.0"), Code("icd10cm", "B00.0")
LABELS = LabelSpace([A, B])
GOLD = [[A]] * 12 + [[B]] * 12
# A is sure of itself at 0.8, B already at 0.3.
P = np.array([[0.8, 0.2]] * 12 + [[0.6, 0.3]] * 12, dtype=np.float32)


def test_per_code_thresholds_differ_and_survive_json():
    decision = Decision.tune(DecisionSettings(threshold="per_code"), LABELS, GOLD, P)
    assert decision.accepts(A, 0.85) and not decision.accepts(A, 0.6)
    assert decision.accepts(B, 0.31) and not decision.accepts(B, 0.2)
    again = Decision.from_json(json.loads(json.dumps(decision.to_json())))
    assert again == decision
    assert np.array_equal(again.thresholds(LABELS), decision.thresholds(LABELS))


def test_a_given_number_is_kept():
    assert Decision.tune(DecisionSettings(threshold=0.25), LABELS, GOLD, P).thresholds(LABELS) == 0.25


@pytest.mark.parametrize("kind", ["global", "per_code"])
def test_without_a_true_code_to_tune_on_it_is_one_half(kind):
    elsewhere = [[Code("icd10cm", "Z99.2")]] * len(GOLD)
    assert Decision.tune(DecisionSettings(threshold=kind), LABELS, elsewhere, P) == Decision(0.5)
    assert Decision.tune(DecisionSettings(threshold=kind), LABELS, GOLD, np.zeros_like(P)) == Decision(0.5)


def test_nothing_impossible_is_accepted():
    assert not Decision(0.0).accepts(A, 0.0)


def test_global_is_one_number():
    assert isinstance(Decision.tune(DecisionSettings(), LABELS, GOLD, P).thresholds(LABELS), float)
