"""The guarantee on notes that pass unseen: its p-values, and its coverage on simulated notes."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, binom

from nosology.core import Code, ConfigError
from nosology.evaluation.risk_control import (
    candidate_thresholds,
    control_risk,
    expected_errors,
    fewest_notes,
    note_losses,
    risk_p_value,
)

REPEATS = 400


def risk_above(threshold):
    """The true mean loss of notes that pass, if scores are uniform and a note is wrong with probability (1 - s) / 2."""
    return (1 - threshold) / 4


def binary_notes(rng, n):
    scores = rng.random(n)
    return scores, (rng.random(n) < (1 - scores) / 2).astype(float)


def test_p_value_of_wrong_notes_is_the_exact_binomial_bound():
    """Rejected at delta exactly where the Clopper-Pearson upper bound of scipy is below alpha."""
    for n in (5, 40, 300):
        for wrong in range(0, n, max(1, n // 7)):
            losses = np.r_[np.ones(wrong), np.zeros(n - wrong)]
            upper = beta.ppf(0.95, wrong + 1, n - wrong)
            found = brentq(lambda a, x=losses: risk_p_value(x, a, binary=True) - 0.05, 1e-9, 1 - 1e-9)
            assert found == pytest.approx(upper, abs=1e-6)
    brute = sum(binom.pmf(k, 30, 0.1) for k in range(3))
    assert risk_p_value(np.r_[np.ones(2), np.zeros(28)], 0.1, binary=True) == pytest.approx(brute)
    assert risk_p_value(np.array([]), 0.1) == 1.0


@pytest.mark.parametrize("values, chances", [((0, 0.5, 1), (0.8, 0.2, 0)), ((0, 0.3, 1), (0.75, 0.2, 0.05))])
def test_betting_rejects_a_mean_equal_to_alpha_in_at_most_delta(values, chances):
    rng = np.random.default_rng(0)
    alpha = float(np.dot(values, chances))
    draws = rng.choice(values, p=chances, size=(2000, 150))
    p = np.array([risk_p_value(row, alpha) for row in draws])
    for level in (0.05, 0.2):  # valid at levels other than delta as well
        assert (p <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / len(p))


def test_betting_is_the_product_of_its_bets_and_needs_fewer_notes_than_hoeffding_bentkus():
    rng = np.random.default_rng(1)
    losses = rng.choice([0, 0.1, 0.2], p=[0.6, 0.3, 0.1], size=120)
    alpha, n, wealth, best, past = 0.1, len(losses), 1.0, 1.0, []
    variance = 0.25
    for loss in losses:
        wealth *= 1 + min(1, np.sqrt(2 * np.log(20) / (n * variance))) * (alpha - loss)
        best = max(best, wealth)
        past.append(loss)
        spread = sum((x - (0.5 + sum(past[: i + 1])) / (i + 2)) ** 2 for i, x in enumerate(past))
        variance = (0.25 + spread) / (1 + len(past))
    assert risk_p_value(losses, alpha) == pytest.approx(1 / best)
    mean = losses.mean()
    entropy = mean * np.log(mean / alpha) + (1 - mean) * np.log((1 - mean) / (1 - alpha))
    bentkus = np.e * binom.cdf(np.ceil(n * mean), n, alpha)
    assert risk_p_value(losses, alpha) < 0.05 < min(np.exp(-n * entropy), bentkus)


@pytest.mark.parametrize("tolerated, n", [(0.1, 1500), (0.15, 600)])
def test_the_true_risk_is_at_most_the_tolerated_one_in_95_percent(tolerated, n):
    rng = np.random.default_rng(2)
    found = [control_risk(*binary_notes(rng, n), tolerated, binary=True) for _ in range(REPEATS)]
    chosen = [result for result in found if result.threshold is not None]
    broken = sum(risk_above(result.threshold) > tolerated for result in chosen)
    assert len(chosen) > 0.75 * REPEATS and np.median([result.share for result in chosen]) > 0.2
    assert broken / REPEATS <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / REPEATS)


def test_the_guarantee_holds_for_counts_of_errors_and_for_useless_scores():
    """Scores that say nothing: all notes have the tolerated mean, so that every threshold is one too many."""
    rng = np.random.default_rng(3)
    broken = passed = 0
    for _ in range(REPEATS):
        scores = rng.random(400)
        useless = np.minimum(rng.poisson(1.0, 400), 10)
        broken += control_risk(scores, useless, 0.999, bound=10).threshold is not None
        useful = np.minimum(rng.poisson(2 * (1 - scores)), 10)
        result = control_risk(scores, useful, 0.8, bound=10)
        passed += result.threshold is not None and 0.5 < 1 - result.threshold < 0.8 + 0.03
    assert broken / REPEATS <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / REPEATS)
    assert passed > 0.8 * REPEATS  # the mean of all that pass is 1 - threshold: the best threshold is 0.2


def test_risk_that_rises_with_the_score_does_not_break_the_guarantee():
    rng = np.random.default_rng(4)
    broken = 0
    for _ in range(REPEATS):
        scores = rng.random(500)
        wrong = (rng.random(500) < np.where(scores > 0.5, 0.11, 0.02)).astype(float)
        threshold = control_risk(scores, wrong, 0.1, binary=True).threshold
        broken += threshold is not None and threshold > 0.39  # at 0.39 the mean loss is 0.0937: below it
    assert broken / REPEATS <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / REPEATS)


def test_given_thresholds_are_tested_from_the_highest_down_with_all_notes():
    scores, losses = np.repeat([0.9, 0.5, 0.1], 100), np.repeat([0.0, 0.0, 1.0], 100)
    result = control_risk(scores, losses, 0.05, thresholds=[0.1, 0.9, 0.5], binary=True)
    assert (result.threshold, result.tested, result.passed, result.loss) == (0.5, 300, 200, 0.0)
    assert result.passes(0.5) and not result.passes(0.49) and result.share == pytest.approx(2 / 3)
    # The first candidate fails: nothing below it is tested.
    assert control_risk(scores, losses[::-1].copy(), 0.05, thresholds=[0.9, 0.1], binary=True).threshold is None


def test_too_few_notes_let_nothing_pass():
    result = control_risk(np.linspace(0, 1, 30), np.zeros(30), 0.05, binary=True)
    assert result.threshold is None and not result.passes(1.0) and result.share == 0
    assert control_risk([], [], 0.05).threshold is None
    # 59 notes without a loss are enough: 0.95 ** 59 < 0.05 < 0.95 ** 58
    assert control_risk(np.ones(59), np.zeros(59), 0.05, binary=True, thresholds=[1.0]).threshold == 1.0
    assert control_risk(np.ones(58), np.zeros(58), 0.05, binary=True, thresholds=[1.0]).threshold is None


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("tolerated", "delta"), [(0.05, 0.05), (0.1, 0.025), (0.3, 0.01)])
def test_the_fewest_notes_without_a_loss_suffice_and_one_less_does_not(tolerated, delta, binary):
    fewest = fewest_notes(tolerated, delta=delta, binary=binary)
    for notes, passes in ((fewest, True), (fewest - 1, False)):
        found = control_risk(np.ones(notes), np.zeros(notes), tolerated, binary=binary, delta=delta)
        assert (found.threshold is not None) == passes
    assert fewest_notes(10 * tolerated, bound=10, delta=delta, binary=binary) == fewest


def test_fewest_notes_of_a_rate_that_nobody_can_show_are_refused():
    with pytest.raises(ConfigError, match="at least 1e-05"):
        fewest_notes(1e-17)


def test_thresholds_are_rounded_before_they_are_tested():
    scores, losses = binary_notes(np.random.default_rng(6), 1500)
    result = control_risk(scores, losses, 0.15, binary=True, digits=1)
    assert result.threshold is not None and result.threshold == round(result.threshold, 1)
    tested = int(0.9 * len(scores))
    assert result.tested == tested and 0 < result.passed < tested


def test_candidates_start_at_the_given_share_and_end_with_all_notes():
    scores = np.random.default_rng(5).random(200)
    thresholds = candidate_thresholds(scores, 0.1)
    assert thresholds == sorted(thresholds, reverse=True) and thresholds[-1] == scores.min()
    assert (scores >= thresholds[0]).mean() == pytest.approx(0.1, abs=0.02)
    assert candidate_thresholds(np.ones(50), 0.1) == [1.0] and candidate_thresholds([], 0.1) == []


def test_losses_of_notes():
    a, b, c = (Code("icd10cm", code) for code in ("I10", "E11.9", "J18.9"))
    accepted, final = [[a, b], [a], [], [a]], [[a, c], [a], [a, b, c], []]
    assert note_losses(accepted, final).tolist() == [2, 0, 3, 1]
    assert note_losses(accepted, final, bound=2).tolist() == [2, 0, 2, 1]
    assert note_losses(accepted, final, "not_exact").tolist() == [1, 0, 1, 1]
    probabilities = np.array([[0.9, 0.2], [0.5, 0.0]])
    assert expected_errors(probabilities, probabilities >= 0.5) == pytest.approx([0.3, 0.5])


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="tolerated loss"):
        control_risk([0.5], [0.0], 1.0)
    with pytest.raises(ConfigError, match="delta"):
        control_risk([0.5], [0.0], 0.1, delta=0)
    with pytest.raises(ConfigError, match="losses must lie"):
        control_risk([0.5], [2.0], 0.1)
    with pytest.raises(ConfigError, match="one number per note"):
        control_risk([0.5, 0.6], [0.0], 0.1)
    with pytest.raises(ConfigError, match="finite"):
        control_risk([np.nan], [0.0], 0.1)
    with pytest.raises(ConfigError, match="loss must be"):
        note_losses([], [], "other")
    with pytest.raises(ConfigError, match="binary losses"):
        control_risk([0.5], [0.5], 0.1, binary=True)
