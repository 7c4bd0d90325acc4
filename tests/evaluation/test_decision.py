import json

import numpy as np
import pytest
from sklearn.metrics import f1_score

from nosology.core import Code, DataError
from nosology.core.label_space import LabelSpace
from nosology.evaluation import evaluate, tune_threshold, tune_thresholds
from nosology.evaluation.decision import Decision, DecisionSettings

A, B = Code("icd10cm", "A00.0"), Code("icd10cm", "B00.0")
LABELS = LabelSpace([A, B])
GOLD = [[A]] * 12 + [[B]] * 12
# The best threshold is 0.8 for A and 0.3 for B.
P = np.array([[0.8, 0.2]] * 12 + [[0.6, 0.3]] * 12, dtype=np.float32)


def test_per_code_thresholds_differ_and_survive_json():
    decision = Decision.tune(DecisionSettings(threshold="per_code"), LABELS, GOLD, P)
    assert decision.accepts(A, 0.85) and not decision.accepts(A, 0.6)
    assert decision.accepts(B, 0.31) and not decision.accepts(B, 0.2)
    again = Decision.from_json(json.loads(json.dumps(decision.to_json())))
    assert again == decision
    assert np.array_equal(again.thresholds(LABELS), decision.thresholds(LABELS))


def test_tune_returns_a_fixed_threshold():
    assert Decision.tune(DecisionSettings(threshold=0.25), LABELS, GOLD, P).thresholds(LABELS) == 0.25


@pytest.mark.parametrize("kind", ["global", "per_code"])
def test_tune_without_a_true_code_returns_one_half(kind):
    elsewhere = [[Code("icd10cm", "Z99.2")]] * len(GOLD)
    assert Decision.tune(DecisionSettings(threshold=kind), LABELS, elsewhere, P) == Decision(0.5)
    assert Decision.tune(DecisionSettings(threshold=kind), LABELS, GOLD, np.zeros_like(P)) == Decision(0.5)


def test_probability_0_is_never_accepted():
    assert not Decision(0.0).accepts(A, 0.0)


def test_global_threshold_is_one_number():
    assert isinstance(Decision.tune(DecisionSettings(), LABELS, GOLD, P).thresholds(LABELS), float)


def test_at_least_one_accepts_the_most_probable_code():
    settings = DecisionSettings(threshold=0.9, at_least_one=True)
    decision = Decision.tune(settings, LABELS, GOLD, P)
    assert decision.accepted(LABELS, np.array([0.2, 0.3])).tolist() == [False, True]
    assert decision.accepted(LABELS, np.array([0.95, 0.91])).tolist() == [True, True]
    assert not decision.accepted(LABELS, np.zeros(2)).any()
    assert not Decision(0.9).accepted(LABELS, np.array([0.2, 0.3])).any()
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision
    assert not Decision.from_json({"threshold": 0.5, "by_code": []}).at_least_one  # of an older bundle


def test_at_least_one_auto_depends_on_notes_without_codes():
    settings = DecisionSettings(at_least_one="auto")
    assert Decision.tune(settings, LABELS, GOLD, P).at_least_one
    assert not Decision.tune(settings, LABELS, [*GOLD[:-1], []], P).at_least_one
    many = np.repeat(P, 50, axis=0)
    assert Decision.tune(settings, LABELS, [*(GOLD * 50)[:-1], []], many).at_least_one, "one uncoded note of many"


def test_at_least_one_raises_the_tuned_threshold():
    gold = [[A]] * 8 + [[A, B]] * 4
    p = np.array([[0.2, 0.1]] * 8 + [[0.9, 0.6]] * 4, dtype=np.float32)
    without, with_one = (Decision.tune(DecisionSettings(at_least_one=one), LABELS, gold, p) for one in (False, True))
    assert without.threshold < 0.2 < with_one.threshold <= 0.6


@pytest.mark.parametrize("shape", [{"seed": 0}, {"seed": 1, "digits": 1}, {"seed": 2, "n_outside": 4}], ids=str)
def test_global_threshold_is_the_exact_optimum(make_case, shape):
    case = make_case(n_notes=30, n_labels=10, **shape)
    threshold = tune_threshold(case.labels, case.gold, case.scores)
    scores = np.unique(case.scores[case.scores > 0])
    f1 = np.array([evaluate(case.labels, case.gold, case.scores, t, replicates=0)["micro_f1"] for t in scores])
    best = evaluate(case.labels, case.gold, case.scores, threshold, replicates=0)["micro_f1"]
    assert best == f1.max()
    at = np.flatnonzero(f1 == f1.max()).max()
    assert threshold == pytest.approx((scores[at] + (scores[at - 1] if at else 0)) / 2)


def test_threshold_between_neighbouring_floats_is_the_upper_one(make_case):
    case = make_case(seed=5, n_notes=2, n_labels=1)
    high = np.float32(0.5)
    scores = np.array([[high], [np.nextafter(high, np.float32(0))]])
    assert tune_threshold(case.labels, [[case.labels.codes[0]], []], scores) == high


def test_thresholds_per_code_are_exact_and_fall_back(make_case):
    case = make_case(seed=3, n_notes=120, n_labels=12, rate=0.1)
    true = case.labels.encode(case.gold).toarray()
    thresholds = tune_thresholds(case.labels, case.gold, case.scores, min_positives=8)
    frequent = true.sum(0) >= 8
    assert 0 < frequent.sum() < len(case.labels)
    assert set(thresholds[~frequent]) == {tune_threshold(case.labels, case.gold, case.scores)}
    for j in np.flatnonzero(frequent):
        scores = case.scores[:, j]
        best = max(f1_score(true[:, j], scores >= t) for t in np.unique(scores))
        assert f1_score(true[:, j], scores >= thresholds[j].astype(np.float32)) == pytest.approx(best)


def test_tune_threshold_without_true_scores_raises(make_case):
    case = make_case(seed=4)
    with pytest.raises(DataError, match="cannot tune a threshold"):
        tune_threshold(case.labels, [[] for _ in case.gold], case.scores)
    with pytest.raises(DataError, match="cannot tune a threshold"):
        tune_threshold(case.labels, case.gold, np.zeros_like(case.scores))
