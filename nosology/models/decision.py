"""Which probabilities are accepted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nosology.codes.label_space import LabelSpace
from nosology.core import Code
from nosology.evaluation import tune_threshold, tune_thresholds
from nosology.models.settings import DecisionSettings

UNTUNED = 0.5  # the threshold where dev has no true code that the model gives a probability


@dataclass(frozen=True)
class Decision:
    """A code is accepted if its probability reaches its own threshold, or the general one if it has none."""

    threshold: float
    by_code: Mapping[Code, float] = field(default_factory=dict)

    @classmethod
    def tune(
        cls,
        settings: DecisionSettings,
        labels: LabelSpace,
        gold: Sequence[Collection[Code]],
        probabilities: np.ndarray,
    ) -> Decision:
        """The decision that the settings ask for, found on these dev notes where they leave it open.

        Where no true code of the dev notes has a probability, there is nothing to find it on, and it is `UNTUNED`.
        """
        if isinstance(settings.threshold, float):
            return cls(settings.threshold)
        if not labels.encode(gold).multiply(probabilities > 0).count_nonzero():
            return cls(UNTUNED)
        general = tune_threshold(labels, gold, probabilities)
        if settings.threshold == "global":
            return cls(general)
        own = tune_thresholds(labels, gold, probabilities, min_positives=settings.min_positives)
        return cls(general, {code: float(t) for code, t in zip(labels.codes, own) if t != general})

    def thresholds(self, labels: LabelSpace) -> float | np.ndarray:
        """One number for all codes where none has its own, else one a label (L,)."""
        if not self.by_code:
            return self.threshold
        return np.array([self.by_code.get(code, self.threshold) for code in labels.codes])

    def accepts(self, code: Code, probability: float) -> bool:
        """Whether a code of this probability is accepted; an impossible one (0) never is."""
        return probability > 0 and probability >= self.by_code.get(code, self.threshold)

    def to_json(self) -> dict[str, Any]:
        """The general threshold, and [system, code, threshold] for codes with their own."""
        return {"threshold": self.threshold, "by_code": [[*code, value] for code, value in self.by_code.items()]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Decision:
        """The decision that `to_json` gave."""
        own = {Code(system, code): float(threshold) for system, code, threshold in value["by_code"]}
        general = float(value["threshold"])
        if not all(0 <= threshold <= 1 for threshold in (general, *own.values())):
            raise ValueError("a threshold must lie in [0, 1]")
        return cls(general, own)
