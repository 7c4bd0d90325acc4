import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from nosology.models.hmhan.code_groups import CodeCombinations

GOLD = sparse.csr_matrix(np.array([[1, 0, 0]] * 6 + [[0, 1, 1]] * 3 + [[0, 0, 1]], dtype=np.int8))


def combinations(mixture_weight=1.0, prior_exponent=1.0):
    return replace(CodeCombinations.from_gold(GOLD), mixture_weight=mixture_weight, prior_exponent=prior_exponent)


def test_posterior_of_sets_equals_hand_computation():
    p = np.array([[0.6, 0.3, 0.8]], dtype=np.float32)
    joint = np.array([0.6 * 0.7 * 0.2 * 6, 0.4 * 0.3 * 0.8 * 3, 0.4 * 0.7 * 0.8 * 1])
    joint /= joint.sum()
    assert combinations()(p)[0] == pytest.approx([joint[0], joint[1], joint[1] + joint[2]], abs=1e-5)
    assert combinations(mixture_weight=0.5)(p)[0] == pytest.approx((combinations()(p)[0] + p[0]) / 2, abs=1e-5)
    assert np.array_equal(combinations(mixture_weight=0.0)(p), p)


def test_excluded_set_of_a_report_is_not_counted():
    p = np.array([[0.1, 0.2, 0.9]], dtype=np.float32)
    gold = sparse.csr_matrix(np.array([[0, 0, 1]]))  # only this report has it
    assert combinations()(p)[0, 1] < 0.5 < combinations()(p, exclude=gold)[0, 1], (
        "the remaining sets with the last code have both"
    )


def test_tuned_uses_sets_only_if_they_improve_the_metric():
    true = GOLD.toarray()
    p = np.where(true, 0.6, 0.5).astype(np.float32)

    def tuned(probabilities):
        sets = CodeCombinations.from_gold(GOLD)
        return sets.tuned(lambda candidate: float(((candidate(probabilities) > 0.55) == true).mean()))

    assert tuned(p).mixture_weight == 0, "all predictions are right already"
    worse = p.copy()
    worse[6:9] = 0.3, 0.5, 0.9
    assert tuned(worse).mixture_weight > 0


def test_probability_zero_stays_zero_and_json_round_trips():
    p = np.array([[0.6, 0.0, 0.8]], dtype=np.float32)
    assert combinations()(p)[0, 1] == 0
    again = CodeCombinations.from_json(json.loads(json.dumps(combinations().to_json())), 3)
    assert np.allclose(again(p), combinations()(p))


def test_empty_set_as_the_only_set_gives_zero_probabilities():
    empty = CodeCombinations.from_gold(sparse.csr_matrix(np.zeros((2, 3), dtype=np.int8)))
    probabilities = replace(empty, mixture_weight=1.0)(np.full((1, 3), 0.4, np.float32))
    assert not probabilities.any()
