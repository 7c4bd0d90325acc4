"""Settings that an admin changes while the server runs; they are rows of the table `settings`."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from nosology.core import ConfigError
from nosology.workbench.store_tables import settings


@dataclass(frozen=True)
class SessionLimits:
    """The length of sessions, and the time without a request after which they are locked."""

    hours: int = 12
    idle_minutes: int = 120

    def __post_init__(self) -> None:
        if not 1 <= self.hours <= 7 * 24:
            raise ConfigError(f"a session must last 1 to {7 * 24} hours; got {self.hours}")
        if not 1 <= self.idle_minutes <= 24 * 60:
            raise ConfigError(f"the idle time must lie in 1 to {24 * 60} minutes; got {self.idle_minutes}")


@dataclass(frozen=True)
class RetentionRule:
    """Notes are deleted this number of days after they were finished; 0: never."""

    days: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.days <= 36_500:
            raise ConfigError(f"the retention must lie in 0 to 36,500 days; got {self.days}")


def load_setting(connection: Connection, name: str) -> dict[str, Any]:
    """The value of a setting; empty if it was never saved."""
    return connection.scalar(select(settings.c.value).where(settings.c.name == name)) or {}


def save_setting(connection: Connection, name: str, value: Any) -> None:
    """Saves a dataclass, or a dict, as the value of a setting."""
    connection.execute(delete(settings).where(settings.c.name == name))
    row = value if isinstance(value, dict) else asdict(value)
    connection.execute(insert(settings).values(name=name, value=row))


def load_session_limits(connection: Connection) -> SessionLimits:
    """The limits in force."""
    return SessionLimits(**load_setting(connection, "sessions"))


def load_retention(connection: Connection) -> RetentionRule:
    """The rule in force."""
    return RetentionRule(**load_setting(connection, "retention"))


def load_server_key(connection: Connection) -> bytes:
    """A random key of this store, made when it is first needed; the connection must be one for writes."""
    value = load_setting(connection, "server_key").get("hex")
    if value is None:
        value = secrets.token_hex(32)
        save_setting(connection, "server_key", {"hex": value})
    return bytes.fromhex(value)


def changes(before: Any, after: Any) -> str:
    """The fields of two dataclasses that differ, such as "hours: 12 -> 8"."""
    old, new = asdict(before), asdict(after)
    return ", ".join(f"{name}: {old[name]} -> {new[name]}" for name in new if old[name] != new[name]) or "no change"
