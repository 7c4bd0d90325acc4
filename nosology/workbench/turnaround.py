"""Measures of the conversation: turnaround of queries by physician and month, and what second reviews changed."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from nosology.workbench.append_only import DELETED
from nosology.workbench.cases import Case, decision_history
from nosology.workbench.conversation import OTHER, UNABLE, AskedQuery, list_queries
from nosology.workbench.measures import rows_by_note
from nosology.workbench.replay import stored_decisions
from nosology.workbench.second_review import REVIEW_CHANGES, SecondReview, second_reviews
from nosology.workbench.store_tables import decisions, notes

MAX_SECOND_REVIEWS = 3_000  # the newest notes with an approval that are counted
ANY = "any physician"
ANSWERS = {"offered": "offered answer", "free": "own words", OTHER: "other", UNABLE: "unable to determine"}


def answer_kind(query: AskedQuery) -> str:
    """The kind of an answer, one of ANSWERS; free: to a question that offered no answers of its own."""
    if query.answer in query.options:
        return "offered"
    return "free" if query.answer == OTHER and not query.options else query.answer or ""


@dataclass(frozen=True)
class Turnaround:
    """Queries of one group: numbers by state, hours to the answer, and numbers by kind of answer."""

    name: str
    open: int
    withdrawn: int
    hours: tuple[float, ...]
    answers: dict[str, int]

    @property
    def answered(self) -> int:
        """The number of answered queries."""
        return len(self.hours)

    @property
    def median(self) -> float | None:
        """The median of hours to the answer."""
        return statistics.median(self.hours) if self.hours else None

    @property
    def ninetieth(self) -> float | None:
        """The 90th percentile of hours: the smallest value that at least 90 % of the answers do not exceed."""
        return sorted(self.hours)[math.ceil(0.9 * len(self.hours)) - 1] if self.hours else None

    @property
    def agreement(self) -> float | None:
        """The share of answers that are among those offered, of the queries that offered some; None without one."""
        total = sum(number for kind, number in self.answers.items() if kind != "free")
        return self.answers["offered"] / total if total else None


def measure_turnaround(name: str, queries: Sequence[AskedQuery]) -> Turnaround:
    """The turnaround of a group of queries."""
    hours = tuple(query.hours for query in queries if query.hours is not None)
    kinds = Counter(answer_kind(query) for query in queries if query.state == "answered")
    states = Counter(query.state for query in queries)
    return Turnaround(name, states["open"], states["withdrawn"], hours, {kind: kinds[kind] for kind in ANSWERS})


def _grouped(queries: Iterable[AskedQuery], name: Callable[[AskedQuery], str]) -> list[Turnaround]:
    groups: dict[str, list[AskedQuery]] = {}
    for query in queries:
        groups.setdefault(name(query), []).append(query)
    return [measure_turnaround(group, groups[group]) for group in sorted(groups)]


def _physician(query: AskedQuery) -> str:
    return query.physician or query.addressee or ANY


def _month(query: AskedQuery) -> str:
    return time.strftime("%Y-%m", time.gmtime(query.asked))


@dataclass(frozen=True)
class ConversationMeasures:
    """Turnaround of all queries, by physician and by month of the question; approved second reviews."""

    total: Turnaround
    by_physician: Sequence[Turnaround]
    by_month: Sequence[Turnaround]
    reviews: Sequence[SecondReview]

    @property
    def changed(self) -> float | None:
        """The share of second reviews that changed something; None without one."""
        return sum(bool(review.changes) for review in self.reviews) / len(self.reviews) if self.reviews else None

    @property
    def returned(self) -> float | None:
        """The share of second reviews that sent the note back; None without one."""
        return sum(bool(review.returns) for review in self.reviews) / len(self.reviews) if self.reviews else None

    @property
    def kinds(self) -> list[tuple[str, int, float, int]]:
        """(kind of change in words, second reviews with it, their share, changes)."""
        return [
            (
                words,
                number := sum(kind in review.kinds for review in self.reviews),
                number / max(1, len(self.reviews)),
                sum(change.kind == kind for review in self.reviews for change in review.changes),
            )
            for kind, words in REVIEW_CHANGES.items()
        ]


def measure_conversation(connection: Connection) -> ConversationMeasures:
    """The measures of all queries, and of the second reviews of the newest notes."""
    asked = list_queries(connection, page=None)
    return ConversationMeasures(
        measure_turnaround("all", asked),
        _grouped(asked, _physician),
        _grouped(asked, _month)[::-1],
        load_second_reviews(connection),
    )


def load_second_review(connection: Connection, case: Case) -> SecondReview | None:
    """The last second review of a case that is done; None if there was none."""
    if case.review.status != "done":
        return None
    rows = decision_history(connection, case.note["id"])
    return next(reversed(second_reviews(stored_decisions(rows))), None)


def load_second_reviews(connection: Connection) -> list[SecondReview]:
    """The approved second reviews of the newest notes that have one."""
    approved = select(decisions.c.note_id).where(decisions.c.action == "approve")
    query = select(notes.c.id).where(notes.c.id.in_(approved), notes.c.status != DELETED)
    ids = connection.scalars(query.order_by(notes.c.id.desc()).limit(MAX_SECOND_REVIEWS)).all()
    found = []
    for first in range(0, len(ids), 500):
        query = select(decisions).where(decisions.c.note_id.in_(ids[first : first + 500]))
        histories = rows_by_note(connection, query.order_by(decisions.c.note_id, decisions.c.version))
        found += [review for rows in histories.values() for review in second_reviews(stored_decisions(rows))]
    return found
