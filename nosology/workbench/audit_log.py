"""Who has looked at what: an entry for every read, which the database itself keeps from being changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, insert, select

from nosology.workbench.store.engine import writing
from nosology.workbench.store.schema import audit, notes, users
from nosology.workbench.store.together import together


def log_read(engine: Engine, user: int | None, what: str, note_id: int | None, address: str | None) -> None:
    """Keeps for good that somebody has looked at a note, or at several."""
    together(engine, audit).add(_entry(user, what, note_id, address))


def log_reads(engine: Engine, what: str, note_ids: Sequence[int]) -> None:
    """Keeps for good that notes were read by a command, of which nobody knows who gave it."""
    if note_ids:
        with writing(engine) as connection:
            rows = [_entry(None, what, note_id, "command line") for note_id in note_ids]
            connection.execute(insert(audit), rows)


def log_in(connection: Connection, user: int | None, what: str, note_id: int | None, address: str | None) -> None:
    """As `log_read`, within a transaction of the caller."""
    connection.execute(insert(audit).values(**_entry(user, what, note_id, address)))


def _entry(user: int | None, what: str, note_id: int | None, address: str | None) -> dict[str, Any]:
    return {"at": time.time(), "user_id": user, "what": what, "note_id": note_id, "address": (address or "")[:60]}


def read_log(
    connection: Connection, *, note_id: int | None = None, before: int | None = None, limit: int = 200
) -> list[Mapping[str, Any]]:
    """The newest entries of the audit log, of one note or of all; before: those older than the entry of that number."""
    wanted = (
        select(audit, users.c.name.label("user"), notes.c.ref)
        .join(users, users.c.id == audit.c.user_id, isouter=True)
        .join(notes, notes.c.id == audit.c.note_id, isouter=True)
    )
    if note_id is not None:
        wanted = wanted.where(audit.c.note_id == note_id)
    if before is not None:
        wanted = wanted.where(audit.c.id < before)
    return list(connection.execute(wanted.order_by(audit.c.id.desc()).limit(limit)).mappings())
