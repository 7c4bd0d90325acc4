"""Tuning of HMHAN on held-out reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from nosology.config import load_recipe
from nosology.core import Code
from nosology.core.label_space import ICD9, ICD10, LabelSpace
from nosology.evaluation.decision import Decision
from nosology.models.hmhan.hmhan_decision import fit_scaling, stabilize_threshold, tune_on_held_out
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.report_batches import ReportDataset
from nosology.training.calibration import CodeScaling, PlattScaling

CODES = [Code("icd9cm", code) for code in ("486", "591", "786.2")]


def held_out(gold: np.ndarray) -> ReportDataset:
    codes = [tuple(CODES[j] for j in np.flatnonzero(row)) for row in gold]
    versions = np.full(len(gold), ICD9)
    return ReportDataset([], codes, sparse.csr_matrix(gold.astype(np.int8)), versions, versions, [])


def test_threshold_of_calibrated_probabilities_is_half_of_the_best_f1():
    rng = np.random.default_rng(0)
    probabilities = rng.beta(0.3, 0.9, (400, 3)).astype(np.float32)
    gold = rng.random((400, 3)) < probabilities
    thresholds = [stabilize_threshold(Decision(t), held_out(gold), probabilities).threshold for t in (0.33, 0.37, 0.41)]
    assert max(thresholds) - min(thresholds) < 0.01, "independent of the start near the maximum"
    accepted = probabilities >= 0.37
    assert thresholds[1] == pytest.approx((accepted & gold).sum() / (accepted.sum() + gold.sum()))


def test_threshold_is_unchanged_if_half_of_the_best_f1_costs_much():
    gold = np.eye(3, dtype=bool)[np.arange(30) % 3]
    overconfident = np.where(gold, 0.9, 0.7).astype(np.float32)
    assert stabilize_threshold(Decision(0.8), held_out(gold), overconfident).threshold == 0.8
    zeros = np.zeros((30, 3), np.float32)
    assert stabilize_threshold(Decision(0.5, at_least_one=True), held_out(gold), zeros).threshold == 0.5


@pytest.mark.parametrize("is_stable", [False, True])
def test_the_threshold_is_the_best_one_where_the_recipe_asks_for_it(is_stable):
    rng = np.random.default_rng(1)
    logits = rng.normal(-1, 2, (400, 3)).astype(np.float32)
    reports = held_out(rng.random((400, 3)) < 1 / (1 + np.exp(-logits)))
    settings = [f"stable_threshold={str(is_stable).lower()}", "calibration=global", "combinations.prior=never"]
    recipe = load_recipe("hmhan", settings)
    labels = LabelSpace(CODES)
    model = Hmhan(labels, np.ones(3, int), None, None, recipe.model)
    tuned, decision = tune_on_held_out(recipe, model, logits, reports, reports.gold)
    probabilities = tuned.to_probabilities(logits)
    best = Decision.tune(recipe.decision, labels, reports.codes, probabilities).threshold
    assert (decision.threshold == best) != is_stable


def test_the_threshold_is_tuned_on_the_probabilities_that_new_reports_get():
    """With codes of both versions and reports without a date, the prior over code sets is applied by version."""
    rng = np.random.default_rng(3)
    codes = [*CODES, *(Code("icd10cm", code) for code in ("J18.9", "N13.3", "R05"))]
    sets = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]], dtype=bool)
    gold = sets[rng.integers(0, 4, 300)]
    logits = (3 * gold - 2 + rng.normal(0, 2, gold.shape)).astype(np.float32)
    names = [tuple(codes[j] for j in np.flatnonzero(row)) for row in gold]
    both = np.full(len(gold), ICD9 | ICD10)
    reports = ReportDataset([], names, sparse.csr_matrix(gold.astype(np.int8)), both, both, [])
    recipe = load_recipe("hmhan", ["stable_threshold=false", "calibration=global"])
    model = Hmhan(LabelSpace(codes), np.ones(6, int), None, None, recipe.model)
    tuned, decision = tune_on_held_out(recipe, model, logits, reports, reports.gold)
    assert tuned.combinations is not None
    best = Decision.tune(recipe.decision, model.labels, names, tuned.to_probabilities(logits))
    assert decision.threshold == pytest.approx(best.threshold)


@pytest.mark.parametrize("calibration", ["global", "auto"])
@pytest.mark.parametrize("curves", ["equal", "different"])
def test_calibration_is_by_code_where_the_curves_of_codes_differ_and_the_recipe_lets_it(calibration, curves):
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 2, (400, 3)).astype(np.float32)
    shifts = np.array([-3, 0, 3]) if curves == "different" else 0
    gold = rng.random((400, 3)) < 1 / (1 + np.exp(-logits - shifts))
    reports = replace(held_out(gold), groups=[str(report) for report in range(400)])
    scaling = fit_scaling(load_recipe("hmhan", [f"calibration={calibration}"]), logits, reports)
    is_by_code = (calibration, curves) == ("auto", "different")
    assert isinstance(scaling, CodeScaling if is_by_code else PlattScaling)
