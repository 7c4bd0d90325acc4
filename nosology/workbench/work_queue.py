"""The work queue: notes by filter and order, and the next note of a user."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, case, func, or_, select

from nosology.workbench.append_only import DELETED
from nosology.workbench.blind_access import PairAccess, load_access
from nosology.workbench.conversation import FILTERS, QUEUE_COLUMNS
from nosology.workbench.review import STATUSES
from nosology.workbench.store_tables import decisions, documents, notes, users

ORDERS = {
    "oldest": notes.c.received,
    "uncertain": notes.c.confidence,
    "newest": notes.c.received,
    "changed": notes.c.changed,
}
PAGE_SIZE = 50
RESERVED_SECONDS = 15 * 60  # for which a note that "next" gave to a user is not given to others
# Not IS NULL, for which SQLite would take the index of that column and sort all notes.
IS_NO_COPY = func.coalesce(notes.c.double_of, 0) == 0
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
    talk: str = ""  # what is going on: a name of conversation.FILTERS, or ""
    statuses: tuple[str, ...] | None = None  # instead of status; empty: all
    ref: str = field(default="", repr=False)  # part of an id; never in a URL, because an id may identify a patient
    since: float | None = None  # notes that have changed at or after this time
    until: float | None = None  # and before this one

    def __post_init__(self) -> None:
        valid = {"status": {*STATUSES, "all", ""}, "mine": {"me", "nobody", ""}, "order": set(ORDERS)}
        valid["talk"] = {*FILTERS, ""}
        for name, allowed in valid.items():
            if getattr(self, name) not in allowed:
                object.__setattr__(self, name, "oldest" if name == "order" else "")

    @property
    def query(self) -> str:
        """The filter as the query of a URL, without defaults."""
        values = {name: getattr(self, name) for name in ("status", "mine", "site", "batch", "talk", "order")}
        return urlencode({name: value for name, value in values.items() if value and value != "oldest"})

    def conditions(self, user: int, copies: Collection[int] = ()) -> list[ColumnElement[bool]]:
        """The conditions of the notes that the filter shows to a user; copies: for double coding, by the user."""
        statuses = () if self.status == "all" else (self.status,) if self.status else TO_DO
        statuses = statuses if self.statuses is None else self.statuses
        found = [notes.c.status.in_(statuses) if statuses else notes.c.status != DELETED]
        found.append(or_(IS_NO_COPY, notes.c.id.in_(copies)) if copies else IS_NO_COPY)
        if self.mine:
            found.append(notes.c.assignee_id == user if self.mine == "me" else notes.c.assignee_id.is_(None))
        if self.site:
            found.append(notes.c.site == self.site)
        if self.batch:
            found.append(notes.c.batch_id == self.batch)
        if self.talk:
            found.append(FILTERS[self.talk])
        if self.ref:
            found.append(notes.c.ref.icontains(self.ref, autoescape=True))
        if self.since is not None:
            found.append(notes.c.changed >= self.since)
        if self.until is not None:
            found.append(notes.c.changed < self.until)
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


_source = func.coalesce(notes.c.double_of, notes.c.id)  # a copy has the documents of its original
_documents = select(func.count(documents.c.ref.distinct())).where(documents.c.note_id == _source).scalar_subquery()
_codes = case((notes.c.id.in_(bindparam("hidden", expanding=True)), 0), else_=notes.c.codes).label("codes")
_ROWS = (  # built once, which takes longer than to run it
    select(
        *(_codes if column is notes.c.codes else column for column in notes.c),
        users.c.name.label("assignee"),
        _documents.label("documents"),
        *QUEUE_COLUMNS,
    )
    .join(users, users.c.id == notes.c.assignee_id, isouter=True)
    .where(notes.c.id.in_(bindparam("ids", expanding=True)))
)


def select_queue(
    connection: Connection,
    wanted: QueueFilter,
    user: int,
    *,
    page: int = 0,
    limit: int = PAGE_SIZE,
    after: ColumnElement[bool] | None = None,
) -> list[Row]:
    """One page of the queue; after: the place where the page starts.

    Each row has the name of its assignee, its number of documents, and of queries and comments.
    """
    access = load_access(connection, user)
    chosen = select(notes.c.id).where(*wanted.conditions(user, access.copies))
    if after is not None:
        chosen = chosen.where(after)
    # First the ids: the database would count documents, queries and comments of all notes before it sorts them.
    ids = connection.scalars(chosen.order_by(*_order_by(wanted.order)).limit(limit).offset(page * limit)).all()
    values = {"ids": ids, "hidden": list(access.hidden)}
    rows = {row.id: row for row in connection.execute(_ROWS, values)} if ids else {}
    return [rows[note_id] for note_id in ids if note_id in rows]


def count_queue(connection: Connection, wanted: QueueFilter, user: int) -> int:
    """The number of notes in the queue."""
    conditions = wanted.conditions(user, load_access(connection, user).copies)
    return connection.scalar(select(func.count()).select_from(notes).where(*conditions)) or 0


def _reviewable(wanted: QueueFilter, user: int, access: PairAccess, *, reviewer: bool) -> list[ColumnElement[bool]]:
    """The conditions of the notes that a user can work on now: own and unassigned ones, and second reviews."""
    # coalesce: for OR, SQLite would look at the column twice
    own = and_(notes.c.status.in_(("new", "open")), func.coalesce(notes.c.assignee_id, user) == user)
    if access.barred:  # of two codings, nobody gets both
        own = and_(own, or_(notes.c.assignee_id == user, notes.c.id.not_in(access.barred)))
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
    return [*wanted.conditions(user, access.copies), or_(own, second) if reviewer else own]


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
    query = select(notes.c.id).where(
        *_reviewable(wanted, user, load_access(connection, user), reviewer=reviewer), notes.c.id.not_in(reserved)
    )
    start = connection.execute(select(notes.c.id, ORDERS[wanted.order]).where(notes.c.id == after)).first()
    if start is not None:
        query = query.where(_comes_after(wanted.order, start))
    return connection.scalar(query.order_by(*_order_by(wanted.order)).limit(1))


def position(
    connection: Connection, wanted: QueueFilter, user: int, note_id: int, *, reviewer: bool
) -> tuple[int, int] | None:
    """The place of a note among those that a user can work on, and their number; None if it is not among them."""
    conditions = _reviewable(wanted, user, load_access(connection, user), reviewer=reviewer)
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
