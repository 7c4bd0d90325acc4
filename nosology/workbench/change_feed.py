"""Changes of notes and decisions in the order of their times, in pages that miss nothing.

A page ends at a cursor: the time and id of its last row. Rows that change while a client reads the pages get later
times, so they come again after the cursor. Rows whose transaction is not committed yet come in a later page, never
before the cursor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, and_, func, or_, select

from nosology.workbench.append_only import DELETED
from nosology.workbench.blind_access import hidden_notes
from nosology.workbench.change_clock import change_clock
from nosology.workbench.database import read_transaction
from nosology.workbench.review import STATUSES
from nosology.workbench.store_tables import decisions, notes, users
from nosology.workbench.work_queue import QueueFilter, count_queue, select_queue

CURSOR = r"^[0-9]{1,11}(\.[0-9]{1,9})?:[0-9]{1,10}$"


@dataclass(frozen=True)
class FeedPage:
    """Rows of a list, the number of all that match, the number of pages, and the cursor after the last row."""

    rows: Sequence[Any]
    total: int
    pages: int
    next: str | None = None


def continue_clock(engine: Engine) -> None:
    """Makes the times of new changes later than all those in the store."""
    with read_transaction(engine) as connection:
        latest = (connection.scalar(select(func.max(column))) for column in (notes.c.changed, decisions.c.at))
        change_clock.start_after(max(time or 0.0 for time in latest))


def to_seconds(moment: float | datetime | None) -> float | None:
    """A time of a request as seconds since 1970; without a zone it is in UTC."""
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return moment


def _after(columns: tuple[ColumnElement[float], ColumnElement[int]], cursor: str | None) -> ColumnElement[bool]:
    """Whether a row is committed for good and comes after the cursor. Call it before the snapshot of the reads."""
    time, row = columns
    settled = time < change_clock.settled()
    if cursor is None:
        return settled
    seconds, _, number = cursor.partition(":")
    return and_(settled, or_(time > float(seconds), and_(time == float(seconds), row > int(number))))


def queue_page(engine: Engine, wanted: QueueFilter, user: int, *, page: int, limit: int) -> FeedPage:
    """A page of the queue by its number; notes that change meanwhile may move from one page to another."""
    with read_transaction(engine) as connection:
        rows = select_queue(connection, wanted, user, page=page, limit=limit)
        total = count_queue(connection, wanted, user)
    return FeedPage(rows, total, math.ceil(total / limit))


def _cursor(rows: Sequence[tuple[float, int]], before: str | None) -> str | None:
    """The cursor after these rows (time, id); without rows the one before them."""
    return f"{rows[-1][0]!r}:{rows[-1][1]}" if rows else before


def changed_notes(engine: Engine, wanted: QueueFilter, user: int, *, cursor: str | None, limit: int) -> FeedPage:
    """The notes of a filter by the time of their last change. Without a status deleted notes are among them."""
    if not wanted.statuses:
        wanted = replace(wanted, statuses=(*STATUSES, DELETED))
    after = _after((notes.c.changed, notes.c.id), cursor)
    with read_transaction(engine) as connection:
        rows = select_queue(connection, wanted, user, limit=limit, after=after)
        total = count_queue(connection, wanted, user)
    return FeedPage(rows, total, math.ceil(total / limit), _cursor([(row.changed, row.id) for row in rows], cursor))


def recent_decisions(
    engine: Engine, *, since: float | None, until: float | None, cursor: str | None, limit: int
) -> FeedPage:
    """The decisions on all notes by time, each with the name of its user, without double codings in progress."""
    wanted = [decisions.c.at >= since] if since is not None else []
    wanted += [decisions.c.at < until] if until is not None else []
    after = _after((decisions.c.at, decisions.c.id), cursor)
    with read_transaction(engine) as connection:
        wanted.append(decisions.c.note_id.not_in(hidden_notes(connection)))
        rows = _select_decisions(connection, [*wanted, after], limit)
        total = connection.scalar(select(func.count()).select_from(decisions).where(*wanted)) or 0
    return FeedPage(rows, total, math.ceil(total / limit), _cursor([(row["at"], row["id"]) for row in rows], cursor))


def _select_decisions(
    connection: Connection, conditions: Sequence[ColumnElement[bool]], limit: int
) -> Sequence[RowMapping]:
    query = select(decisions, users.c.name.label("user"))
    query = query.join(users, users.c.id == decisions.c.user_id, isouter=True).where(*conditions)
    return connection.execute(query.order_by(decisions.c.at, decisions.c.id).limit(limit)).mappings().all()
