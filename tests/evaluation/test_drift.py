"""The drift monitor: its false alarms, its power, and its p-values."""

import numpy as np
import pytest

from nosology.core import ConfigError
from nosology.evaluation.drift import DriftMonitor

REPEATS = 300


@pytest.mark.parametrize("digits", [None, 1], ids=["continuous", "many ties"])
def test_false_alarms_are_at_most_as_frequent_as_stated(digits):
    rng = np.random.default_rng(0)
    alarms = 0
    for seed in range(REPEATS):
        scores = rng.beta(5, 2, 500)
        scores = scores if digits is None else np.round(scores, digits)
        alarms += DriftMonitor(scores[:200], rate=0.1, seed=seed).add_all(scores[200:])
    assert alarms / REPEATS <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / REPEATS)


@pytest.mark.parametrize("shift", [-0.8, 0.8])
def test_a_shift_raises_the_alarm_within_200_notes(shift):
    rng = np.random.default_rng(1)
    delays = []
    for seed in range(20):
        monitor = DriftMonitor(rng.normal(size=500), rate=0.01, seed=seed)
        assert not monitor.add_all(rng.normal(size=300))  # exchangeable so far
        monitor.add_all(rng.normal(shift, 1, 300))
        assert monitor.alarm and monitor.alarm_at is not None
        delays.append(monitor.alarm_at - 300)
    assert max(delays) < 200


def test_the_wealth_is_a_martingale():
    """The mean wealth after a few notes is 1."""
    rng = np.random.default_rng(2)
    wealth = []
    for seed in range(4000):
        values = rng.normal(size=15)
        monitor = DriftMonitor(values[:5], seed=seed)
        monitor.add_all(values[5:])
        wealth.append(np.exp(monitor.log_wealth))
    assert np.mean(wealth) == pytest.approx(1, abs=4 * np.std(wealth) / np.sqrt(len(wealth)))


def test_the_alarm_stays_and_names_the_note():
    monitor = DriftMonitor(np.linspace(0, 1, 100), rate=0.05)
    assert monitor.add_all([2.0 + step for step in range(30)])
    first = monitor.alarm_at
    assert first is not None and 1 < first < 30
    assert monitor.highest >= np.log(20)
    monitor.add_all(np.linspace(0, 1, 300))
    assert monitor.alarm and monitor.alarm_at == first and monitor.notes == 330


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="rate"):
        DriftMonitor([0.5], rate=0)
    with pytest.raises(ConfigError, match="finite"):
        DriftMonitor([0.5]).add(float("nan"))
    with pytest.raises(ConfigError, match="finite"):
        DriftMonitor([0.5, float("nan")])
