"""Deletion of notes: by an admin, or a number of days after they were finished.

The documents, codings with evidence, decisions, comments, queries and audits of a note are deleted, and what identifies
the patient. The row in `notes` stays with counts and times, and the audit log has an entry. The triggers of the
database allow nothing else.
"""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy import Connection, Engine, delete, func, select, update

from nosology.workbench.append_only import DELETED, DELETION
from nosology.workbench.audit_log import log_access_in
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.html_fragments import forget_texts
from nosology.workbench.review import NotFound
from nosology.workbench.store_health import shrink_log
from nosology.workbench.store_settings import load_retention
from nosology.workbench.store_tables import (
    batches,
    bill_audits,
    codings,
    comments,
    decisions,
    documents,
    found_gaps,
    notes,
    queries,
    query_events,
)

log = logging.getLogger("nosology.workbench")
CHECK_SECONDS = 3600
_CHUNK = 100  # notes per transaction


def delete_note(connection: Connection, note_id: int, user: int | None, address: str, reason: str) -> None:
    """Deletes a note, and its copy for double coding; NotFound if there is none. reason: for the audit log."""
    copies = select(notes.c.id).where(notes.c.double_of == note_id, notes.c.status != DELETED)
    for copy in connection.scalars(copies).all():
        delete_note(connection, copy, user, address, f"{reason}, with its note")
    note = connection.execute(select(notes).where(notes.c.id == note_id, notes.c.status != DELETED)).first()
    if note is None:
        raise NotFound("there is no such note")
    kept = f"{reason}; it had {note.codes} codes and {note.version} decisions"
    log_access_in(connection, user, DELETION, note_id, address, kept)
    values = {"status": DELETED, "ref": f"deleted {note_id}", "patient": None, "lang": None, "encounter": {}}
    values["double_of"] = None  # so that a note whose copy was deleted can be coded twice again
    values |= {"assignee_id": None, "coding": "cancelled" if note.coding == "waiting" else note.coding}
    connection.execute(update(notes).where(notes.c.id == note_id).values(**values))
    came = connection.scalars(select(documents.c.batch_id).where(documents.c.note_id == note_id).distinct()).all()
    for table in (bill_audits, found_gaps, documents, codings, decisions, comments, query_events, queries):
        connection.execute(delete(table).where(table.c.note_id == note_id))
    others = select(documents.c.id).where(documents.c.batch_id == batches.c.id).exists()
    # The name of a batch is that of a file, or the id of its only document.
    connection.execute(update(batches).where(batches.c.id.in_(came), ~others).values(name="deleted"))


def delete_expired(engine: Engine, now: float | None = None) -> int:
    """The number of notes that were deleted because they were finished longer ago than the retention."""
    with read_transaction(engine) as connection:
        days = load_retention(connection).days
    if not days:
        return 0
    latest, number = (time.time() if now is None else now) - days * 86_400, 0
    is_expired = (notes.c.status == "done", notes.c.finished < latest, notes.c.double_of.is_(None))
    expired = select(notes.c.id).where(*is_expired).limit(_CHUNK)
    while True:
        with write_transaction(engine) as connection:
            ids = connection.scalars(expired).all()
            for note_id in ids:
                delete_note(connection, note_id, None, "retention", f"retention of {days} days")
        number += len(ids)
        if len(ids) < _CHUNK:
            break
    if number:
        forget_deleted(engine)
    return number


def forget_deleted(engine: Engine) -> None:
    """Removes the text of deleted notes from the log of SQLite and from the memory of this process."""
    shrink_log(engine)
    forget_texts()


def count_deleted(connection: Connection) -> int:
    """The number of notes that were deleted."""
    return connection.scalar(select(func.count()).where(notes.c.status == DELETED)) or 0


class RetentionJob:
    """A thread that deletes expired notes at the start and every hour."""

    def __init__(self, engine: Engine):
        self._engine, self._stop = engine, threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while True:
            try:
                delete_expired(self._engine)
            except Exception as error:  # the database may be away for a moment
                log.error("expired notes were not deleted: %s", type(error).__name__)
            if self._stop.wait(CHECK_SECONDS):
                return
