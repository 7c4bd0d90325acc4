"""Confidence of a note's suggestions, its calibration on reviewed notes, and the triage rule.

Confidence is the expected F1 of the accepted codes. With A the accepted codes and p their calibrated probabilities, the
coder expects sum_A p true positives, sum_A (1 - p) false positives and sum_not-A p false negatives. Once enough notes
are reviewed, an isotonic regression maps this number to the F1 of the reviewers' decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, bindparam, select, update

from nosology.core import Code, ConfigError, Suggestion
from nosology.workbench.store_settings import load_setting, save_setting
from nosology.workbench.store_tables import codings, notes

MIN_REVIEWED = 30  # reviewed notes before confidence is calibrated
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))  # that the page may show


@dataclass(frozen=True)
class TriageRule:
    """Notes at or above `threshold` are pre-accepted, except a random share `sample` that people review."""

    on: bool = False
    threshold: float = 0.9
    sample: float = 0.1

    def __post_init__(self) -> None:
        if not (0 <= self.threshold <= 1 and 0 <= self.sample <= 1):
            raise ConfigError("threshold and sample must lie in [0, 1]")

    def preaccepts(self, note_id: int, confidence: float) -> bool:
        """Whether a note is pre-accepted. Sampling depends on the note's id only."""
        random_number = (note_id * 2654435761 % 2**32) / 2**32
        return self.on and confidence >= self.threshold and random_number >= self.sample


def expected_f1(suggestions: Sequence[Suggestion]) -> float:
    """The expected F1 of the accepted codes by the coder's own probabilities; 0 if none is accepted."""
    accepted = [item.probability for item in suggestions if item.accepted]
    missed = sum(item.probability for item in suggestions if not item.accepted)
    return 2 * sum(accepted) / (sum(accepted) + missed + len(accepted)) if accepted else 0.0


def code_f1(suggested: Collection[Code], final: Collection[Code]) -> float:
    """F1 of suggested against final codes; 1 if both are empty."""
    both = len(set(suggested) & set(final))
    total = len(set(suggested)) + len(set(final))
    return 2 * both / total if total else 1.0


@dataclass(frozen=True)
class ConfidenceCalibration:
    """A monotone piecewise linear map from expected F1 to observed F1, through the points (x, y)."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    notes: int = 0

    @classmethod
    def fit(cls, raw: Sequence[float], observed: Sequence[float]) -> ConfidenceCalibration:
        """The isotonic regression of reviewed notes; the identity if there are too few."""
        if len(raw) < MIN_REVIEWED:
            return cls(notes=len(raw))
        from sklearn.isotonic import IsotonicRegression

        fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(raw, observed)
        return cls(tuple(map(float, fitted.X_thresholds_)), tuple(map(float, fitted.y_thresholds_)), len(raw))

    @property
    def is_fitted(self) -> bool:
        """Whether enough notes were reviewed."""
        return bool(self.x)

    def apply(self, raw: float) -> float:
        """The calibrated confidence."""
        return float(np.interp(raw, self.x, self.y)) if self.x else raw


@dataclass(frozen=True)
class ThresholdEffect:
    """The effect of a threshold: pre-accepted notes and their share, expected error, error found in reviews."""

    threshold: float
    share: float
    notes: int
    expected_error: float | None
    observed_error: float | None
    reviewed: int


def threshold_effects(confidences: Sequence[float], reviewed: Sequence[tuple[float, float]]) -> list[ThresholdEffect]:
    """The effects of the thresholds that split the notes, of one that takes all and of one that takes none.

    confidences: of all coded notes. reviewed: (confidence, observed F1) per reviewed note.
    """
    values = np.asarray(confidences, dtype=float)
    pairs = np.asarray(reviewed, dtype=float).reshape(-1, 2)
    takes_all = [step for step in THRESHOLDS if len(values) and step <= values.min()][:-1]
    takes_none = [step for step in THRESHOLDS if not len(values) or step > values.max()][1:]
    effects = []
    for threshold in (step for step in THRESHOLDS if step not in (*takes_all, *takes_none)):
        above, checked = values[values >= threshold], pairs[pairs[:, 0] >= threshold]
        effects.append(
            ThresholdEffect(
                threshold,
                len(above) / len(values) if len(values) else 0.0,
                len(above),
                float(1 - above.mean()) if len(above) else None,
                float(1 - checked[:, 1].mean()) if len(checked) else None,
                len(checked),
            )
        )
    return effects


def load_triage_rule(connection: Connection) -> TriageRule:
    """The rule in force."""
    return TriageRule(**load_setting(connection, "triage"))


def save_triage_rule(connection: Connection, rule: TriageRule) -> None:
    """Puts a rule in force for notes that are coded from now on."""
    save_setting(connection, "triage", rule)


def load_calibration(connection: Connection) -> ConfidenceCalibration:
    """The calibration fitted last."""
    value = load_setting(connection, "curve")
    return ConfidenceCalibration(tuple(value.get("x", ())), tuple(value.get("y", ())), value.get("notes", 0))


def save_calibration(connection: Connection, calibration: ConfidenceCalibration) -> None:
    """Stores a calibration and updates the confidence of all notes without decisions."""
    save_setting(connection, "curve", calibration)
    query = select(notes.c.id, codings.c.profile).join(codings, codings.c.note_id == notes.c.id)
    rows = connection.execute(query.where(notes.c.status == "new").order_by(codings.c.id)).all()
    if rows:
        values = [{"note": row.id, "calibrated": calibration.apply(row.profile.get("confidence", 0.0))} for row in rows]
        statement = update(notes).where(notes.c.id == bindparam("note"))
        connection.execute(statement.values(confidence=bindparam("calibrated")), values)


def raw_confidences(connection: Connection, limit: int = 20_000) -> list[float]:
    """The expected F1 of the notes coded last."""
    profiles = connection.scalars(select(codings.c.profile).order_by(codings.c.id.desc()).limit(limit))
    return [profile.get("confidence", 0.0) for profile in profiles]
