"""The database: connections, transactions and migrations, on SQLite or PostgreSQL. store_tables.py has its tables."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError, OperationalError

from nosology.core import ConfigError, ConflictError, DataError, OutputError
from nosology.core.files import check_parent_folder, output_errors
from nosology.workbench.change_clock import change_clock
from nosology.workbench.store_tables import metadata

log = logging.getLogger("nosology.workbench")
T = TypeVar("T")
_ATTEMPTS = 5  # to write beside somebody who decides at the same moment


class StoreGoneError(OutputError):
    """The file of an open store was deleted or replaced."""


_write_locks: dict[str, threading.RLock] = {}  # one per SQLite file
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",  # a committed row survives a power failure
    "foreign_keys=ON",
    "busy_timeout=10000",  # milliseconds that a writer waits for a writer of another process
    "mmap_size=268435456",  # readers share the file in memory
    "secure_delete=ON",  # deleted text is overwritten with zeros
)


class SerializedJson(str):
    """A value of a JSON column that is serialised already, before the database is locked for the write."""

    __slots__ = ()


def _to_json(value: Any) -> str:
    return value if isinstance(value, SerializedJson) else json.dumps(value)


# hide_parameters: errors of the database must not show values, which may be text of a note.
_ENGINE_OPTIONS = {"hide_parameters": True, "json_serializer": _to_json, "pool_size": 20, "max_overflow": 30}


_STORE_MUST_BE = "store must be a file for SQLite or a postgresql:// address"
APPLICATION_ID = 0x4E4F534F  # "NOSO" in the header of an SQLite file
_OUR_TABLES = {"alembic_version", "users", "notes", "codings", "decisions"}  # in every version of a store


def open_database(store: str, *, existing: bool = False) -> Engine:
    """An engine for a store; its tables are created or migrated to the version of this program.

    existing: the store must exist and have the tables of this version; nothing is created or migrated. A database of
    another program raises ConfigError and is never changed.
    """
    check_store(store, existing=existing)
    try:
        engine = _postgres_engine(postgres_url(store)) if "://" in store else _sqlite_engine(store, existing)
    except (ArgumentError, ImportError, ValueError) as error:
        raise ConfigError(f"{_STORE_MUST_BE} that SQLAlchemy reads") from error
    except OSError as error:
        raise OutputError("the store cannot be opened: its folder cannot be created") from error
    try:
        with store_errors():
            _check_migrated(engine) if existing else migrate(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def store_errors() -> Iterator[None]:
    """Raises OutputError in place of errors of a database that is away or damaged."""
    try:
        yield
    except (DatabaseError, OSError) as error:
        if is_damaged(error):
            raise OutputError("the store is damaged; restore a backup with `nosology workbench restore`") from error
        if not isinstance(error, OperationalError | OSError):
            raise
        # The message of PostgreSQL's driver may contain a password.
        cause = getattr(error, "orig", None)
        reason = str(cause) if isinstance(cause, sqlite3.Error) else "it cannot be reached"
        raise OutputError(f"the store cannot be opened: {reason}") from error


def is_damaged(error: BaseException) -> bool:
    """Whether an error of SQLite says that its file is damaged."""
    name = getattr(getattr(error, "orig", None), "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def check_store(store: str, *, existing: bool = False) -> None:
    """ConfigError, DataError or OutputError if a store cannot be used. Nothing is written, no server is asked."""
    if "://" in store:
        if not store.startswith(("postgres://", "postgresql://")):
            raise ConfigError(f"{_STORE_MUST_BE}; got another kind of address")
        return
    path = _sqlite_path(store)
    with output_errors(path):
        if path.exists() and not path.is_file():
            raise ConfigError(f"{_STORE_MUST_BE}; {path} is {'a folder' if path.is_dir() else 'no file'}")
        if path.exists() and path.stat().st_size:
            _check_sqlite_file(path)
        elif existing:
            raise DataError(f"no such store: {path}")
    if not existing:
        check_parent_folder(path)  # also for an existing file: SQLite writes its log next to it
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise OutputError(f"cannot write {path}: no permission")


def _sqlite_path(store: str) -> Path:
    try:
        path = Path(store).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{_STORE_MUST_BE}; got {store}, a home folder that does not exist") from error
    if not path.name or store.endswith("/"):
        raise ConfigError(f"{_STORE_MUST_BE}; got {store!r}, a folder")
    return path.absolute()


def postgres_url(store: str) -> str:
    """The SQLAlchemy URL of a postgresql:// address."""
    return "postgresql+psycopg://" + store.partition("://")[2]


def _sqlite_engine(store: str, existing: bool) -> Engine:
    path = _sqlite_path(store)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not existing:
        _make_private(path)
    url = sa.URL.create("sqlite", database=str(path))  # the name of a file may have a question mark
    engine = sa.create_engine(url, connect_args={"check_same_thread": False}, **_ENGINE_OPTIONS)

    opened: list[tuple[int, int]] = []  # the file of the first connection

    def check_file() -> None:
        # SQLite would write on into a deleted file, and all would be lost when the process ends.
        if opened and _file_identity(path) != opened[0]:
            raise StoreGoneError("the store was deleted or replaced; nothing was saved; restart the server")

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        check_file()
        connection.isolation_level = None  # transactions start explicitly, below
        for pragma in _PRAGMAS[1:] if existing else _PRAGMAS:  # the journal mode is stored in the file
            connection.execute(f"PRAGMA {pragma}")
        if not opened and (identity := _file_identity(path)):
            opened.append(identity)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        check_file()
        # A writer takes the lock before it reads. Two writers that had read first would both fail.
        if connection.get_execution_options().get("writes"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:  # which takes no lock and cannot fail
            connection.connection.cursor().execute("BEGIN")

    return engine


def _make_private(path: Path) -> None:
    """Creates the file of a store, or changes it, so that only its owner can read it. SQLite gives its log the same."""
    if not path.exists():
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if not file.exists() or not file.stat().st_mode & 0o077:
            continue
        try:
            file.chmod(0o600)
            log.warning("%s was open to other users of this machine; now only its owner can read it", file)
        except OSError:
            log.warning("%s is open to other users of this machine; take their permission away", file)


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _check_sqlite_file(path: Path) -> None:
    """ConfigError if the file is no store of nosology. It is opened for reading only."""
    with path.open("rb") as file:
        header = file.read(100)
    application = int.from_bytes(header[68:72])
    if header.startswith(b"SQLite format 3\0") and application == APPLICATION_ID:
        return
    # Without a write-ahead log nobody writes now. `immutable` then keeps SQLite from creating files next to it.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.OperationalError as error:
        raise OutputError(f"{path} cannot be opened: no permission, or another program has locked it") from error
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} is no SQLite database, or is damaged") from error
    # Stores of version 0.1 have no application id; they are recognised by their tables. A database with nothing in it
    # is what a full disk left of a new store.
    if application or (names and not names >= _OUR_TABLES):
        raise ConfigError(f"{path} is a database of another program; it was not changed")


def _postgres_engine(url: str) -> Engine:
    # No ping before each use, which costs a round trip: after a restart of the server one request gets status 503,
    # and SQLAlchemy then drops every old connection.
    return sa.create_engine(url, pool_use_lifo=True, pool_recycle=600, **_ENGINE_OPTIONS)


@contextmanager
def write_transaction(engine: Engine) -> Iterator[Connection]:
    """A connection whose writes are committed together when the block ends, or not at all."""
    # SQLite writers poll for the lock; within a process a queue is faster and fair.
    is_sqlite = engine.dialect.name == "sqlite"
    lock = _write_locks.setdefault(str(engine.url), threading.RLock()) if is_sqlite else nullcontext()
    with (
        lock,
        change_clock.writing(),
        engine.connect().execution_options(writes=True) as connection,
        connection.begin(),
    ):
        yield connection


def write_with_retries(engine: Engine, change: Callable[[Connection], T]) -> T:
    """What a change returns, in a write transaction of its own.

    It is tried again if somebody decided on the same version of a note in the meantime: the change reads it again.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(ConflictError, IntegrityError), write_transaction(engine) as connection:
            return change(connection)
    with write_transaction(engine) as connection:
        return change(connection)


@contextmanager
def read_transaction(engine: Engine) -> Iterator[Connection]:
    """A connection for reads. Rows that must agree are append-only, so they cannot change between two reads."""
    with engine.connect() as connection, connection.begin():
        yield connection


def insert_row(connection: Connection, table: Table, values: dict[str, Any]) -> int:
    """The id of a new row."""
    result: sa.CursorResult[Any] = connection.execute(sa.insert(table).values(**values))
    key = result.inserted_primary_key
    assert key is not None  # a single row was inserted
    return int(key[0])


def migrate(engine: Engine) -> None:
    """Creates the tables, or migrates them to the version of this program, in one process at a time.

    A new database gets the tables of `metadata` and the newest revision; migrations are for existing databases.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with write_transaction(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(7410)"))
        config.attributes["connection"] = connection
        tables = set(sa.inspect(connection).get_table_names())
        if tables and not tables >= _OUR_TABLES:
            raise ConfigError("the store is a database of another program; it was not changed")
        if not tables:
            metadata.create_all(connection)
            command.stamp(config, "head")
        is_sqlite = engine.dialect.name == "sqlite"
        if is_sqlite and connection.exec_driver_sql("PRAGMA application_id").scalar() != APPLICATION_ID:
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise ConfigError("the store was made by a newer version of nosology; update the program") from error


def _check_migrated(engine: Engine) -> None:
    """ConfigError if the tables are not those of this version."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with read_transaction(engine) as connection:
        if not set(sa.inspect(connection).get_table_names()) >= _OUR_TABLES:
            raise ConfigError("the store is a database of another program")
        if compare_metadata(MigrationContext.configure(connection), metadata):
            raise ConfigError("the store is of another version; `nosology serve` updates a store of an older one")
