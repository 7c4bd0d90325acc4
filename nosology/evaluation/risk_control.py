"""Which notes may pass unseen: a confidence threshold with a guarantee on the mean loss of the notes that pass.

The statement: with probability 1 - delta over the calibration notes, the mean loss of the notes whose confidence
reaches the threshold is at most `tolerated`, for notes of the distribution of the calibration notes. It is found by
fixed sequence testing (Angelopoulos et al. 2025, Learn then Test). Candidate thresholds are tested from a high one
down, each at level delta, and the last one before the first that fails is chosen. No model of losses or scores is
assumed; the scores need not be probabilities.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np

from nosology.core import Code, ConfigError

_LEAST_RATE = 1e-5  # that some million notes can show
PILOT = 10  # one note in this many sets the candidate thresholds and tests none
CANDIDATES = 40
FIRST = 3  # the first candidate has this many times the fewest notes that could be accepted, without any loss
Loss = Literal["errors", "not_exact"]


@dataclass(frozen=True)
class RiskControl:
    """A threshold (None: no note may pass), what it guarantees, and the calibration notes that showed it.

    tested: notes that tested thresholds. passed: those among them that reach the threshold; loss: their mean loss.
    """

    threshold: float | None
    tolerated: float
    bound: float
    delta: float
    tested: int
    passed: int = 0
    loss: float | None = None

    @property
    def share(self) -> float:
        """The share of tested notes that pass."""
        return self.passed / self.tested if self.tested else 0.0

    def passes(self, score: float) -> bool:
        """Whether a note with this confidence may pass unseen."""
        return self.threshold is not None and score >= self.threshold


def control_risk(
    scores: Sequence[float] | np.ndarray,
    losses: Sequence[float] | np.ndarray,
    tolerated: float,
    *,
    bound: float = 1.0,
    binary: bool = False,
    delta: float = 0.05,
    thresholds: Sequence[float] | None = None,
    digits: int | None = None,
    seed: int = 0,
) -> RiskControl:
    """The lowest threshold at which the mean loss of passing notes is shown to be at most `tolerated`.

    scores, losses: confidence and loss in [0, bound] of calibration notes (B,): notes whose codes people chose, and a
    random sample of those to come. binary: every loss is 0 or the bound by its definition, which allows more notes to
    pass. thresholds: candidates that were chosen without these notes; by default a random tenth of the notes sets them,
    and the other notes test them. digits: to which these are rounded down first.
    """
    confidence, values = _check(scores, losses, tolerated, bound, delta)
    if binary and not np.isin(values, (0, bound)).all():
        raise ConfigError(f"binary losses must be 0 or {bound:g}")
    order = np.random.default_rng(seed).permutation(len(values))
    confidence, values = confidence[order], values[order] / bound
    alpha = tolerated / bound
    if thresholds is None:
        pilot = len(values) // PILOT
        share = min(1.0, FIRST * _fewest(alpha, delta) / max(1, len(values) - pilot))
        thresholds = candidate_thresholds(confidence[:pilot], share)
        if digits is not None:  # down: rounded up, the first could have no note
            thresholds = [math.floor(threshold * 10**digits) / 10**digits for threshold in thresholds]
        confidence, values = confidence[pilot:], values[pilot:]
    chosen = None
    for threshold in sorted(set(map(float, thresholds)), reverse=True):
        if risk_p_value(values[confidence >= threshold], alpha, delta, binary=binary) > delta:
            break
        chosen = threshold
    if chosen is None:
        return RiskControl(None, tolerated, bound, delta, len(values))
    passing = values[confidence >= chosen]
    return RiskControl(chosen, tolerated, bound, delta, len(values), len(passing), float(passing.mean() * bound))


def candidate_thresholds(scores: Sequence[float] | np.ndarray, first_share: float) -> list[float]:
    """Thresholds that the given share of these notes reaches, and larger shares up to all; the highest first."""
    if not len(scores):
        return []
    shares = np.linspace(first_share, 1, CANDIDATES)
    return sorted({float(x) for x in np.quantile(scores, 1 - shares, method="lower")}, reverse=True)


def fewest_notes(tolerated: float, *, bound: float = 1.0, delta: float = 0.05, binary: bool = False) -> int:
    """The calibration notes that are needed at least, if none of them has any loss and all reach the threshold."""
    alpha = tolerated / bound
    if not _LEAST_RATE <= alpha < 1:
        raise ConfigError(f"the tolerated loss must be at least {_LEAST_RATE:g} of the bound, and below it")
    tested = math.ceil(_fewest(alpha, delta))
    if not binary:  # betting needs some more
        sizes = range(tested, 2 * tested + 20)
        tested += bisect_left(sizes, True, key=lambda size: risk_p_value(np.zeros(size), alpha, delta) <= delta)
    first = max(tested, PILOT * tested // (PILOT - 1) - 2)
    return next(notes for notes in count(first) if notes - notes // PILOT >= tested)


def _fewest(alpha: float, delta: float) -> float:
    return math.log(delta) / math.log1p(-alpha)


def risk_p_value(losses: np.ndarray, alpha: float, delta: float = 0.05, *, binary: bool = False) -> float:
    """A p-value of "the mean loss is above alpha", for independent losses in [0, 1] of one distribution.

    binary: losses are 0 or 1 by definition, and the p-value is exact, by the binomial distribution. To decide this by
    the losses at hand would be a second chance to reject. Others: by betting (Waudby-Smith and Ramdas 2024), which uses
    their variance; delta sets the stakes, and the p-value is valid at every level.
    """
    if not len(losses):
        return 1.0
    if binary:
        from scipy.stats import binom

        return float(binom.cdf(round(float(losses.sum())), len(losses), alpha))
    steps = np.arange(1, len(losses) + 1)
    means = (0.5 + np.cumsum(losses)) / (1 + steps)
    variances = (0.25 + np.cumsum((losses - means) ** 2)) / (1 + steps)
    before = np.concatenate([[0.25], variances[:-1]])  # the stake on a loss depends on earlier ones only
    stakes = np.minimum(1.0, np.sqrt(2 * math.log(1 / delta) / (len(losses) * before)))
    wealth = np.cumsum(np.log1p(stakes * (alpha - losses)))
    return math.exp(-max(0.0, float(wealth.max())))


def note_losses(
    accepted: Sequence[Collection[Code]], final: Sequence[Collection[Code]], loss: Loss = "errors", bound: float = 10
) -> np.ndarray:
    """The loss of each note (B,): its wrong and missing codes, at most `bound`; or 1 where the sets are not equal."""
    if loss not in ("errors", "not_exact"):
        raise ConfigError(f"loss must be errors or not_exact; got {loss}")
    errors = np.array([len(set(a) ^ set(b)) for a, b in zip(accepted, final, strict=True)], dtype=float)
    return np.minimum(errors, bound) if loss == "errors" else np.minimum(errors, 1.0)


def expected_errors(probabilities: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """The expected wrong and missing codes of each note (B,), by probabilities and acceptance of codes (B, L)."""
    return np.where(accepted, 1 - probabilities, probabilities).sum(axis=1)


def _check(
    scores: Sequence[float] | np.ndarray,
    losses: Sequence[float] | np.ndarray,
    tolerated: float,
    bound: float,
    delta: float,
) -> tuple[np.ndarray, np.ndarray]:
    if not 0 < tolerated < bound:
        raise ConfigError(f"the tolerated loss must lie between 0 and the bound {bound:g}; got {tolerated:g}")
    if not 0 < delta < 1:
        raise ConfigError(f"delta must lie between 0 and 1; got {delta:g}")
    confidence, values = np.asarray(scores, dtype=float), np.asarray(losses, dtype=float)
    if confidence.shape != values.shape or confidence.ndim != 1:
        raise ConfigError(f"scores and losses must have one number per note; got {confidence.shape} and {values.shape}")
    if not np.isfinite(confidence).all():
        raise ConfigError("scores must be finite numbers")
    if len(values) and not (values.min() >= 0 and values.max() <= bound):
        raise ConfigError(f"losses must lie in [0, {bound:g}]; got {values.min():g} to {values.max():g}")
    return confidence, values
