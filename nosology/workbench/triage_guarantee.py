"""What the triage rule guarantees: a threshold on the confidence, by risk control on reviewed notes.

A reviewer states a goal and calibrates. Each calibration of a coder is a test on the same notes: the k-th has a share
1 / (k (k + 1)) of the probability of error, so that all of them together are right with probability 1 - DELTA.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from sqlalchemy import Connection, delete, func, select

from nosology.claims.checks import AssignedCode, AssignedCodes
from nosology.claims.group_effects import drg_changed
from nosology.core import ConfigError
from nosology.evaluation.risk_control import control_risk, fewest_notes, note_losses
from nosology.workbench.measures import MAX_REVIEWED_NOTES, ReviewedNote, load_reviewed_notes
from nosology.workbench.store_settings import load_setting, save_setting
from nosology.workbench.store_tables import codings, settings
from nosology.workbench.triage import TriageRule, count_notes, is_sampled, load_triage_rule, start_period

TriageLoss = Literal["errors", "not_exact", "drg"]
LOSSES: tuple[TriageLoss, ...] = get_args(TriageLoss)
MAX_ERRORS = 10  # more errors of one note count as this many
MIN_TOLERATED = 0.001
DELTA = 0.05  # for all calibrations of a coder together


@dataclass(frozen=True)
class TriageGoal:
    """The kind of loss and how much of it is tolerated: mean errors of a note, or the share of notes.

    errors: wrong and missing codes of a note. not_exact: the code set is not exactly right. drg: it has another DRG.
    """

    loss: TriageLoss = "errors"
    tolerated: float = 0.5

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigError(f"the kind of error must be one of {', '.join(LOSSES)}; got {self.loss}")
        if not MIN_TOLERATED <= self.tolerated < self.bound:
            raise ConfigError(
                f"the tolerated error must lie between {MIN_TOLERATED:g} and {self.bound:g}; got {self.tolerated:g}"
            )

    @property
    def bound(self) -> float:
        """The largest loss of a note."""
        return MAX_ERRORS if self.loss == "errors" else 1

    @property
    def words(self) -> str:
        """What is tolerated, such as: at most 0.5 wrong or missing codes per encounter, on average."""
        if self.loss == "errors":
            return f"at most {self.tolerated:g} wrong or missing codes per encounter, on average"
        what = "whose codes are not exactly right" if self.loss == "not_exact" else "with another DRG"
        return f"at most {100 * self.tolerated:g} in 100 encounters {what}"


@dataclass(frozen=True)
class Guarantee:
    """What a calibration found: the threshold (None: nothing may pass) and the notes that showed it.

    notes: that counted. tested, passed: those that tested thresholds, and those of them that reach this one; found:
    their mean loss. fewest: notes without any error that would be needed. number: of the calibration of this coder.
    coding: the newest one when it was made; drift is monitored after it.
    """

    loss: TriageLoss
    tolerated: float
    threshold: float | None
    notes: int
    tested: int
    passed: int
    found: float | None
    fewest: int
    number: int
    coder_id: int | None
    coding: int
    made: float

    @property
    def goal(self) -> TriageGoal:
        """What was stated."""
        return TriageGoal(self.loss, self.tolerated)

    @property
    def share(self) -> float:
        """The share of the tested notes that pass."""
        return self.passed / self.tested if self.tested else 0.0


@dataclass(frozen=True)
class PassRule:
    """The triage rule with its guarantee, for notes of one coder."""

    rule: TriageRule
    guarantee: Guarantee | None
    coder_id: int

    def passes(self, note_id: int, confidence: float, encounter: Mapping[str, Any]) -> bool:
        """Whether a note is pre-accepted; encounter: its completed data."""
        found = self.guarantee
        if not self.rule.on or found is None or found.threshold is None or found.coder_id != self.coder_id:
            return False
        if confidence < found.threshold or is_sampled(note_id, self.rule.sample):
            return False
        return found.loss != "drg" or has_drg(encounter)


def load_pass_rule(connection: Connection, coder_id: int) -> PassRule:
    """The rule in force with its guarantee, if there is one."""
    return PassRule(load_triage_rule(connection), load_guarantee(connection), coder_id)


def load_guarantee(connection: Connection) -> Guarantee | None:
    """The result of the last calibration; None if there was none."""
    value = load_setting(connection, "triage_guarantee")
    return Guarantee(**value) if value else None


def calibrate(connection: Connection, goal: TriageGoal) -> Guarantee:
    """The guarantee for a goal by the notes that count now. It is saved and replaces the one before."""
    counted = count_notes(connection)
    reviewed = load_reviewed_notes(connection, counted.ids[-MAX_REVIEWED_NOTES:])
    numbers = load_setting(connection, "triage_calibrations")
    number = numbers.get(str(counted.coder_id), 0) + 1
    found = find_guarantee(reviewed, goal, number)
    guarantee = Guarantee(
        **found, number=number, coder_id=counted.coder_id, coding=newest_coding(connection), made=time.time()
    )
    save_setting(connection, "triage_calibrations", {**numbers, str(counted.coder_id): number})
    save_setting(connection, "triage_guarantee", asdict(guarantee))
    return guarantee


def find_guarantee(reviewed: Sequence[ReviewedNote], goal: TriageGoal, number: int) -> dict[str, Any]:
    """The fields of a guarantee that follow from the notes; number: of the calibration on them."""
    notes = [note for note in reviewed if note.by_person and (goal.loss != "drg" or has_drg(note.at_coding))]
    notes.sort(key=lambda note: note.note_id)  # the order of the database must not matter
    delta = DELTA / (number * (number + 1))
    found = control_risk(
        [note.raw_confidence for note in notes],
        triage_losses(notes, goal.loss),
        goal.tolerated,
        bound=goal.bound,
        binary=goal.loss != "errors",
        delta=delta,
        digits=2,
    )
    return {
        **{"loss": goal.loss, "tolerated": goal.tolerated, "threshold": found.threshold, "notes": len(notes)},
        **{"tested": found.tested, "passed": found.passed, "found": found.loss},
        "fewest": fewest_notes(goal.tolerated, bound=goal.bound, delta=delta, binary=goal.loss != "errors"),
    }


def triage_losses(notes: Sequence[ReviewedNote], loss: TriageLoss) -> np.ndarray:
    """The loss of each note (B,): what the coder accepted against what people decided."""
    if loss != "drg":
        return note_losses([note.suggested for note in notes], [note.final for note in notes], loss, MAX_ERRORS)
    return np.array([float(_changes_drg(note)) for note in notes])


def _changes_drg(note: ReviewedNote) -> bool:
    """Whether the accepted codes with the data at coding have another DRG than the final codes with the final data."""
    accepted = AssignedCodes(tuple(AssignedCode(code, "triage") for code in note.accepted))
    return drg_changed(accepted, note.review, note.at_coding, note.encounter)


def has_drg(encounter: Mapping[str, Any]) -> bool:
    """Whether the grouper has what it needs besides codes: an inpatient with age and sex."""
    known = isinstance(encounter.get("age"), int | float) and encounter.get("sex") in ("F", "M")
    return known and encounter.get("kind") == "inpatient"


def restart(connection: Connection) -> None:
    """Withdraws the guarantee; only notes that are coded from now on count for the next one."""
    start_period(connection)
    names = ("triage_guarantee", "triage_calibrations")
    connection.execute(delete(settings).where(settings.c.name.in_(names)))


def newest_coding(connection: Connection) -> int:
    """The id of the newest coding; 0 if there is none."""
    return connection.scalar(select(func.max(codings.c.id))) or 0
