"""Agreement between coder and reviewers, review time, and drift of incoming notes."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Connection, Row, RowMapping, select

from nosology.claims.checks import PROCEDURES
from nosology.codes import describe, table
from nosology.core import Code
from nosology.workbench.blind_access import open_originals
from nosology.workbench.encounter_data import complete_encounter
from nosology.workbench.replay import replay, stored_decisions
from nosology.workbench.review import ANY_LENGTH, Review
from nosology.workbench.store_tables import audit, codings, decisions, notes

MAX_REVIEWED_NOTES = 3_000  # the newest finished notes that are counted
MAX_PAUSE = 300  # seconds: a longer gap between two actions counts as this long
DRIFT_FEATURES = {
    "words": "words per note",
    "digits": "share of words with a digit",
    "capitals": "share of words in capitals",
    "letters": "characters per word",
    "accepted": "codes accepted by the coder",
    "supported": "share of accepted codes with evidence",
    "confidence": "the coder's own confidence",
}
_MIN_SAMPLE = 30  # notes that each side of a drift comparison needs
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class ReviewedNote:
    """A finished note: codes accepted by the coder in its order, review, confidence, review time, end of the review.

    encounter: its completed data as they are now. at_coding: as they were when the coder read it, which is all that the
    triage rule knows; people may have completed or corrected them since.
    """

    note_id: int
    encounter: Mapping[str, Any]
    at_coding: Mapping[str, Any]
    accepted: tuple[Code, ...]
    review: Review
    raw_confidence: float
    seconds: float
    finished: float
    by_person: bool  # whether a person chose the codes, not the triage rule

    @property
    def suggested(self) -> frozenset[Code]:
        """The codes accepted by the coder."""
        return frozenset(self.accepted)

    @property
    def final(self) -> frozenset[Code]:
        """The final codes."""
        return frozenset(self.review.codes)


def load_reviewed_notes(connection: Connection, note_ids: Sequence[int] | None = None) -> list[ReviewedNote]:
    """The newest finished notes that were coded, each with its last coding; note_ids: only these notes."""
    query = (
        select(notes.c.id, notes.c.finished, notes.c.encounter)
        .where(notes.c.status == "done", notes.c.finished.is_not(None))
        .where(notes.c.double_of.is_(None), notes.c.id.not_in(open_originals()))  # codes that are final
        .order_by(notes.c.finished.desc())
        .limit(MAX_REVIEWED_NOTES)
    )
    rows = connection.execute(query if note_ids is None else query.where(notes.c.id.in_(note_ids))).all()
    reviewed = []
    for first in range(0, len(rows), 500):
        part = rows[first : first + 500]
        ids = [row.id for row in part]
        query = select(codings.c.note_id, codings.c.suggestions, codings.c.profile, codings.c.made)
        coded = rows_by_note(connection, query.where(codings.c.note_id.in_(ids)).order_by(codings.c.id))
        query = select(decisions).where(decisions.c.note_id.in_(ids)).order_by(decisions.c.version)
        decided = rows_by_note(connection, query)
        opened = rows_by_note(connection, select(audit).where(audit.c.note_id.in_(ids), audit.c.what == "note"))
        reviewed += [
            _reviewed_note(row, coded[row.id][-1], decided.get(row.id, []), opened.get(row.id, []))
            for row in part
            if row.id in coded
        ]
    return reviewed


def rows_by_note(connection: Connection, query: Any) -> dict[int, list[RowMapping]]:
    """The rows of a query with a column note_id, by note."""
    rows: dict[int, list[RowMapping]] = {}
    for row in connection.execute(query).mappings():
        rows.setdefault(row["note_id"], []).append(row)
    return rows


def _reviewed_note(
    note: Row, coding: RowMapping, decided: Sequence[RowMapping], opened: Sequence[RowMapping]
) -> ReviewedNote:
    review = replay(stored_decisions(decided), length=ANY_LENGTH, stored=True)
    times = sorted(
        [row["at"] for row in decided if row["user_id"] is not None and row["action"] != "document"]
        + [row["at"] for row in opened if row["at"] <= note.finished]  # who reads it later does not review it
    )
    return ReviewedNote(
        note_id=note.id,
        encounter=complete_encounter({**note.encounter, **review.encounter}),
        at_coding=complete_encounter(_undo_changes({**note.encounter, **review.encounter}, decided, coding["made"])),
        accepted=tuple(Code(s["system"], s["code"]) for s in coding["suggestions"] if s["accepted"]),
        review=review,
        raw_confidence=coding["profile"].get("confidence", 0.0),
        seconds=sum(min(MAX_PAUSE, after - before) for before, after in pairwise(times)),
        finished=note.finished,
        by_person=not any(item.origin == "triage" for item in review.chosen),
    )


def _undo_changes(fields: Mapping[str, Any], decided: Sequence[RowMapping], since: float) -> dict[str, Any]:
    """The data of an encounter without what people have changed since a time."""
    changes = [row["details"] for row in decided if row["action"] == "encounter" and row["at"] > since]
    return dict(fields) | {name: old for details in reversed(changes) for name, old in details["before"].items()}


@dataclass(frozen=True)
class AgreementCounts:
    """Counts of suggested (accepted by the coder), kept (suggested and final) and final codes of one group."""

    name: str
    title: str
    suggested: int
    kept: int
    final: int

    @property
    def precision(self) -> float | None:
        """The share of suggested codes that are final; None if none was suggested."""
        return self.kept / self.suggested if self.suggested else None

    @property
    def recall(self) -> float | None:
        """The share of final codes that were suggested; None if there are none."""
        return self.kept / self.final if self.final else None


def agreement_by_code(reviewed: Sequence[ReviewedNote], limit: int = 25) -> list[AgreementCounts]:
    """The agreement per code, of the most frequent codes."""
    groups = _count_by(reviewed, lambda code: code)[:limit]
    return [AgreementCounts(code.code, describe(code), *counts) for code, counts in groups]


def agreement_by_chapter(reviewed: Sequence[ReviewedNote]) -> list[AgreementCounts]:
    """The agreement per chapter; all procedures are one group."""
    return [AgreementCounts(name, title, *counts) for (name, title), counts in _count_by(reviewed, chapter_of)]


def total_agreement(reviewed: Sequence[ReviewedNote]) -> AgreementCounts:
    """The agreement over all codes."""
    groups = _count_by(reviewed, lambda code: "all")
    return AgreementCounts("all", "", *(groups[0][1] if groups else (0, 0, 0)))


def chapter_of(code: Code) -> tuple[str, str]:
    """(name, title) of the chapter of a code."""
    if code.system in PROCEDURES:
        return "procedures", "Procedures"
    codes = table(code.system)
    if code.code not in codes:
        return "other", "Codes of other releases"
    chapter = codes.chapter(code.code)
    return f"{code.system}:{chapter}", codes.description(chapter)


def _count_by(reviewed: Sequence[ReviewedNote], group: Callable[[Code], K]) -> list[tuple[K, tuple[int, int, int]]]:
    """(group, (suggested, kept, final)) of all codes, the most frequent group first."""
    suggested: Counter[K] = Counter()
    kept: Counter[K] = Counter()
    final: Counter[K] = Counter()
    for note in reviewed:
        suggested.update(map(group, note.suggested))
        kept.update(map(group, note.suggested & note.final))
        final.update(map(group, note.final))
    order = sorted(suggested.keys() | final.keys(), key=lambda key: (-max(suggested[key], final[key]), str(key)))
    return [(key, (suggested[key], kept[key], final[key])) for key in order]


def agreement_by_day(reviewed: Sequence[ReviewedNote]) -> list[tuple[str, int, float | None, float]]:
    """(day, finished notes, precision, median seconds per note), oldest day first."""
    days: dict[str, list[ReviewedNote]] = {}
    for note in reviewed:
        days.setdefault(time.strftime("%Y-%m-%d", time.gmtime(note.finished)), []).append(note)
    return [
        (day, len(notes), total_agreement(notes).precision, median([note.seconds for note in notes]))
        for day, notes in sorted(days.items())
    ]


def median(values: Sequence[float]) -> float:
    """The median; 0 of no values."""
    return float(statistics.median(values)) if values else 0.0


@dataclass(frozen=True)
class FeatureDrift:
    """A feature of the first and of the newest notes: means and population stability index (None: too few notes)."""

    name: str
    title: str
    then: float
    now: float
    index: float | None

    @property
    def verdict(self) -> str:
        """The index in words: below 0.1 stable, below 0.25 some change, else changed."""
        if self.index is None:
            return "too few notes"
        return "stable" if self.index < 0.1 else "some change" if self.index < 0.25 else "changed"


def measure_drift(connection: Connection, window: int = 500) -> list[FeatureDrift]:
    """The drift of each feature between the first and the newest notes."""
    query = select(codings.c.profile)
    first = list(connection.scalars(query.order_by(codings.c.id).limit(window)))
    last = list(connection.scalars(query.order_by(codings.c.id.desc()).limit(window)))
    if len(first) < window or len(last) < window:  # few notes: compare the older half with the newer half
        half = len(first) // 2
        first, last = first[:half], first[half:]
    rows = []
    for name, title in DRIFT_FEATURES.items():
        then, now = ([float(profile[name]) for profile in part if name in profile] for part in (first, last))
        index = population_stability_index(then, now)
        rows.append(FeatureDrift(name, title, float(np.mean(then or 0)), float(np.mean(now or 0)), index))
    return rows


def population_stability_index(then: Sequence[float], now: Sequence[float], bins: int = 10) -> float | None:
    """The sum of (q - p) ln(q / p) over the deciles of `then`; None if there are too few values."""
    if min(len(then), len(now)) < _MIN_SAMPLE:
        return None
    ordered = np.sort(then)
    edges = np.unique(ordered[len(ordered) * np.arange(1, bins) // bins])
    counts = [np.bincount(np.searchsorted(edges, part, "right"), minlength=len(edges) + 1) for part in (then, now)]
    p, q = ((count + 0.5) / (count + 0.5).sum() for count in counts)  # smoothed: no bin is empty
    return float(((q - p) * np.log(q / p)).sum())
