"""The connection to a store, and the way from an empty or older one to the present tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError

from nosology.core import ConfigError, OutputError

_lines: dict[str, threading.RLock] = {}  # one a file
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",  # what was answered is on disk, whatever happens to the machine
    "foreign_keys=ON",
    "busy_timeout=10000",  # milliseconds that a writer waits for one of another process
    "mmap_size=268435456",  # readers share the file in memory, instead of a copy each
)


class Written(str):
    """A value of a JSON column that is JSON already: written by its owner before the store was locked for it."""

    __slots__ = ()


def _json(value: Any) -> str:
    return value if isinstance(value, Written) else json.dumps(value)


# Errors of the store name no values: these are what notes say.
_ENGINE = {"hide_parameters": True, "json_serializer": _json, "pool_size": 20, "max_overflow": 30}


def store_url(store: str) -> str:
    """The address of a store: a URL as it is, a plain path as an SQLite file."""
    if "://" not in store:
        return f"sqlite:///{Path(store).expanduser().absolute()}"
    if store.startswith(("postgres://", "postgresql://")):
        return "postgresql+psycopg://" + store.partition("://")[2]
    return store


def open_store(store: str) -> Engine:
    """An engine for a store whose tables are of this version; they are made or migrated where they are not."""
    url = store_url(store)
    if not url.startswith(("sqlite", "postgresql+psycopg")):
        raise ConfigError("store must be a file for SQLite or a postgresql:// address; got another kind of address")
    try:
        engine = _sqlite(url) if url.startswith("sqlite") else _postgres(url)
    except (ArgumentError, ImportError, ValueError) as error:
        raise ConfigError("store must be a file for SQLite or a postgresql:// address that SQLAlchemy reads") from error
    except OSError as error:
        raise OutputError("the store cannot be opened: its folder cannot be made") from error
    try:
        migrate(engine)
    except (OperationalError, OSError) as error:  # the message of the driver may hold a password
        engine.dispose()
        raise OutputError("the store cannot be opened: the file or server cannot be reached or written") from error
    except BaseException:
        engine.dispose()
        raise
    return engine


def _sqlite(url: str) -> Engine:
    Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"check_same_thread": False}, **_ENGINE)

    @event.listens_for(engine, "connect")
    def prepare(connection, _record) -> None:  # type: ignore[no-untyped-def]
        connection.isolation_level = (
            None  # transactions begin where `writing` and `reading` say, not at the first write
        )
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes the lock before it reads: otherwise two that have read would both fail to write.
        immediate = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _postgres(url: str) -> Engine:
    # No ping before each use, which would cost a way to the server and back: after a restart of the server one
    # request is answered with 503, and SQLAlchemy drops every connection to the old one.
    return create_engine(url, pool_use_lifo=True, pool_recycle=600, **_ENGINE)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes: all of it is kept, on disk, when the block ends, or nothing."""
    # SQLite lets writers try again and again; in one process it is quicker and fairer to wait in line.
    line = _lines.setdefault(str(engine.url), threading.RLock()) if engine.dialect.name == "sqlite" else nullcontext()
    with line, engine.connect().execution_options(writes=True) as connection, connection.begin():
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads; what must agree in it is append-only, and cannot change between two reads."""
    with engine.connect() as connection, connection.begin():
        yield connection


def migrate(engine: Engine) -> None:
    """Brings the tables to the version of this program; only one process does so at a time."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(7410)"))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise ConfigError("the store was made by a newer version of nosology; update the program") from error


def alive(engine: Engine) -> bool:
    """Whether the store answers."""
    try:
        with reading(engine) as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError:
        return False
    return True
