from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nosology.core import Code, DataError
from nosology.core.label_space import LabelSpace
from nosology.evaluation import approximate_randomisation, evaluate, examine, paired_bootstrap, paired_t_test

METRICS = ("micro_f1", "micro_precision", "macro_f1", "macro_precision", "macro_recall", "map", "r_precision")


def _pair(make_case, seed: int, harm: float):
    """Two models on the same notes; the scores of the second have more noise."""
    case = make_case(seed=seed, n_notes=80, n_outside=1)
    rng = np.random.default_rng(seed)
    blurred = [
        np.clip(case.scores + width * rng.normal(size=case.scores.shape), 0, 1).astype(np.float32)
        for width in (0.05, 0.05 + harm)
    ]
    return case, [examine(case.labels, case.gold, scores, 0.4, replicates=0) for scores in blurred]


@pytest.mark.parametrize("metric", METRICS)
def test_value_is_the_difference_of_the_metrics(make_case, metric):
    _, (first, second) = _pair(make_case, 1, 0.2)
    difference = first.metrics[metric] - second.metrics[metric]
    swapped = approximate_randomisation(first, second, metric, replicates=200)
    bootstrapped = paired_bootstrap(first, second, metric, replicates=200)
    assert swapped.value == pytest.approx(difference, abs=1e-12)
    assert bootstrapped.value == pytest.approx(difference, abs=1e-12)
    assert bootstrapped.low < difference < bootstrapped.high


@pytest.mark.parametrize("test", [paired_bootstrap, approximate_randomisation])
def test_p_is_small_only_for_a_large_difference(make_case, test):
    _, (first, second) = _pair(make_case, 2, 0.3)
    assert test(first, second, replicates=500).p < 0.01
    assert test(first, first, replicates=100).p == 1


def test_randomisation_equals_the_sign_flip_test_of_scipy(make_case):
    _, (first, second) = _pair(make_case, 3, 0.08)
    differences = first.per_note["map"] - second.per_note["map"]
    differences = differences[~np.isnan(differences)]
    oracle = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=5000,
        rng=np.random.default_rng(1),
        vectorized=True,
    )
    result = approximate_randomisation(first, second, "map", replicates=5000)
    assert 0.001 < oracle.pvalue < 0.9
    assert result.p == pytest.approx(oracle.pvalue, abs=0.03)


@pytest.mark.parametrize("test", [paired_bootstrap, approximate_randomisation])
def test_equal_models_differ_significantly_in_one_case_of_twenty(make_case, test):
    values = [test(*_pair(make_case, seed, 0.0)[1], replicates=200, seed=seed).p for seed in range(100)]
    assert 0.01 < np.mean(np.array(values) < 0.05) < 0.11
    assert 0.4 < np.mean(values) < 0.6


@pytest.mark.parametrize("metric", ["macro_f1", "macro_precision", "macro_recall"])
def test_label_spaces_may_differ(make_case, metric):
    case, (first, _) = _pair(make_case, 4, 0.1)
    fewer = LabelSpace(reversed(case.labels.codes[5:]))
    second = examine(fewer, case.gold, case.scores[:, :4:-1], 0.4, replicates=0)
    result = paired_bootstrap(first, second, metric, replicates=50)
    assert result.value == pytest.approx(first.metrics[metric] - second.metrics[metric], abs=1e-12)
    assert second.metrics == evaluate(fewer, case.gold, case.scores[:, :4:-1], 0.4, replicates=0)


def test_t_test_equals_scipy():
    first, second = [0.51, 0.52, 0.49, 0.53, 0.50], [0.48, 0.50, 0.49, 0.50, 0.47]
    oracle = stats.ttest_rel(first, second)
    result = paired_t_test(first, second)
    low, high = oracle.confidence_interval()
    assert (result.p, result.low, result.high) == pytest.approx((oracle.pvalue, low, high))
    assert paired_t_test([0.5, 0.5], [0.5, 0.5]).p is None


def test_bad_comparisons_are_named(make_case):
    case, (first, second) = _pair(make_case, 5, 0.1)
    other = examine(case.labels, case.gold[::-1], case.scores, 0.4, replicates=0)
    with pytest.raises(ValueError, match="same notes"):
        paired_bootstrap(first, other)
    with pytest.raises(ValueError, match=r"metric must be one of micro_f1, .*; got accuracy"):
        approximate_randomisation(first, second, "accuracy")
    with pytest.raises(ValueError, match="2 or more; got 1 and 1"):
        paired_t_test([0.5], [0.4])
    nothing = examine(case.labels, [[] for _ in case.gold], case.scores, 1.0, replicates=0)
    with pytest.raises(DataError, match="map: it is undefined"):
        paired_bootstrap(nothing, nothing, "map")


def test_groups_draws_patients_with_all_their_notes(make_case):
    _, (first, second) = _pair(make_case, 3, 0.3)
    n = first.scored.n_notes
    alone = paired_bootstrap(first, second, groups=[str(i) for i in range(n)], seed=1)
    by_note = paired_bootstrap(first, second, seed=1)
    few = paired_bootstrap(first, second, groups=[str(i % 4) for i in range(n)], seed=1)
    assert alone.value == by_note.value == few.value
    assert alone.high - alone.low == pytest.approx(by_note.high - by_note.low, rel=0.2)
    assert (few.low, few.high) != (by_note.low, by_note.high)
    with pytest.raises(ValueError, match="groups must have the patient"):
        paired_bootstrap(first, second, groups=["a"])


def test_at_least_one_accepts_a_code_per_note(make_case):
    case = make_case(5)
    some = examine(*case, 0.999, replicates=0)
    one = examine(*case, 0.999, at_least_one=True, replicates=0)
    counts, more = (np.diff(result.predicted.indptr) for result in (some, one))
    has = (case.scores > 0).any(1)
    assert (more[has] >= 1).all() and (more[counts > 0] == counts[counts > 0]).all()
    bare = np.flatnonzero((counts == 0) & has)
    assert len(bare) and (one.predicted[bare].indices == case.scores[bare].argmax(1)).all()


@pytest.mark.parametrize("metric", METRICS)
def test_draws_without_codes_leave_the_interval_finite(metric):
    labels = LabelSpace([Code("icd10cm", "I10"), Code("icd10cm", "J90")])
    gold = [[labels.codes[0]], [], [labels.codes[1]]]
    models = [np.array([[0.9, 0.1], [0.1, other], [0.2, 0.8]], np.float32) for other in (0.1, 0.2)]
    first, second = (examine(labels, gold, scores, 0.5, replicates=0) for scores in models)
    result = paired_bootstrap(first, second, metric, groups=["a", "b", "c"], replicates=300)
    assert np.isfinite([result.value, result.p, result.low, result.high]).all()
