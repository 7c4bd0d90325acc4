"""What held-out reports decide about HMHAN."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from nosology.core import Code
from nosology.evaluation.decision import Decision
from nosology.models.hmhan.hmhan_decision import largest_good, steadied
from nosology.models.hmhan.report_batches import Reports

CODES = [Code("icd9cm", code) for code in ("486", "591", "786.2")]


def held_out(gold: np.ndarray) -> Reports:
    codes = [tuple(CODES[j] for j in np.flatnonzero(row)) for row in gold]
    return Reports([], codes, sparse.csr_matrix(gold.astype(np.int8)), np.zeros(len(gold)), [])


def test_the_net_adds_as_much_as_held_out_reports_bear():
    rng = np.random.default_rng(0)
    words, noise = rng.random(400), rng.normal(0, 0.5, 400)
    assert largest_good({1.0: words - 0.2 + noise, 0.5: words - 0.1 + noise / 2, 0.0: words}) == 1.0, "it is right"
    assert largest_good({1.0: words + 0.2 + noise, 0.5: words + 0.1 + noise / 2, 0.0: words}) == 0.0, "it is noise"
    little = noise / 50 - noise.mean() / 50
    assert largest_good({1.0: words + 0.1 + noise, 0.5: words + little, 0.0: words}) == 0.5, "as good as nothing"
    assert largest_good({1.0: words}) == 1.0


def test_of_calibrated_probabilities_half_of_the_best_f1_is_the_threshold():
    rng = np.random.default_rng(0)
    probabilities = rng.beta(0.3, 0.9, (400, 3)).astype(np.float32)
    gold = rng.random((400, 3)) < probabilities
    found = [steadied(Decision(t), held_out(gold), probabilities).threshold for t in (0.33, 0.37, 0.41)]
    assert max(found) - min(found) < 0.01, "where on the flat top one begins does not matter"
    given = probabilities >= 0.37
    assert found[1] == pytest.approx((given & gold).sum() / (given.sum() + gold.sum()))


def test_a_threshold_stays_where_half_of_the_best_f1_would_cost_much():
    gold = np.eye(3, dtype=bool)[np.arange(30) % 3]
    overconfident = np.where(gold, 0.9, 0.7).astype(np.float32)
    assert steadied(Decision(0.8), held_out(gold), overconfident).threshold == 0.8
    nothing = np.zeros((30, 3), np.float32)
    assert steadied(Decision(0.5, at_least_one=True), held_out(gold), nothing).threshold == 0.5
