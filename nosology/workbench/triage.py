"""How sure a note's coding is, what error that leaves to be expected, and which notes need nobody's eyes.

Confidence is the share of a note's codes that is expected to stand. With A the accepted codes and p their calibrated
probabilities, the coder expects sum_A p hits, sum_A (1 - p) codes too many and sum_not-A p codes missed, so that the
expected F1 is about 2 hits / (2 hits + too many + missed). Once people have reviewed enough notes, an isotonic
curve from this number to the F1 that their decisions gave takes its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nosology.core import Code, ConfigError

ENOUGH = 30  # reviewed notes before the curve is trusted
STEPS = tuple(round(0.05 * step, 2) for step in range(1, 20))  # thresholds that the page may show


@dataclass(frozen=True)
class Triage:
    """The rule: notes at or above `threshold` are pre-accepted, but `sample` of them are reviewed all the same."""

    on: bool = False
    threshold: float = 0.9
    sample: float = 0.1

    def __post_init__(self) -> None:
        if not (0 <= self.threshold <= 1 and 0 <= self.sample <= 1):
            raise ConfigError("threshold and sample must lie in [0, 1]")

    def takes(self, note_id: int, confidence: float) -> bool:
        """Whether a note is pre-accepted; which ones are sampled hangs on their number alone."""
        drawn = (note_id * 2654435761 % 2**32) / 2**32
        return self.on and confidence >= self.threshold and drawn >= self.sample


def raw_confidence(suggestions: Sequence[Mapping[str, Any]]) -> float:
    """The expected F1 of a note's accepted codes by the coder's own probabilities; 0 where it accepts none."""
    hits = sum(item["probability"] for item in suggestions if item["accepted"])
    accepted = sum(bool(item["accepted"]) for item in suggestions)
    missed = sum(item["probability"] for item in suggestions if not item["accepted"])
    return 2 * hits / (hits + missed + accepted) if accepted else 0.0


def agreement(suggested: Collection[Code], final: Collection[Code]) -> float:
    """F1 of suggested against final codes; 1 where there are none of either."""
    both = len(set(suggested) & set(final))
    total = len(set(suggested)) + len(set(final))
    return 2 * both / total if total else 1.0


@dataclass(frozen=True)
class Curve:
    """From the coder's own confidence to what reviewed notes say: a rising line through (x, y)."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    notes: int = 0

    @classmethod
    def fit(cls, raw: Sequence[float], observed: Sequence[float]) -> Curve:
        """The curve of reviewed notes; of too few, the one that leaves confidence as it is."""
        if len(raw) < ENOUGH:
            return cls(notes=len(raw))
        from sklearn.isotonic import IsotonicRegression

        fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(raw, observed)
        return cls(tuple(map(float, fitted.X_thresholds_)), tuple(map(float, fitted.y_thresholds_)), len(raw))

    @property
    def checked(self) -> bool:
        """Whether people's decisions stand behind it."""
        return bool(self.x)

    def __call__(self, raw: float | np.ndarray) -> Any:
        """The confidence that a raw one stands for."""
        return np.interp(raw, self.x, self.y) if self.x else raw


@dataclass(frozen=True)
class Row:
    """What a threshold would do: the share of notes it takes, their expected error, and the error people found."""

    threshold: float
    share: float
    notes: int
    expected_error: float | None
    observed_error: float | None
    reviewed: int


def outlook(confidences: Sequence[float], reviewed: Sequence[tuple[float, float]]) -> list[Row]:
    """A row for each threshold that takes some of the notes but not all, and for one that takes all, and one none.

    confidences: of all coded notes. reviewed: (confidence, observed agreement).
    """
    have = np.asarray(confidences, dtype=float)
    seen = np.asarray(reviewed, dtype=float).reshape(-1, 2)
    rows = []
    whole = [step for step in STEPS if len(have) and step <= have.min()][:-1]
    nothing = [step for step in STEPS if not len(have) or step > have.max()][1:]
    for threshold in (step for step in STEPS if step not in (*whole, *nothing)):
        above, checked = have[have >= threshold], seen[seen[:, 0] >= threshold]
        rows.append(
            Row(
                threshold,
                len(above) / len(have) if len(have) else 0.0,
                len(above),
                float(1 - above.mean()) if len(above) else None,
                float(1 - checked[:, 1].mean()) if len(checked) else None,
                len(checked),
            )
        )
    return rows
