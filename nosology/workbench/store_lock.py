"""The lock of a store in a file: one server uses it at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from nosology.core import ConfigError
from nosology.core.files import output_errors


class StoreLock:
    """A lock that the operating system releases when the process ends, however it ends.

    It is on a file next to the store, because closing the store's own file would release locks of SQLite. A store in
    PostgreSQL has none.
    """

    def __init__(self, store: str):
        # resolve: the same file may be given by a link.
        self._path = None if "://" in store else Path(f"{Path(store).expanduser().resolve()}-lock")
        self._file: int | None = None

    def acquire(self) -> StoreLock:
        """Takes the lock; ConfigError if another server has it."""
        if self._path is not None:
            with output_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._take(self._file)
        return self

    def check(self) -> None:
        """Raises ConfigError if another server has the lock; nothing is created."""
        if self._path is not None and self._path.is_file():
            self.acquire().release()

    def _take(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            store = str(self._path).removesuffix("-lock")
            raise ConfigError(f"another server uses the store {store}; stop it first, or give another store") from error

    def release(self) -> None:
        """Gives the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
