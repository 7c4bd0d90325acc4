"""The lock of a store: one server uses it at a time."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError

from nosology.core import ConfigError
from nosology.core.files import output_errors
from nosology.workbench.database import StoreGoneError, postgres_url, store_errors


class StoreLock:
    """A lock that is released when the process ends, however it ends.

    For an SQLite store the operating system locks a file next to it, because closing the store's own file would
    release locks of SQLite. For PostgreSQL see `AdvisoryLock`.
    """

    def __init__(self, store: str):
        # resolve: the same file may be given by a link.
        is_file = "://" not in store
        self._path = Path(f"{Path(store).expanduser().resolve()}-lock") if is_file else None
        self._session = None if is_file else AdvisoryLock(store)
        self._file: int | None = None

    def acquire(self) -> StoreLock:
        """This lock, which is taken; ConfigError if another server has it."""
        if self._session is not None:
            self._session.acquire()
        if self._path is not None:
            with output_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._take(self._file)
        return self

    def check(self) -> None:
        """Raises ConfigError if another server has the lock; nothing is created."""
        if self._path is None or self._path.is_file():
            self.acquire().release()

    def guard(self, engine: Engine) -> None:
        """Takes the lock again before an engine opens a connection, if the database was away and released it."""
        if self._session is not None:
            event.listen(engine, "connect", self._session.renew)

    def _take(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise _in_use(str(self._path).removesuffix("-lock")) from error

    def release(self) -> None:
        """Gives the lock back."""
        if self._session is not None:
            self._session.release()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _in_use(store: str) -> ConfigError:
    return ConfigError(f"another server uses the store {store}; stop it first, or give another store")


# Two numbers name the lock: one for nosology, one for the schema, because a database may have several stores.
_TAKE = sa.text("SELECT pg_try_advisory_lock(7411, hashtext(coalesce(current_schema(), '')))")
# The server notices a client that is gone with its machine, and never ends the session because it is idle.
_STAY = sa.text(
    "SELECT set_config(name, value, false) FROM pg_settings JOIN (VALUES ('tcp_keepalives_idle', '30'), "
    "('tcp_keepalives_interval', '10'), ('tcp_keepalives_count', '3'), ('idle_session_timeout', '0')) "
    "AS wanted (option, value) ON option = name"
)


class AdvisoryLock:
    """An advisory lock of PostgreSQL, held by a connection of its own for as long as the process lives."""

    def __init__(self, store: str):
        try:
            self._engine = sa.create_engine(postgres_url(store), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        except (ArgumentError, ImportError, ValueError) as error:
            raise ConfigError("store must be a postgresql:// address that SQLAlchemy reads") from error
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Takes the lock; ConfigError if another server has it, OutputError if the database cannot be reached."""
        with store_errors():
            connection = self._engine.connect()
            connection.execute(_STAY)
            is_free = connection.scalar(_TAKE)
        if not is_free:
            connection.close()
            raise _in_use("in this PostgreSQL database")
        self._connection = connection

    def renew(self, *_: Any) -> None:
        """Takes the lock again if its connection was lost; StoreGoneError if another server has it by now."""
        with self._lock:
            if self._connection is None or self._is_held(self._connection):
                return
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
            try:
                self.acquire()
            except ConfigError as error:
                sentence = "another server uses the store now; nothing was saved; stop one of them"
                raise StoreGoneError(sentence) from error

    @staticmethod
    def _is_held(connection: Connection) -> bool:
        try:
            return bool(connection.scalar(sa.text("SELECT true")))
        except DBAPIError:
            return False

    def release(self) -> None:
        """Closes the connection, which gives the lock back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
