"""Metrics, thresholds, calibration, significance and the report."""

from nosology.evaluation.agreement import (
    CoderAgreement,
    DoubleCodedNote,
    agreement_by_group,
    krippendorff_alpha,
    measure_agreement,
)
from nosology.evaluation.counts import Counts
from nosology.evaluation.decision import tune_threshold, tune_thresholds
from nosology.evaluation.metrics import Evaluation, brief, by_chapter, by_frequency, evaluate, examine
from nosology.evaluation.reliability import Reliability, reliability
from nosology.evaluation.report import write_report
from nosology.evaluation.significance import (
    Difference,
    NotePredictions,
    approximate_randomisation,
    paired_bootstrap,
    paired_t_test,
)

__all__ = [
    "CoderAgreement",
    "Counts",
    "Difference",
    "DoubleCodedNote",
    "Evaluation",
    "NotePredictions",
    "Reliability",
    "agreement_by_group",
    "approximate_randomisation",
    "brief",
    "by_chapter",
    "by_frequency",
    "evaluate",
    "examine",
    "krippendorff_alpha",
    "measure_agreement",
    "paired_bootstrap",
    "paired_t_test",
    "reliability",
    "tune_threshold",
    "tune_thresholds",
    "write_report",
]
