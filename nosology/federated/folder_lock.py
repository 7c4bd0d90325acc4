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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(f"another {what} is at work in {folder}") from error
        yield
