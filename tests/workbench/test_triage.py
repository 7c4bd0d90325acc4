"""Confidence, its calibration, and the triage rule."""

import numpy as np
import pytest

from nosology.core import Code, ConfigError, Suggestion
from nosology.workbench.measures import population_stability_index
from nosology.workbench.triage import (
    MIN_REVIEWED,
    ConfidenceCalibration,
    TriageRule,
    code_f1,
    expected_f1,
    threshold_effects,
)


def suggestions(*pairs):
    return [Suggestion("icd10cm", "I10", "", p, bool(a)) for p, a in pairs]


def test_confidence_is_the_expected_f1():
    assert expected_f1(suggestions((1.0, True), (1.0, True))) == 1.0
    assert expected_f1([]) == 0.0 and expected_f1(suggestions((0.4, False))) == 0.0
    # expected: 0.8 true positives, 0.2 false positives, 0.2 false negatives: 1.6 / (1.6 + 0.4)
    assert expected_f1(suggestions((0.8, True), (0.2, False))) == pytest.approx(0.8)


def test_expected_f1_is_the_mean_f1_of_random_draws():
    """If codes are true with the stated probability, the mean F1 of many notes is near the confidence."""
    rng = np.random.default_rng(0)
    p = np.array([0.95, 0.9, 0.9, 0.8, 0.7, 0.3, 0.1, 0.05])
    accepted = p >= 0.5
    true = rng.random((4000, len(p))) < p
    hits = (true & accepted).sum(1)
    f1 = 2 * hits / (true.sum(1) + accepted.sum())
    assert expected_f1(suggestions(*zip(p, accepted))) == pytest.approx(f1.mean(), abs=0.02)


def test_calibration_is_the_identity_until_enough_notes_are_reviewed():
    assert ConfidenceCalibration.fit([0.5] * 5, [1.0] * 5).apply(0.3) == 0.3
    raw = np.linspace(0.2, 1, 4 * MIN_REVIEWED)
    curve = ConfidenceCalibration.fit(raw, raw / 2)  # the coder is overconfident by a factor of two
    assert curve.is_fitted and curve.apply(0.8) == pytest.approx(0.4, abs=0.02)
    assert np.all(np.diff([curve.apply(value) for value in np.linspace(0, 1, 50)]) >= 0)


def test_the_rule_preaccepts_confident_notes_except_a_sample():
    rule = TriageRule(on=True, threshold=0.8, sample=0.25)
    taken = [rule.preaccepts(number, 0.9) for number in range(4000)]
    assert 0.70 < np.mean(taken) < 0.80
    assert not any(rule.preaccepts(number, 0.79) for number in range(100))
    assert not any(TriageRule(on=False, threshold=0.0, sample=0.0).preaccepts(number, 1.0) for number in range(100))
    with pytest.raises(ConfigError, match=r"must lie in \[0, 1\]"):
        TriageRule(threshold=1.5)


def test_threshold_effects_have_expected_and_observed_error():
    rows = {row.threshold: row for row in threshold_effects([0.95, 0.85, 0.4], [(0.9, 0.7), (0.3, 0.1)])}
    assert rows[0.9].notes == 1 and rows[0.9].expected_error == pytest.approx(0.05)
    assert rows[0.8].share == pytest.approx(2 / 3) and rows[0.8].observed_error == pytest.approx(0.3)
    assert threshold_effects([], [])[0].expected_error is None


def test_code_f1():
    a, b = Code("icd10cm", "I10"), Code("icd10cm", "E11.9")
    assert code_f1([a], [a, b]) == pytest.approx(2 / 3) and code_f1([], []) == 1.0 and code_f1([a], [b]) == 0.0


def test_population_stability_index_detects_a_shift():
    rng = np.random.default_rng(1)
    then, same, moved = rng.normal(0, 1, 800), rng.normal(0, 1, 800), rng.normal(1, 1, 800)
    assert population_stability_index(then, same) < 0.1 < 0.25 < population_stability_index(then, moved)
    assert population_stability_index(then[:10], same) is None
