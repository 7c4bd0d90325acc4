"""What is tuned on held-out reports: the weight of the net, calibration, the prior over code sets, the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from nosology.core.label_space import label_versions, mask_other_versions
from nosology.evaluation import brief
from nosology.evaluation.decision import Decision
from nosology.models.hmhan.code_groups import CodeCombinations
from nosology.models.hmhan.hmhan_model import Hmhan
from nosology.models.hmhan.hmhan_net import HmhanNet
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.report_batches import ReportDataset, assign_folds
from nosology.models.hmhan.report_features import EncodedReport, word_matrix
from nosology.training.calibration import EXCLUDED_LOGIT, choose_scaling

_MAX_F1_LOSS = 0.015
_NET_WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)
_CALIBRATION_FOLDS = 5  # to choose between one calibration and one per code
_STANDARD_ERRORS = 2.0  # a net weight within this many standard errors of the best is as good


def tune_on_held_out(
    recipe: HmhanRecipe,
    model: Hmhan,
    logits: np.ndarray,
    word_scores: np.ndarray,
    held_out: ReportDataset,
    train_gold: sparse.csr_matrix,
    in_train: bool = False,
) -> tuple[Hmhan, Decision]:
    """The model with net weight, calibration and prior over code sets, and the decision.

    logits: (B, L) of held-out reports. word_scores: (B, L) the part of them that comes from word features.
    train_gold: (N, L) of the train reports. in_train: the held-out reports are among the train reports; the prior then
    must not count the gold set of the report itself.
    """
    versions = label_versions(model.labels)

    def with_net_weight(weight: float) -> np.ndarray:
        mixed = np.where(logits > EXCLUDED_LOGIT, word_scores + weight * (logits - word_scores), EXCLUDED_LOGIT)
        return mask_other_versions(mixed, held_out.versions, versions, EXCLUDED_LOGIT)

    def cross_entropy(mixed: np.ndarray) -> np.ndarray:
        """The cross-entropy (B,) of calibrated logits; it varies less than F1 on a few hundred reports."""
        calibrated = model.calibrated(mixed, held_out.gold).calibration(mixed)
        probabilities = np.clip(calibrated.astype(np.float64), 1e-7, 1 - 1e-7)
        true = held_out.gold.toarray().astype(bool)
        losses = np.where(true, np.log(probabilities), np.log1p(-probabilities))
        return -np.where(mixed > EXCLUDED_LOGIT, losses, 0).sum(1)

    by_weight = {weight: with_net_weight(weight) for weight in (_NET_WEIGHTS if model.words else (1.0,))}
    weight = choose_net_weight({weight: cross_entropy(mixed) for weight, mixed in by_weight.items()})
    for net in model.net.nets:
        net.share.fill_(weight)
    logits = by_weight[weight]
    model = model.calibrated(logits, held_out.gold)
    if not model.words:
        folds = min(_CALIBRATION_FOLDS, len(set(held_out.groups)))
        model.calibration = choose_scaling(logits, held_out.gold, assign_folds(held_out, folds, recipe.seed))
    probabilities = model.to_probabilities(logits)
    if recipe.combinations.prior == "auto":
        exclude = held_out.gold if in_train else None
        combinations = CodeCombinations.from_gold(train_gold).tuned(
            probabilities, lambda p: brief(model.labels, held_out.codes, p)["micro_f1"], exclude
        )
        probabilities = combinations(probabilities, exclude)
        model.combinations = combinations if combinations.mixture_weight else None
    decision = Decision.tune(recipe.decision, model.labels, held_out.codes, probabilities)
    if recipe.decision.threshold == "global":
        decision = stabilize_threshold(decision, held_out, probabilities)
    return model, decision


def choose_net_weight(cross_entropies: dict[float, np.ndarray]) -> float:
    """The largest net weight whose mean cross-entropy is the lowest, or within two standard errors of the lowest.

    cross_entropies: net weight -> (B,) of held-out reports. The largest, because held-out scores underestimate the net:
    each comes from one net trained on a part of the reports, while new reports are scored by the whole ensemble.
    """
    best = min(cross_entropies.values(), key=lambda values: values.mean())

    def is_as_good(values: np.ndarray) -> bool:
        excess = values - best
        return bool(excess.mean() <= _STANDARD_ERRORS * excess.std() / len(excess) ** 0.5)

    return max(weight for weight, values in cross_entropies.items() if is_as_good(values))


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


def word_logits(net: HmhanNet, reports: Sequence[EncodedReport]) -> np.ndarray:
    """The logits (B, L) of word features alone; zeros (1, 1) without word features."""
    if net.words is None or net.word_bias is None:
        return np.zeros((1, 1), np.float32)
    logits = word_matrix(reports, len(net.words) - 1) @ net.words[1:].cpu().numpy()
    return logits + net.word_bias.cpu().numpy()
