"""Backup and restore: a consistent copy of a store as one SQLite file, also while a server writes to it.

A backup of a PostgreSQL store is an SQLite file, too, and each kind can be restored into the other.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, func, insert, select, text

from nosology.core import OutputError
from nosology.core.files import check_parent_folder, output_errors
from nosology.workbench.audit_log import log_access
from nosology.workbench.database import check_store, open_database, write_transaction
from nosology.workbench.store_tables import metadata, sessions, users

_ROWS = 500  # per statement


def backup_store(store: str, file: Path) -> dict[str, int]:
    """The number of rows per table that were written to a new file; OutputError if the file exists."""
    engine = open_database(store, existing=True)
    try:
        counts = _write_new_file(engine, file)
        log_access(engine, None, "backup", None, "command line", f"{counts['notes']} notes")
    finally:
        engine.dispose()
    return counts


def restore_store(file: Path, store: str) -> dict[str, int]:
    """The number of rows per table that were written to a new store; OutputError if the store has something in it.

    A backup of an older version is migrated. The file is not changed.
    """
    check_store(str(file), existing=True)
    check_store(store)
    with TemporaryDirectory(prefix="nosology-restore-") as folder:
        copy = shutil.copy(file, Path(folder) / "backup.db")
        engine = open_database(str(copy))
        try:
            return _write_new_file(engine, Path(store).expanduser()) if "://" not in store else _fill(engine, store)
        finally:
            engine.dispose()


def _write_new_file(engine: Engine, target: Path) -> dict[str, int]:
    """The numbers of rows by table that were written into an SQLite file, which appears only when it is complete."""
    _refuse_to_overwrite(target)
    check_parent_folder(target)
    with output_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            path = Path(folder) / "store.db"
            counts = _fill(engine, str(path))
            try:
                os.link(path, target)  # unlike a rename it never replaces a file
            except FileExistsError:
                _refuse_to_overwrite(target)
    return counts


def _refuse_to_overwrite(target: Path) -> None:
    if target.exists():
        raise OutputError(f"will not overwrite {target}: it exists already")


def _fill(source: Engine, store: str) -> dict[str, int]:
    target = open_database(store)
    try:
        counts = copy_rows(source, target)
    finally:
        target.dispose()
    if target.dialect.name == "sqlite":
        with closing(sqlite3.connect(str(target.url.database))) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")  # one file, without a log next to it
    return counts


def copy_rows(source: Engine, target: Engine) -> dict[str, int]:
    """The number of rows per table that were copied to an empty store, all as of one moment. Sessions are left out."""
    # Every read of the transaction sees the same state: SQLite's own rule, and this level of PostgreSQL.
    options = {"isolation_level": "REPEATABLE READ"} if source.dialect.name == "postgresql" else {}
    counts = {}
    with (
        source.connect().execution_options(**options) as reading,
        reading.begin(),
        write_transaction(target) as writing,
    ):
        if writing.scalar(select(func.count()).select_from(users)):
            raise OutputError("will not overwrite the store: it has users already")
        for table in metadata.sorted_tables:
            if table is sessions:
                continue
            counts[table.name] = 0
            rows = reading.execution_options(yield_per=_ROWS).execute(select(table).order_by(*table.primary_key))
            for part in rows.mappings().partitions():
                writing.execute(insert(table), [{str(name): value for name, value in row.items()} for row in part])
                counts[table.name] += len(part)
            if target.dialect.name == "postgresql" and table.autoincrement_column is not None:
                sequence = f"pg_get_serial_sequence('{table.name}', 'id')"
                writing.execute(text(f"SELECT setval({sequence}, (SELECT max(id) FROM {table.name}))"))
    return counts
