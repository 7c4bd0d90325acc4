"""How often somebody may try."""

from __future__ import annotations

import time
from collections import deque

from nosology.core import ConfigError


class RateLimit:
    """At most so many events of a key within a window of seconds; in memory, for one process."""

    def __init__(self, most: int, seconds: float):
        if most < 1 or seconds <= 0:
            raise ConfigError("a rate limit needs at least one event and some seconds")
        self.most, self.seconds = most, seconds
        self._events: dict[str, deque[float]] = {}

    def allows(self, key: str, now: float | None = None) -> bool:
        """Whether one more event of this key may happen now; if so it is counted."""
        now = time.monotonic() if now is None else now
        if len(self._events) > 10_000:  # old keys must not fill the memory
            self._events = {k: q for k, q in self._events.items() if q and now - q[-1] < self.seconds}
        events = self._events.setdefault(key, deque())
        while events and now - events[0] >= self.seconds:
            events.popleft()
        if len(events) >= self.most:
            return False
        events.append(now)
        return True
