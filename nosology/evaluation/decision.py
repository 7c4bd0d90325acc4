"""Decisions: which probabilities are accepted, by thresholds that are tuned on dev notes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from nosology.core import Code, DataError
from nosology.core.label_space import LabelSpace
from nosology.core.settings import Settings
from nosology.evaluation.ranking_metrics import CellCounts
from nosology.evaluation.scored import Scored, Scores

UNTUNED = 0.5  # the threshold if no true code of the dev notes has a probability
_CODED_SHARE = 0.99  # of the dev notes; then "auto" gives each note a code


class DecisionSettings(Settings):
    """How probabilities become accepted codes."""

    # a number, or how to tune it on dev
    threshold: Annotated[float, Field(ge=0, le=1)] | Literal["global", "per_code"] = "global"
    min_positives: int = Field(10, ge=1)  # per_code: codes with fewer dev notes have the global threshold
    at_least_one: bool | Literal["auto"] = (
        False  # accept the top code of a note; auto: if nearly all dev notes have one
    )


@dataclass(frozen=True)
class Decision:
    """A code is accepted if its probability reaches its threshold in `by_code`, or else the global one.

    at_least_one: if no code of a note reaches it, the most probable code is accepted.
    """

    threshold: float
    by_code: Mapping[Code, float] = field(default_factory=dict)
    at_least_one: bool = False

    @classmethod
    def tune(
        cls,
        settings: DecisionSettings,
        labels: LabelSpace,
        gold: Sequence[Collection[Code]],
        probabilities: np.ndarray,
    ) -> Decision:
        """The decision of the settings, tuned on these dev notes; `UNTUNED` if no true code has a probability."""
        at_least_one = settings.at_least_one
        if at_least_one == "auto":
            at_least_one = sum(map(bool, gold)) >= _CODED_SHARE * len(gold)
        if isinstance(settings.threshold, float):
            return cls(settings.threshold, at_least_one=at_least_one)
        if not labels.encode(gold).multiply(probabilities > 0).count_nonzero():
            return cls(UNTUNED, at_least_one=at_least_one)
        if at_least_one:  # these cells are accepted at any threshold
            probabilities = probabilities.copy()
            best = probabilities.argmax(1)
            probabilities[np.arange(len(best)), best] = probabilities.max(1) > 0
        threshold = tune_threshold(labels, gold, probabilities)
        if settings.threshold == "global":
            return cls(threshold, at_least_one=at_least_one)
        tuned = tune_thresholds(labels, gold, probabilities, min_positives=settings.min_positives)
        by_code = {code: float(value) for code, value in zip(labels.codes, tuned) if value != threshold}
        return cls(threshold, by_code, at_least_one)

    def thresholds(self, labels: LabelSpace) -> float | np.ndarray:
        """One number if all codes have the same threshold, else one per label (L,)."""
        if not self.by_code:
            return self.threshold
        return np.array([self.by_code.get(code, self.threshold) for code in labels.codes])

    def accepted(self, labels: LabelSpace, probabilities: np.ndarray) -> np.ndarray:
        """Whether each code of a note is accepted (L,), given its probabilities (L,); never at probability 0."""
        return self.accepted_at(self.thresholds(labels), probabilities)

    def accepted_at(self, thresholds: float | np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """The result of `accepted` if `thresholds(labels)` is known: it takes longer than the rest."""
        accepted = (probabilities > 0) & (probabilities >= thresholds)
        if self.at_least_one and len(accepted) and not accepted.any():
            best = probabilities.argmax()
            accepted[best] = probabilities[best] > 0
        return accepted

    def accepts(self, code: Code, probability: float) -> bool:
        """Whether a code is accepted at this probability; never at 0."""
        return probability > 0 and probability >= self.by_code.get(code, self.threshold)

    def to_json(self) -> dict[str, Any]:
        """The global threshold, and [system, code, threshold] of each code with another one."""
        by_code = [[*code, value] for code, value in self.by_code.items()]
        return {"threshold": self.threshold, "by_code": by_code, "at_least_one": self.at_least_one}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Decision:
        """The decision that `to_json` returned."""
        by_code = {Code(system, code): float(threshold) for system, code, threshold in value["by_code"]}
        threshold = float(value["threshold"])
        if not all(0 <= number <= 1 for number in (threshold, *by_code.values())):
            raise ValueError("a threshold must lie in [0, 1]")
        return cls(threshold, by_code, bool(value.get("at_least_one", False)))  # absent in older bundles


def tune_threshold(
    labels: LabelSpace, gold: Sequence[Collection[Code]], scores: Scores, *, systems: Collection[str] | None = None
) -> float:
    """The threshold with the highest micro F1 on these notes; of equally good scores the highest.

    The optimum is exact: between the scores of two true cells a lower threshold only adds false codes, so that the best
    threshold is the score of a true cell. The midpoint between that score and the next lower one is returned: it
    accepts the same codes of these notes. True codes outside the label space are always misses.
    """
    return _best_threshold(Scored.of(labels, gold, scores, systems))


def tune_thresholds(
    labels: LabelSpace, gold: Sequence[Collection[Code]], scores: Scores, *, min_positives: int = 10
) -> np.ndarray:
    """One threshold per label (L,), with the highest F1 of that code.

    min_positives: codes with fewer true notes get the global threshold, because theirs would be noise.
    """
    scored = Scored.of(labels, gold, scores)
    thresholds = np.full(len(labels), _best_threshold(scored))
    positives = scored.gold_in_labels.tocsc()
    frequent = np.flatnonzero(np.diff(positives.indptr) >= max(1, min_positives))

    def tune(group: np.ndarray, block: np.ndarray) -> None:
        for column, values, ascending in zip(group, block, np.sort(block, axis=1)):
            true = np.sort(values[positives.indices[positives.indptr[column] : positives.indptr[column + 1]]])
            accepted = len(ascending) - np.searchsorted(ascending, true, "left")
            hits = len(true) - np.searchsorted(true, true, "left")
            best = _best_score(true, hits, accepted, len(true))
            if best is not None:
                at = np.searchsorted(ascending, best, "left")
                thresholds[column] = _midpoint(best, ascending[at - 1] if at else ascending.dtype.type(0))

    scored.map_codes(frequent, tune)
    return thresholds


def _best_threshold(scored: Scored) -> float:
    cells = CellCounts.of(scored)
    best = _best_score(cells.values, cells.hits, cells.accepted, scored.gold.nnz)
    if best is None:
        raise DataError("cannot tune a threshold: no true code of these notes has a score above 0")
    return _midpoint(best, max(scored.map_notes(lambda _, block: np.where(block < best, block, 0).max(initial=0))))


def _midpoint(best: np.floating, below: np.floating) -> float:
    """The midpoint between the best score and the next lower one, in the precision of the scores."""
    middle = below + (best - below) / 2
    return float(middle if middle > below else best)


def _best_score(values: np.ndarray, hits: np.ndarray, accepted: np.ndarray, n_true: int) -> np.floating | None:
    """The value (ascending) with the highest F1 = 2 hits / (accepted + true); zero scores are never accepted."""
    f1 = np.where(values > 0, 2 * hits / (accepted + n_true), -1.0)
    if not len(f1) or f1.max() < 0:
        return None
    return values[len(f1) - 1 - np.argmax(f1[::-1])]
