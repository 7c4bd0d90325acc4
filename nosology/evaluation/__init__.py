"""Metrics, thresholds, calibration, significance and the report."""

from nosology.evaluation.counts import Counts
from nosology.evaluation.evaluate import Evaluation, evaluate, examine
from nosology.evaluation.thresholds import tune_threshold, tune_thresholds

__all__ = ["Counts", "Evaluation", "evaluate", "examine", "tune_threshold", "tune_thresholds"]
