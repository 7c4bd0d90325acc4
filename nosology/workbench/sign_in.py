"""Limits of sign-in: delays after wrong passwords, a limit per address, and cookies of known browsers.

A wrong password delays the next attempt on the same name from the same address only, so nobody can lock out a person
who is somewhere else. A browser in which somebody has signed in before has a cookie for that name; its attempts are
counted on their own, so nobody at the same address can lock it out, either. Counts are in memory: one server uses a
store.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque

FREE_FAILURES = 3  # wrong passwords without a delay
MAX_DELAY = 15 * 60  # seconds
MAX_KEYS = 10_000
DEVICE_DAYS = 180


class SignInDelays:
    """The delay of each key after wrong passwords: none for the first three, then 2, 4, 8 seconds and so on."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}  # number and end of the delay

    def wait(self, key: str, now: float | None = None) -> float:
        """The seconds until the next attempt is allowed; 0 if it is now."""
        now = time.monotonic() if now is None else now
        return max(0.0, self._failures.get(key, (0, 0.0))[1] - now)

    def fail(self, key: str, now: float | None = None) -> None:
        """Counts a wrong password."""
        now = time.monotonic() if now is None else now
        if len(self._failures) >= MAX_KEYS:  # random names must not fill the memory
            self._failures = {k: v for k, v in self._failures.items() if v[1] > now}
        number = self._failures.get(key, (0, 0.0))[0] + 1
        delay = min(MAX_DELAY, 2.0 ** min(number - FREE_FAILURES, 30)) if number > FREE_FAILURES else 0.0
        self._failures[key] = (number, now + delay)

    def succeed(self, key: str) -> None:
        """Forgets the wrong passwords of a key."""
        self._failures.pop(key, None)


class FailureLimit:
    """At most `limit` failures per key within `seconds`."""

    def __init__(self, limit: int, seconds: float):
        self.limit, self.seconds = limit, seconds
        self._events: dict[str, deque[float]] = {}

    def allows(self, key: str, now: float | None = None) -> bool:
        """Whether the key has fewer failures than the limit."""
        now = time.monotonic() if now is None else now
        events = self._events.get(key, deque())
        while events and now - events[0] >= self.seconds:
            events.popleft()
        return len(events) < self.limit

    def fail(self, key: str, now: float | None = None) -> None:
        """Counts a failure."""
        now = time.monotonic() if now is None else now
        if len(self._events) >= MAX_KEYS:
            self._events = {k: q for k, q in self._events.items() if q and now - q[-1] < self.seconds}
        self._events.setdefault(key, deque(maxlen=self.limit)).append(now)


def account_key(name: str) -> str:
    """The name of an account as sign-in compares it."""
    return " ".join(name.split()).lower()


def device_cookie(key: bytes, name: str) -> str:
    """The value of the cookie that says that somebody has signed in with this name in this browser."""
    nonce = secrets.token_hex(8)
    return f"{nonce}.{_signature(key, nonce, name)}"


def device_of(key: bytes, name: str, cookie: str) -> str | None:
    """The identity of a browser that has a valid cookie for this name, else None."""
    nonce, _, signature = cookie.partition(".")
    expected = _signature(key, nonce, name)
    return nonce if hmac.compare_digest(signature.encode(), expected.encode()) else None


def _signature(key: bytes, nonce: str, name: str) -> str:
    return hmac.new(key, f"device {nonce} {account_key(name)}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def name_digest(key: bytes, name: str) -> str:
    """A short keyed hash of a name that no user has: it may be a password typed into the wrong field."""
    return hmac.new(key, f"name {account_key(name)}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:8]
