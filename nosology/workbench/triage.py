"""The confidence of a note's suggestions, the triage rule, and which notes show what the rule may let pass.

Confidence is the expected F1 of the accepted codes. With A the accepted codes and p their calibrated probabilities, the
coder expects sum_A p true positives, sum_A (1 - p) false positives and sum_not-A p false negatives. The threshold on it
comes from a calibration, see `triage_guarantee`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, func, select

from nosology.core import ConfigError, Suggestion
from nosology.workbench.blind_access import open_originals
from nosology.workbench.store_settings import load_setting, save_setting
from nosology.workbench.store_tables import codings, decisions, notes

MIN_SAMPLE = 0.01
MAX_CODED_NOTES = 20_000  # the newest notes of a coder among which notes count


@dataclass(frozen=True)
class TriageRule:
    """Whether notes that a guarantee allows are pre-accepted, except a random share `sample` that people review."""

    on: bool = False
    sample: float = 0.1

    def __post_init__(self) -> None:
        if not MIN_SAMPLE <= self.sample <= 1:
            raise ConfigError(
                f"the share that people still review must lie in [{MIN_SAMPLE:g}, 1]; got {self.sample:g}"
            )


@dataclass(frozen=True)
class CalibrationPeriod:
    """Which notes may count: those coded from `start` on. Since the rule was first on, only its random share may.

    Other notes are reviewed only where the confidence is low, and say nothing about notes that pass. share: the
    smallest sample of all rules in the period. rule_on: since when; None: never.
    """

    start: float = 0.0
    rule_on: float | None = None
    share: float = 1.0

    def counts(self, note_id: int, coded: float) -> bool:
        """Whether a note that was coded at this time may count: people review it whatever its confidence."""
        if coded < self.start:
            return False
        return self.rule_on is None or coded < self.rule_on or is_sampled(note_id, self.share)


@dataclass(frozen=True)
class CountedNotes:
    """The ids of the notes that count, in the order of coding; and of those that wait for review, with their names."""

    coder_id: int | None = None
    ids: list[int] = field(default_factory=list)
    waiting: dict[int, str] = field(default_factory=dict)
    later: int = 0  # finished notes that do not count yet, because an earlier one waits


def is_sampled(note_id: int, share: float) -> bool:
    """Whether a note belongs to a random share of all notes. It depends on the note's id only."""
    return (note_id * 2654435761 % 2**32) / 2**32 < share


def expected_f1(suggestions: Sequence[Suggestion]) -> float:
    """The expected F1 of the accepted codes by the coder's own probabilities; 0 if none is accepted."""
    accepted = [item.probability for item in suggestions if item.accepted]
    missed = sum(item.probability for item in suggestions if not item.accepted)
    return 2 * sum(accepted) / (sum(accepted) + missed + len(accepted)) if accepted else 0.0


def load_triage_rule(connection: Connection) -> TriageRule:
    """The rule in force. Rules of older versions had a threshold of their own, and could have no sample."""
    value = load_setting(connection, "triage")
    return TriageRule(value.get("on", False), max(MIN_SAMPLE, value.get("sample", TriageRule.sample)))


def save_triage_rule(connection: Connection, rule: TriageRule) -> None:
    """Puts a rule in force for notes that are coded from now on."""
    period = load_period(connection)
    if rule.on:
        since = time.time() if period.rule_on is None else period.rule_on
        period = replace(period, rule_on=since, share=min(period.share, rule.sample))
    save_setting(connection, "triage", rule)
    save_setting(connection, "triage_period", period)


def load_period(connection: Connection) -> CalibrationPeriod:
    """The period in force.

    Stores of older versions have none. If a rule is on there, or has pre-accepted a note, nobody knows which notes
    people would have reviewed in any case: none counts until a new period starts.
    """
    if value := load_setting(connection, "triage_period"):
        return CalibrationPeriod(**value)
    preaccepted = select(decisions.c.id).where(decisions.c.action == "preaccept").limit(1)
    was_on = load_triage_rule(connection).on or connection.scalar(preaccepted) is not None
    return CalibrationPeriod(rule_on=0.0, share=0.0) if was_on else CalibrationPeriod()


def start_period(connection: Connection) -> None:
    """From now on, only notes that are coded later count."""
    now, rule = time.time(), load_triage_rule(connection)
    period = CalibrationPeriod(now, now, rule.sample) if rule.on else CalibrationPeriod(now)
    save_setting(connection, "triage_period", period)


def newest_coder(connection: Connection) -> int | None:
    """The coder of the note that was coded last; None if none was."""
    return connection.scalar(select(codings.c.coder_id).order_by(codings.c.id.desc()).limit(1))


def count_notes(connection: Connection) -> CountedNotes:
    """The notes of the coder in use that count for a calibration.

    They are all notes that may count, in the order of coding, up to the first that is not finished. A later one that is
    finished already may be an easy one, and does not count yet.
    """
    coder, period = newest_coder(connection), load_period(connection)
    newest = select(codings.c.note_id, func.max(codings.c.id).label("coding"))
    newest = (
        newest.group_by(codings.c.note_id).order_by(func.max(codings.c.id).desc()).limit(MAX_CODED_NOTES).subquery()
    )
    is_final = (notes.c.status == "done") & notes.c.id.not_in(open_originals())
    query = (
        select(notes.c.id, notes.c.ref, codings.c.made, is_final.label("final"))
        .join(newest, newest.c.note_id == notes.c.id)
        .join(codings, codings.c.id == newest.c.coding)
        .where(codings.c.coder_id == coder, notes.c.double_of.is_(None), notes.c.status != "deleted")
        .order_by(codings.c.id)
    )
    counted = CountedNotes(coder)
    later = 0
    for row in connection.execute(query):
        if not period.counts(row.id, row.made):
            continue
        if not row.final:
            counted.waiting[row.id] = row.ref
        elif counted.waiting:
            later += 1
        else:
            counted.ids.append(row.id)
    return replace(counted, later=later)
