import json

import numpy as np
import pytest
from scipy import sparse

from nosology.models.hmhan.combinations import Combinations

GOLD = sparse.csr_matrix(np.array([[1, 0, 0]] * 6 + [[0, 1, 1]] * 3 + [[0, 0, 1]], dtype=np.int8))


def some(share=1.0, weight=1.0):
    found = Combinations.of(GOLD)
    return Combinations(found.sets, found.notes, share, weight)


def test_the_posterior_of_sets_by_hand():
    p = np.array([[0.6, 0.3, 0.8]], dtype=np.float32)
    joint = np.array([0.6 * 0.7 * 0.2 * 6, 0.4 * 0.3 * 0.8 * 3, 0.4 * 0.7 * 0.8 * 1])
    joint /= joint.sum()
    assert some()(p)[0] == pytest.approx([joint[0], joint[1], joint[1] + joint[2]], abs=1e-5)
    assert some(share=0.5)(p)[0] == pytest.approx((some()(p)[0] + p[0]) / 2, abs=1e-5)
    assert np.array_equal(some(share=0.0)(p), p)


def test_a_report_does_not_know_its_own_set():
    p = np.array([[0.1, 0.2, 0.9]], dtype=np.float32)
    own = sparse.csr_matrix(np.array([[0, 0, 1]]))  # seen once: by itself
    assert some()(p)[0, 1] < 0.5 < some()(p, without=own)[0, 1], "what is left that has the last code has both"


def test_sets_are_taken_only_where_they_help():
    true = GOLD.toarray()
    p = np.where(true, 0.6, 0.5).astype(np.float32)

    def quality(found):
        return float(((found > 0.55) == true).mean())

    assert Combinations.of(GOLD).tuned(p, quality).share == 0, "nothing is gained where all is right"
    worse = p.copy()
    worse[6:9] = 0.3, 0.5, 0.9
    assert Combinations.of(GOLD).tuned(worse, quality).share > 0


def test_an_impossible_code_stays_impossible_and_json_keeps_all():
    p = np.array([[0.6, 0.0, 0.8]], dtype=np.float32)
    assert some()(p)[0, 1] == 0
    again = Combinations.from_json(json.loads(json.dumps(some().to_json())), 3)
    assert np.allclose(again(p), some()(p))


def test_more_codes_than_sets_and_empty_sets():
    empty = Combinations.of(sparse.csr_matrix(np.zeros((2, 3), dtype=np.int8)))
    found = Combinations(empty.sets, empty.notes, 1.0, 0.0)(np.full((1, 3), 0.4, np.float32))
    assert not found.any()
