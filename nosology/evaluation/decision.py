"""Which probabilities are accepted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from nosology.core import Code
from nosology.core.label_space import LabelSpace
from nosology.core.settings import Settings
from nosology.evaluation.thresholds import tune_threshold, tune_thresholds

UNTUNED = 0.5  # the threshold where dev has no true code that the model gives a probability


class DecisionSettings(Settings):
    """How probabilities become accepted codes."""

    threshold: Annotated[float, Field(ge=0, le=1)] | Literal["global", "per_code"] = (
        "global"  # a number, or how to find it on dev
    )
    min_positives: int = Field(10, ge=1)  # per_code: codes with fewer dev notes keep the global threshold
    at_least_one: bool | Literal["auto"] = False  # a note's likeliest code is accepted; auto: if all dev notes have one


@dataclass(frozen=True)
class Decision:
    """A code is accepted if its probability reaches its own threshold, or the general one if it has none.

    at_least_one: where no code of a note does, its likeliest one is accepted.
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
        """The decision that the settings ask for, found on these dev notes where they leave it open.

        Where no true code of the dev notes has a probability, there is nothing to find it on, and it is `UNTUNED`.
        """
        one = settings.at_least_one
        one = all(gold) if one == "auto" else one
        if isinstance(settings.threshold, float):
            return cls(settings.threshold, at_least_one=one)
        if not labels.encode(gold).multiply(probabilities > 0).count_nonzero():
            return cls(UNTUNED, at_least_one=one)
        if one:  # these cells are accepted at any threshold
            probabilities = probabilities.copy()
            best = probabilities.argmax(1)
            probabilities[np.arange(len(best)), best] = probabilities.max(1) > 0
        general = tune_threshold(labels, gold, probabilities)
        if settings.threshold == "global":
            return cls(general, at_least_one=one)
        own = tune_thresholds(labels, gold, probabilities, min_positives=settings.min_positives)
        return cls(general, {code: float(t) for code, t in zip(labels.codes, own) if t != general}, one)

    def thresholds(self, labels: LabelSpace) -> float | np.ndarray:
        """One number for all codes where none has its own, else one a label (L,)."""
        if not self.by_code:
            return self.threshold
        return np.array([self.by_code.get(code, self.threshold) for code in labels.codes])

    def accepted(self, labels: LabelSpace, probabilities: np.ndarray) -> np.ndarray:
        """Which codes of a note are accepted (L,); probabilities: (L,). An impossible code (0) never is."""
        found = (probabilities > 0) & (probabilities >= self.thresholds(labels))
        if self.at_least_one and len(found) and not found.any():
            best = probabilities.argmax()
            found[best] = probabilities[best] > 0
        return found

    def accepts(self, code: Code, probability: float) -> bool:
        """Whether a code of this probability is accepted; an impossible one (0) never is."""
        return probability > 0 and probability >= self.by_code.get(code, self.threshold)

    def to_json(self) -> dict[str, Any]:
        """The general threshold, and [system, code, threshold] for codes with their own."""
        own = [[*code, value] for code, value in self.by_code.items()]
        return {"threshold": self.threshold, "by_code": own, "at_least_one": self.at_least_one}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Decision:
        """The decision that `to_json` gave."""
        own = {Code(system, code): float(threshold) for system, code, threshold in value["by_code"]}
        general = float(value["threshold"])
        if not all(0 <= threshold <= 1 for threshold in (general, *own.values())):
            raise ValueError("a threshold must lie in [0, 1]")
        return cls(general, own, bool(value.get("at_least_one", False)))  # older bundles do not say
