"""Times of changes in the order in which they are committed, so that a client that asks for changes misses none.

Two transactions may commit in another order than they started. A reader that took the newest time it can see as its
place would then miss the one that started first. The clock knows the running write transactions of this process, and a
store is used by one server process, so `settled` gives a time before which nothing can be added any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_TICK = 1e-6  # seconds; the next double after the present time is a quarter of it away
_MAX_AHEAD = 3600.0  # seconds; a time in a store that is further ahead comes from a clock that was wrong


class ChangeClock:
    """A clock that never repeats a time and never goes back, also if the clock of the machine does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0.0
        self._running: dict[object, float] = {}

    def now(self) -> float:
        """The time in seconds since 1970, later than every time before."""
        with self._lock:
            return self._next()

    def _next(self) -> float:
        self._last = max(time.time(), self._last + _TICK)
        return self._last

    def start_after(self, latest: float) -> None:
        """Makes all times later than the latest one in a store, unless that is far in the future."""
        with self._lock:
            if latest < time.time() + _MAX_AHEAD:
                self._last = max(self._last, latest)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Marks a write transaction: its changes get times within the block and are committed at its end."""
        key = object()
        with self._lock:
            self._running[key] = self._next()
        try:
            yield
        finally:
            with self._lock:
                del self._running[key]

    def settled(self) -> float:
        """The time before which every change is committed; all later commits have later times."""
        with self._lock:
            return min(self._running.values(), default=self._next())


change_clock = ChangeClock()
