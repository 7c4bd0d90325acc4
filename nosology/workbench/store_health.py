"""Whether a store takes writes, and the log of SQLite."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from sqlalchemy import Engine, delete, insert
from sqlalchemy.exc import SQLAlchemyError

from nosology.workbench.database import StoreGoneError, write_transaction
from nosology.workbench.store_tables import settings

_PROBE = "probe"  # the setting that a health check writes
_PROBE_BYTES = 64 * 1024


def is_alive(engine: Engine) -> bool:
    """Whether the database takes a small write. For SQLite a file next to the store is written, too.

    SQLite reuses the space of its log, so a small write alone may succeed on a full disk.
    """
    try:
        with write_transaction(engine) as connection:
            connection.execute(delete(settings).where(settings.c.name == _PROBE))
            connection.execute(insert(settings).values(name=_PROBE, value={"at": time.time()}))
        if engine.dialect.name == "sqlite":
            _probe_disk(Path(str(engine.url.database)))
    except (SQLAlchemyError, StoreGoneError, OSError):
        return False
    return True


def _probe_disk(store: Path) -> None:
    """Writes a file next to the store and removes it; OSError if the disk is full or cannot be written."""
    with tempfile.NamedTemporaryFile(dir=store.parent, prefix=f".{store.name}-probe-") as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def shrink_log(engine: Engine) -> None:
    """Moves SQLite's log into the file and empties it, so that deleted text is in neither."""
    if engine.dialect.name == "sqlite":
        connection = engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()
