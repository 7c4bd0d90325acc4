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
from nosology.evaluation.drift import DriftMonitor
from nosology.evaluation.metrics import Evaluation, brief, by_chapter, by_frequency, evaluate, examine
from nosology.evaluation.reliability import Reliability, reliability
from nosology.evaluation.report import write_report
from nosology.evaluation.risk_control import RiskControl, control_risk, expected_errors, fewest_notes, note_losses
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
    "DriftMonitor",
    "Evaluation",
    "NotePredictions",
    "Reliability",
    "RiskControl",
    "agreement_by_group",
    "approximate_randomisation",
    "brief",
    "by_chapter",
    "by_frequency",
    "control_risk",
    "evaluate",
    "examine",
    "expected_errors",
    "fewest_notes",
    "krippendorff_alpha",
    "measure_agreement",
    "note_losses",
    "paired_bootstrap",
    "paired_t_test",
    "reliability",
    "tune_threshold",
    "tune_thresholds",
    "write_report",
]
