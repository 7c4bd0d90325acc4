"""What is tuned on held-out reports: calibration, the prior over code sets, the threshold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from nosology.core.label_space import label_versions, mask_other_versions
from nosology.evaluation import brief
from nosology.evaluation.decision import Decision
from nosology.models.hmhan.code_groups import CodeCombinations
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.report_batches import ReportDataset, assign_folds
from nosology.training.calibration import EXCLUDED_LOGIT, PlattScaling, Scaling, choose_scaling

_MAX_F1_LOSS = 0.015
_CALIBRATION_FOLDS = 5  # to choose between one calibration and one per code


def tune_on_held_out(
    recipe: HmhanRecipe,
    model: Hmhan,
    logits: np.ndarray,
    held_out: ReportDataset,
    train_gold: sparse.csr_matrix,
    in_train: bool = False,
) -> tuple[Hmhan, Decision]:
    """The model with calibration and prior over code sets, and the decision.

    If every report must get a code, the model also has the prior for reports without a known word.
    logits: (B, L) of held-out reports. train_gold: (N, L) of the train reports. in_train: the held-out reports are
    among the train reports; the prior then must not count the gold set of the report itself.
    """
    logits = mask_by_date(model, logits, held_out)
    model = replace(model, calibration=fit_scaling(recipe, logits, held_out), combinations=None)
    probabilities = model.to_probabilities(logits)
    if recipe.combinations.prior == "auto":
        exclude = held_out.gold if in_train else None

        def micro_f1(combinations: CodeCombinations) -> float:
            served = model.with_prior(combinations, probabilities, exclude)
            return brief(model.labels, held_out.codes, served)["micro_f1"]

        combinations = CodeCombinations.from_gold(train_gold).tuned(micro_f1)
        if combinations.mixture_weight:
            model.combinations = combinations
            probabilities = model.with_prior(combinations, probabilities, exclude)
    decision = Decision.tune(recipe.decision, model.labels, held_out.codes, probabilities)
    if recipe.stable_threshold and recipe.decision.threshold == "global":
        decision = stabilize_threshold(decision, held_out, probabilities)
    if decision.at_least_one:
        model.train_shares = code_shares(train_gold)
    return model, decision


def code_shares(gold: sparse.csr_matrix) -> np.ndarray:
    """The share (L,), float32, of reports with each code; gold: 0/1 (N, L)."""
    return np.asarray(gold.mean(0), dtype=np.float32).ravel()


def mask_by_date(model: Hmhan, logits: np.ndarray, reports: ReportDataset) -> np.ndarray:
    """The logits (B, L) with `EXCLUDED_LOGIT` for codes that were not in use at the date of the report."""
    return mask_other_versions(logits.copy(), reports.date_versions, label_versions(model.labels), EXCLUDED_LOGIT)


def fit_scaling(recipe: HmhanRecipe, logits: np.ndarray, held_out: ReportDataset) -> Scaling:
    """The calibration of the recipe for logits (B, L) of held-out reports."""
    if recipe.calibration == "global":
        return PlattScaling.fit(logits, held_out.gold)
    folds = min(_CALIBRATION_FOLDS, len(set(held_out.groups)))
    return choose_scaling(logits, held_out.gold, assign_folds(held_out, folds, recipe.seed))


def stabilize_threshold(decision: Decision, held_out: ReportDataset, probabilities: np.ndarray) -> Decision:
    """The decision with half of the best F1 as threshold, unless that costs more than 0.015 F1 on held-out reports.

    This is the optimal threshold of calibrated probabilities (Lipton et al. 2014). F1 is flat near its maximum: on a
    few hundred reports the position of the maximum varies much, its height hardly.
    """
    true = sum(map(len, held_out.codes))

    def f1(threshold: float) -> float:
        accepted = probabilities >= max(threshold, np.finfo(np.float32).tiny)
        if decision.at_least_one:
            accepted[np.arange(len(accepted)), probabilities.argmax(1)] |= probabilities.max(1) > 0
        return float(2 * held_out.gold.multiply(accepted).sum() / max(1, accepted.sum() + true))

    best = f1(decision.threshold)
    return replace(decision, threshold=best / 2) if best and best - f1(best / 2) <= _MAX_F1_LOSS else decision
