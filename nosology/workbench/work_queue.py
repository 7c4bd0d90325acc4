"""The work queue: notes by filter and order, and the next note of a user."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Connection, Row, and_, case, func, or_, select

from nosology.workbench.append_only import DELETED
from nosology.workbench.database import decisions, notes, users
from nosology.workbench.review import STATUSES

ORDERS = {"oldest": notes.c.received, "uncertain": notes.c.confidence, "newest": notes.c.received}
PAGE_SIZE = 50
RESERVED_SECONDS = 15 * 60  # for which a note that "next" gave to a user is not given to others
TO_DO = ("new", "open", "held", "second")  # statuses that the queue shows first


@dataclass(frozen=True)
class QueueFilter:
    """Which notes the queue shows, and in which order. Invalid values of a URL are ignored.

    status: one status, "all", or "" for those to do. mine: "me", "nobody" or "" for all.
    """

    status: str = ""
    mine: str = ""
    site: str = ""
    batch: int = 0
    order: str = "oldest"
    statuses: tuple[str, ...] | None = None  # instead of status; empty: all
    ref: str = field(default="", repr=False)  # part of an id; never in a URL, because an id may identify a patient

    def __post_init__(self) -> None:
        valid = {"status": {*STATUSES, "all", ""}, "mine": {"me", "nobody", ""}, "order": set(ORDERS)}
        for name, allowed in valid.items():
            if getattr(self, name) not in allowed:
                object.__setattr__(self, name, "oldest" if name == "order" else "")

    @property
    def query(self) -> str:
        """The filter as the query of a URL, without defaults."""
        values = {name: getattr(self, name) for name in ("status", "mine", "site", "batch", "order")}
        return urlencode({name: value for name, value in values.items() if value and value != "oldest"})

    def conditions(self, user: int) -> list[ColumnElement[bool]]:
        """The conditions of the notes that the filter shows to a user."""
        statuses = () if self.status == "all" else (self.status,) if self.status else TO_DO
        statuses = statuses if self.statuses is None else self.statuses
        found = [notes.c.status.in_(statuses) if statuses else notes.c.status != DELETED]
        if self.mine:
            found.append(notes.c.assignee_id == user if self.mine == "me" else notes.c.assignee_id.is_(None))
        if self.site:
            found.append(notes.c.site == self.site)
        if self.batch:
            found.append(notes.c.batch_id == self.batch)
        if self.ref:
            found.append(notes.c.ref.icontains(self.ref, autoescape=True))
        return found


def _order_by(order: str) -> tuple[Any, ...]:
    """Sort keys; notes without suggestions have no confidence and come last."""
    if order == "newest":
        return notes.c.received.desc(), notes.c.id.desc()
    return ORDERS[order].asc().nulls_last(), notes.c.id


def _comes_after(order: str, row: Row) -> ColumnElement[bool]:
    """Whether a note comes after another one, of which id and sort column are given."""
    column, (note_id, value) = ORDERS[order], row
    if order == "newest":
        return or_(column < value, and_(column == value, notes.c.id < note_id))
    if value is None:
        return and_(column.is_(None), notes.c.id > note_id)
    return or_(column > value, column.is_(None), and_(column == value, notes.c.id > note_id))


def select_queue(connection: Connection, wanted: QueueFilter, user: int, *, page: int = 0) -> list[Row]:
    """One page of the queue, each row with the name of its assignee."""
    query = select(notes, users.c.name.label("assignee"))
    query = query.join(users, users.c.id == notes.c.assignee_id, isouter=True).where(*wanted.conditions(user))
    return list(connection.execute(query.order_by(*_order_by(wanted.order)).limit(PAGE_SIZE).offset(page * PAGE_SIZE)))


def _reviewable(wanted: QueueFilter, user: int, *, reviewer: bool) -> list[ColumnElement[bool]]:
    """The conditions of the notes that a user can work on now: own and unassigned ones, and second reviews."""
    own = and_(notes.c.status.in_(("new", "open")), or_(notes.c.assignee_id == user, notes.c.assignee_id.is_(None)))
    # Who asked for a second review, or had finished the note, does not approve it.
    past = decisions.alias()
    approved = select(func.max(past.c.version)).where(past.c.note_id == notes.c.id, past.c.action == "approve")
    own_codes = select(decisions.c.id).where(
        decisions.c.note_id == notes.c.id,
        decisions.c.user_id == user,
        decisions.c.action.in_(("second", "finish")),
        decisions.c.version > func.coalesce(approved.correlate(notes).scalar_subquery(), 0),
    )
    second = and_(notes.c.status == "second", ~own_codes.exists())
    return [*wanted.conditions(user), or_(own, second) if reviewer else own]


def next_note(
    connection: Connection,
    wanted: QueueFilter,
    user: int,
    *,
    reviewer: bool,
    after: int = 0,
    reserved: Collection[int] = (),
) -> int | None:
    """The first note that comes after another one in the queue and that a user can work on; None at the end.

    reserved: notes that others work on.
    """
    query = select(notes.c.id).where(*_reviewable(wanted, user, reviewer=reviewer), notes.c.id.not_in(reserved))
    start = connection.execute(select(notes.c.id, ORDERS[wanted.order]).where(notes.c.id == after)).first()
    if start is not None:
        query = query.where(_comes_after(wanted.order, start))
    return connection.scalar(query.order_by(*_order_by(wanted.order)).limit(1))


def position(
    connection: Connection, wanted: QueueFilter, user: int, note_id: int, *, reviewer: bool
) -> tuple[int, int] | None:
    """The place of a note among those that a user can work on, and their number; None if it is not among them."""
    conditions = _reviewable(wanted, user, reviewer=reviewer)
    row = connection.execute(select(notes.c.id, ORDERS[wanted.order]).where(*conditions, notes.c.id == note_id)).first()
    if row is None:
        return None
    behind = func.sum(case((_comes_after(wanted.order, row), 1), else_=0))
    total, later = connection.execute(select(func.count(), behind).where(*conditions)).one()
    return int(total) - int(later), int(total)


class Reservations:
    """Which user works on which note, in the memory of the server: each note is given to one user for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, tuple[int, float]] = {}  # note -> user, end

    def of_others(self, user: int) -> set[int]:
        """The notes on which others work."""
        now = time.monotonic()
        with self._lock:
            self._held = {note: held for note, held in self._held.items() if held[1] > now}
            return {note for note, (holder, _) in self._held.items() if holder != user}

    def take(self, note: int, user: int) -> bool:
        """Reserves a note, and gives up the user's other ones; False if somebody else has it."""
        now = time.monotonic()
        with self._lock:
            holder, end = self._held.get(note, (user, 0.0))
            if holder != user and end > now:
                return False
            self._held = {other: held for other, held in self._held.items() if held[0] != user}
            self._held[note] = (user, now + RESERVED_SECONDS)
            return True
