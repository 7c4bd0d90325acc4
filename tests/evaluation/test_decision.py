import json

import numpy as np
import pytest

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.evaluation.decision import Decision, DecisionSettings

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


def test_at_least_one_accepts_the_likeliest_and_nothing_impossible():
    settings = DecisionSettings(threshold=0.9, at_least_one=True)
    decision = Decision.tune(settings, LABELS, GOLD, P)
    assert decision.accepted(LABELS, np.array([0.2, 0.3])).tolist() == [False, True]
    assert decision.accepted(LABELS, np.array([0.95, 0.91])).tolist() == [True, True]
    assert not decision.accepted(LABELS, np.zeros(2)).any()
    assert not Decision(0.9).accepted(LABELS, np.array([0.2, 0.3])).any()
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision
    assert not Decision.from_json({"threshold": 0.5, "by_code": []}).at_least_one, "older bundles do not say"


def test_at_least_one_by_itself_where_every_note_has_a_code():
    settings = DecisionSettings(at_least_one="auto")
    assert Decision.tune(settings, LABELS, GOLD, P).at_least_one
    assert not Decision.tune(settings, LABELS, [*GOLD[:-1], []], P).at_least_one


def test_the_threshold_is_tuned_knowing_that_the_likeliest_is_accepted():
    gold = [[A]] * 8 + [[A, B]] * 4
    p = np.array([[0.2, 0.1]] * 8 + [[0.9, 0.6]] * 4, dtype=np.float32)
    free, bound = (Decision.tune(DecisionSettings(at_least_one=one), LABELS, gold, p) for one in (False, True))
    assert free.threshold < 0.2 < bound.threshold <= 0.6, "a low threshold need not catch what is accepted anyway"
