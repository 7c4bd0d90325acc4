"""The audit log: an append-only entry for every access to notes and for every administrative change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, RowMapping, insert, select
from sqlalchemy.exc import SQLAlchemyError

from nosology.workbench.database import write_transaction
from nosology.workbench.store_tables import audit, notes, users


def log_access(
    engine: Engine, user: int | None, what: str, note_id: int | None, address: str | None, object: str = ""
) -> None:
    """Writes one entry, in a transaction that concurrent callers share.

    object: what the action was about other than a note, such as a user, a setting with its values, or a batch.
    """
    _writer(engine).add(audit_entry(user, what, note_id, address, object))


def log_access_in(
    connection: Connection, user: int | None, what: str, note_id: int | None, address: str | None, object: str = ""
) -> None:
    """Writes one entry within the caller's transaction."""
    connection.execute(insert(audit).values(**audit_entry(user, what, note_id, address, object)))


def log_command_reads(engine: Engine, what: str, note_ids: Sequence[int]) -> None:
    """Writes one entry per note that a command read; the user of a command is unknown."""
    if note_ids:
        with write_transaction(engine) as connection:
            connection.execute(
                insert(audit), [audit_entry(None, what, note_id, "command line") for note_id in note_ids]
            )


def audit_entry(
    user: int | None, what: str, note_id: int | None, address: str | None, object: str = ""
) -> dict[str, Any]:
    """The values of an entry."""
    row = {"at": time.time(), "user_id": user, "what": what, "note_id": note_id}
    return row | {"address": (address or "")[:60], "object": object[:1000]}


def shown_notes(note_ids: Iterable[int]) -> str:
    """The object of an entry about a list: the ids of the notes in it, such as "notes 3-7, 9"."""
    ranges: list[list[int]] = []
    for number in sorted(note_ids):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = (str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"notes {', '.join(texts)}" if ranges else "no notes"


def read_log(
    connection: Connection, *, note_id: int | None = None, before: int | None = None, limit: int = 200
) -> list[RowMapping]:
    """The newest entries, of all notes or of one; before: only entries with a smaller id."""
    query = (
        select(audit, users.c.name.label("user"), notes.c.ref)
        .join(users, users.c.id == audit.c.user_id, isouter=True)
        .join(notes, notes.c.id == audit.c.note_id, isouter=True)
    )
    if note_id is not None:
        query = query.where(audit.c.note_id == note_id)
    if before is not None:
        query = query.where(audit.c.id < before)
    return list(connection.execute(query.order_by(audit.c.id.desc()).limit(limit)).mappings())


class _PendingRow:
    """A row that waits to be written."""

    def __init__(self, values: dict[str, Any]):
        self.values, self.is_written = values, False


class GroupCommitWriter:
    """Inserts audit rows of many threads with few commits, because each commit waits for the disk.

    The thread that holds the commit lock writes all pending rows. The others find their row written when they get the
    lock. `add` returns when its row is committed.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._commit_lock, self._list_lock = threading.Lock(), threading.Lock()
        self._pending: list[_PendingRow] = []

    def add(self, values: dict[str, Any]) -> None:
        """Commits a row; raises the database's error for it."""
        row = _PendingRow(values)
        with self._list_lock:
            self._pending.append(row)
        with self._commit_lock:
            if row.is_written:
                return
            with self._list_lock:
                others, self._pending = [other for other in self._pending if other is not row], []
            try:
                self._insert([row, *others])
            except SQLAlchemyError:  # another row may be invalid: each thread then writes its row alone
                self._insert([row])

    def _insert(self, rows: Sequence[_PendingRow]) -> None:
        with write_transaction(self._engine) as connection:
            connection.execute(insert(audit), [row.values for row in rows])
        for row in rows:
            row.is_written = True


_writers: WeakKeyDictionary[Engine, GroupCommitWriter] = WeakKeyDictionary()
_writers_lock = threading.Lock()


def _writer(engine: Engine) -> GroupCommitWriter:
    """The only writer of a database."""
    with _writers_lock:
        return _writers.setdefault(engine, GroupCommitWriter(engine))
