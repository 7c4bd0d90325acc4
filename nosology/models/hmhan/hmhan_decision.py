"""What held-out reports decide about HMHAN: calibration, what the net adds to words, sets of codes, the threshold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from nosology.core.label_space import label_versions, mask_other_versions
from nosology.evaluation import brief
from nosology.evaluation.decision import Decision
from nosology.models.hmhan.combinations import Combinations
from nosology.models.hmhan.hmhan_model import Hmhan, Report
from nosology.models.hmhan.hmhan_net import HmhanNet
from nosology.models.hmhan.hmhan_settings import HmhanRecipe
from nosology.models.hmhan.report_batches import Reports
from nosology.models.hmhan.word_scores import word_matrix
from nosology.models.neural import EXCLUDED_LOGIT

_FLAT = 0.015  # of F1
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of what the net says beside words
_ERRORS = 2.0  # standard errors within which a share is as good as the best one


def decided(
    recipe: HmhanRecipe,
    model: Hmhan,
    logits: np.ndarray,
    wide: np.ndarray,
    held: Reports,
    gold: sparse.csr_matrix,
    own: bool = False,
) -> tuple[Hmhan, Decision]:
    """The model with calibration and sets of codes, and the decision, found on logits (B, L) of held-out reports.

    wide: (B, L) what words alone say of them: how much the net may add to it is found here too. gold: (N, L) of the
    train reports. own: the held-out reports are among them, so that none may know its own set.
    """
    versioned = label_versions(model.labels)

    def mixed(share: float) -> np.ndarray:
        found = np.where(logits > EXCLUDED_LOGIT, wide + share * (logits - wide), EXCLUDED_LOGIT)
        return mask_other_versions(found, held.versions, versioned, EXCLUDED_LOGIT)

    def surprise(found: np.ndarray) -> np.ndarray:
        """The cross entropy (B,) of calibrated logits: less a matter of luck than an F1 on some hundred reports."""
        given = np.clip(model.calibrated(found, held.gold).calibration(found).astype(np.float64), 1e-7, 1 - 1e-7)
        true = held.gold.toarray().astype(bool)
        return -np.where(found > EXCLUDED_LOGIT, np.where(true, np.log(given), np.log1p(-given)), 0).sum(1)

    tried = {share: mixed(share) for share in (_SHARES if model.words else (1.0,))}
    share = largest_good({share: surprise(found) for share, found in tried.items()})
    for net in model.net.nets:
        net.share.fill_(share)
    logits = tried[share]
    model = model.calibrated(logits, held.gold)
    probabilities = model.to_probabilities(logits)
    if recipe.combinations.prior == "auto":
        sets = Combinations.of(gold)
        without = held.gold if own else None
        sets = sets.tuned(probabilities, lambda p: brief(model.labels, held.codes, p)["micro_f1"], without)
        probabilities = sets(probabilities, without)
        model.combinations = sets if sets.share else None
    decision = Decision.tune(recipe.decision, model.labels, held.codes, probabilities)
    return model, steadied(decision, held, probabilities) if recipe.decision.threshold == "global" else decision


def largest_good(surprises: dict[float, np.ndarray]) -> float:
    """The largest share whose surprise (B,) is, on average, the least or within some standard errors of it.

    Held-out reports are scored by one member that has learned from a part of the others, new ones by the mean of
    members: what the net adds is worth more than held-out reports say.
    """
    best = min(surprises.values(), key=lambda values: values.mean())

    def good(values: np.ndarray) -> bool:
        more = values - best
        return more.mean() <= _ERRORS * more.std() / len(more) ** 0.5

    return max(share for share, values in surprises.items() if good(values))


def steadied(decision: Decision, held: Reports, probabilities: np.ndarray) -> Decision:
    """The decision with half of the best F1 as its threshold, unless held-out reports lose more than `_FLAT` by that.

    For calibrated probabilities that is the best threshold (Lipton et al. 2014). The curve of F1 by threshold is flat
    near its top, so that the top of some hundred reports stands anywhere on it; its height hardly moves.
    """
    true = sum(map(len, held.codes))

    def f1(threshold: float) -> float:
        found = probabilities >= max(threshold, np.finfo(np.float32).tiny)
        if decision.at_least_one:
            found[np.arange(len(found)), probabilities.argmax(1)] |= probabilities.max(1) > 0
        return 2 * held.gold.multiply(found).sum() / max(1, found.sum() + true)

    best = f1(decision.threshold)
    return replace(decision, threshold=best / 2) if best and best - f1(best / 2) <= _FLAT else decision


def word_logits(net: HmhanNet, reports: list[Report]) -> np.ndarray:
    """What words alone say of reports (B, L); 0 where there is no lexical branch."""
    if net.words is None:
        return np.zeros((1, 1), np.float32)
    found = word_matrix(reports, len(net.words) - 1) @ net.words[1:].cpu().numpy()
    return found + net.word_bias.cpu().numpy()
