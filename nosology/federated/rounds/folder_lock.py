"""A folder in which one program at a time may work."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nosology.core import OutputError

LOCK = "lock"


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """For the time of one `what` (named in the answer to another one): the folder is its own. A killed one lets go."""
    with held(folder / LOCK, f"another {what} is at work in {folder}"):
        yield


@contextmanager
def held(path: Path, otherwise: str) -> Iterator[None]:
    """Inside, no other process on this machine holds the file, which is made if it is missing; else OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise OutputError(f"cannot write {path.parent}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(otherwise) from error
        yield
