"""Learning-rate schedules, and the number of epochs if a recipe does not set it."""

from __future__ import annotations

import pytest

from nosology.training.recipe_settings import LearningRateSchedule, TrainerSettings, resolve_schedule


def test_learning_rate_factors():
    linear = LearningRateSchedule("linear", 1, 110, 10)
    assert [linear.factor(step) for step in (0, 4, 9, 10, 60)] == [0.1, 0.5, 1.0, 1.0, 0.5]
    assert linear.factor(109) == pytest.approx(0.01)
    cosine = LearningRateSchedule("cosine", 1, 110, 10)
    assert [cosine.factor(step) for step in (9, 10, 60)] == [1.0, 1.0, pytest.approx(0.5)]
    assert 0 < cosine.factor(109) < 0.001
    assert [LearningRateSchedule("constant", 1, 110, 10).factor(step) for step in (0, 10, 109)] == [0.1, 1.0, 1.0]
    assert LearningRateSchedule("linear", 1, 3, 0).factor(0) == 1.0


@pytest.mark.parametrize(
    ("steps", "epochs", "warmup"), [(4000, 10, 2000), (100, 30, 300), (7, 60, 42), (301, 10, 301), (299, 11, 328)]
)
def test_default_number_of_epochs(steps, epochs, warmup):
    schedule = resolve_schedule(TrainerSettings(), steps)
    assert (schedule.epochs, schedule.steps, schedule.warmup) == (epochs, epochs * steps, warmup)


def test_schedule_of_a_recipe_with_epochs():
    schedule = resolve_schedule(TrainerSettings(epochs=2, warmup=5, schedule="cosine"), 30)
    assert schedule == LearningRateSchedule("cosine", 2, 60, 5)
