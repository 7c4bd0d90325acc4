"""Administration of a store: retention and deletion, backup and restore, permissions, lock, damage."""

from __future__ import annotations

import sqlite3
import stat
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, delete, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from typer.testing import CliRunner

from nosology.cli import app
from nosology.core import ConfigError, ConflictError, NosologyError, Note, OutputError
from nosology.workbench import database
from nosology.workbench.audit_log import log_access, read_log
from nosology.workbench.cases import _suggestions, count_by_status, load_case, record_decision
from nosology.workbench.coding import cancel_batch, resume_batch
from nosology.workbench.database import open_database, postgres_url, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes, create_batch
from nosology.workbench.export import reviewed_notes
from nosology.workbench.retention import count_deleted, delete_expired, delete_note
from nosology.workbench.review import NotFound
from nosology.workbench.store_copy import backup_store, restore_store
from nosology.workbench.store_health import is_alive
from nosology.workbench.store_lock import StoreLock
from nosology.workbench.store_settings import RetentionRule, save_setting
from nosology.workbench.store_tables import audit, batches, coders, codings, decisions, documents, notes, users
from nosology.workbench.work_queue import QueueFilter, select_queue
from tests.workbench.conftest import new_store

SECRET = "Xyzzyplugh the patient said"
HEART = {"code": "icd10cm:I50.9", "start": 0, "end": 5}


@pytest.fixture
def finished(engine, people):
    """Two notes of a batch: the first was finished ten days ago, the second is in work."""
    with write_transaction(engine) as connection:
        batch = create_batch(connection, "MRN-1.txt", people["ann"], 2)
        add_notes(connection, [Note(f"MRN-{i}", SECRET * 50, patient="p1", extra={"age": 70}) for i in (1, 2)], batch)
        row = {"digest": "d", "name": "c", "kind": "linear", "about": {}, "created": 0.0}
        connection.execute(coders.insert().values(**row))
        for note in (1, 2):
            row = {"note_id": note, "coder_id": 1, "made": 0.0, "suggestions": [], "profile": {"words": 4}}
            connection.execute(codings.insert().values(**row))
    for note in (1, 2):
        record_decision(engine, note, "add", HEART, user=people["ann"], version=0)
    record_decision(engine, 1, "finish", {}, user=people["ann"], version=1, at=time.time() - 10 * 86_400)
    return engine


def rows_of(engine, note: int) -> list[int]:
    """The number of texts, codings and decisions of a note."""
    with read_transaction(engine) as connection:
        tables = (documents, codings, decisions)
        return [connection.scalar(select(func.count()).where(table.c.note_id == note)) for table in tables]


def test_notes_are_deleted_a_number_of_days_after_they_were_finished(finished, people):
    assert delete_expired(finished) == 0  # without a rule
    for days, expected in ((11, 0), (9, 1), (9, 0)):
        with write_transaction(finished) as connection:
            save_setting(connection, "retention", RetentionRule(days))
        assert delete_expired(finished) == expected
    assert rows_of(finished, 1) == [0, 0, 0] and rows_of(finished, 2) == [1, 1, 1]
    with read_transaction(finished) as connection:
        row = connection.execute(select(notes).where(notes.c.id == 1)).mappings().one()
        assert (row["ref"], row["patient"], row["encounter"], row["assignee_id"]) == ("deleted 1", None, {}, None)
        assert (row["codes"], row["version"]) == (1, 2) and row["finished"] is not None  # counts stay
        entry = next(entry for entry in read_log(connection, note_id=1) if entry["what"] == "delete note")
        assert entry["object"] == "retention of 9 days; it had 1 codes and 2 decisions"
        assert [row.ref for row in select_queue(connection, QueueFilter(status="all"), 1)] == ["MRN-2"]
        assert count_by_status(connection) == {"open": 1} and count_deleted(connection) == 1
        assert connection.scalar(select(batches.c.name)) == "MRN-1.txt"  # the batch has another note
        with pytest.raises(NotFound, match="the note was deleted"):
            load_case(connection, 1)
    assert list(reviewed_notes(finished)) == []
    with pytest.raises(NotFound, match="the note was deleted"):
        record_decision(finished, 1, "reopen", {}, user=people["ann"], version=2)
    with write_transaction(finished) as connection:
        delete_note(connection, 2, people["adam"], "10.0.0.1", "by an admin")
        assert connection.scalar(select(batches.c.name)) == "deleted"
        with pytest.raises(NotFound):
            delete_note(connection, 2, people["adam"], "10.0.0.1", "again")
    with write_transaction(finished) as connection:  # the same id can be imported again
        assert add_notes(connection, [Note("MRN-1", "new")], None) == (1, 0)


def test_deleted_text_is_neither_in_the_file_nor_in_memory(finished, tmp_path):
    if finished.dialect.name != "sqlite":
        return  # PostgreSQL's vacuum removes it
    with write_transaction(finished) as connection:
        save_setting(connection, "retention", RetentionRule(1))
    record_decision(finished, 2, "finish", {}, user=None, version=1, at=1.0)
    assert any(SECRET.encode() in path.read_bytes() for path in tmp_path.glob("workbench.db*"))
    with read_transaction(finished) as connection:
        load_case(connection, 2)
    assert _suggestions.cache_info().currsize
    assert delete_expired(finished) == 2
    assert not _suggestions.cache_info().currsize
    assert not any(SECRET.encode() in path.read_bytes() for path in tmp_path.glob("workbench.db*"))


@pytest.mark.parametrize("table", [documents, codings, decisions, audit])
def test_rows_are_deleted_only_with_their_note(finished, people, table):
    log_access(finished, people["ann"], "note", 2, "x")
    for statement in (delete(table).where(table.c.note_id == 2), update(table).values(note_id=2)):
        with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(finished) as connection:
            connection.execute(statement)
    with write_transaction(finished) as connection:
        delete_note(connection, 1, people["adam"], "x", "by an admin")
    with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(finished) as connection:
        connection.execute(delete(table).where(table.c.note_id.in_((1, 2))))


def test_a_batch_is_resumed_without_its_deleted_notes(engine, people):
    with write_transaction(engine) as connection:
        batch = create_batch(connection, "b", people["ann"], 2)
        add_notes(connection, [Note("a", "text"), Note("b", "text")], batch)
    cancel_batch(engine, batch)
    with write_transaction(engine) as connection:
        delete_note(connection, 1, people["adam"], "x", "by an admin")
    resume_batch(engine, batch)
    with read_transaction(engine) as connection:
        assert connection.scalars(select(notes.c.coding).order_by(notes.c.id)).all() == ["cancelled", "waiting"]


def test_a_deletion_is_logged_first_and_is_final(finished, people):
    for values in ({"status": "deleted"}, {"status": "deleted", "ref": "x"}):
        with pytest.raises(SQLAlchemyError, match="must be logged first"), write_transaction(finished) as connection:
            connection.execute(update(notes).where(notes.c.id == 1).values(**values))
    with write_transaction(finished) as connection:
        delete_note(connection, 1, people["adam"], "x", "by an admin")
    with pytest.raises(SQLAlchemyError, match="is final"), write_transaction(finished) as connection:
        connection.execute(update(notes).where(notes.c.id == 1).values(status="done"))


def contents(engine) -> dict[str, list]:
    with read_transaction(engine) as connection:
        tables = (users, notes, documents, codings, decisions)
        return {table.name: connection.execute(select(table).order_by(*table.primary_key)).all() for table in tables}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_backup_is_restored_into_either_kind_of_store(finished, store, people, tmp_path, request, kind):
    file, runner = tmp_path / "backups" / "monday.db", CliRunner()
    result = runner.invoke(app, ["workbench", "backup", store, str(file)], catch_exceptions=False)
    assert result.output.strip() == f"{file}: 2 notes, 3 decisions, 4 users"
    assert [path.name for path in file.parent.iterdir()] == ["monday.db"] and stat.S_IMODE(file.stat().st_mode) == 0o600
    with read_transaction(finished) as connection:
        assert [row["what"] for row in read_log(connection)] == ["backup"]
    (tmp_path / "new").mkdir()
    target = new_store(request, tmp_path / "new", kind)
    runner.invoke(app, ["workbench", "restore", str(file), target], catch_exceptions=False)
    restored = open_database(target)
    assert contents(restored) == contents(finished)
    with write_transaction(restored) as connection:  # ids go on after those of the backup
        assert add_notes(connection, [Note("new", "text")], None) == (1, 0)
    record_decision(restored, 2, "clear", {"code": HEART["code"]}, user=people["ann"], version=1)
    with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(restored) as connection:
        connection.execute(delete(decisions))
    restored.dispose()
    for words in (["backup", store, str(file)], ["restore", str(file), target]):
        with pytest.raises(OutputError, match="will not overwrite"):
            runner.invoke(app, ["workbench", *words], catch_exceptions=False)


def test_a_backup_is_consistent_while_the_store_is_written(engine, store, people, tmp_path):
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", "text " * 500) for i in range(40)], None)
    stop, written, ann = threading.Event(), [], people["ann"]

    def write() -> None:
        while not stop.is_set():
            for note in range(1, 41):
                with read_transaction(engine) as connection:
                    version = connection.scalar(select(notes.c.version).where(notes.c.id == note))
                try:
                    record_decision(engine, note, "assign", {"user": ann}, user=ann, version=version)
                    written.append(note)
                except ConflictError:
                    pass

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        while len(written) < 20:
            time.sleep(0.01)
        before = len(written)
        backup_store(store, tmp_path / "copy.db")
        assert len(written) > before  # the writers were not stopped
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    copy = open_database(str(tmp_path / "copy.db"), existing=True)
    with read_transaction(copy) as connection:
        versions = dict(connection.execute(select(notes.c.id, notes.c.version)).all())
        counts = dict(connection.execute(select(decisions.c.note_id, func.count()).group_by(decisions.c.note_id)).all())
    copy.dispose()
    assert {note: version for note, version in versions.items() if version} == counts and sum(counts.values()) >= 20


def test_a_backup_must_be_a_store(tmp_path):
    (tmp_path / "no.db").write_text("no database" * 100)
    with pytest.raises(NosologyError, match="no SQLite database"):
        restore_store(tmp_path / "no.db", str(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_reads_a_store(tmp_path, caplog):
    path = tmp_path / "store.db"
    engine = open_database(str(path))
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("a", "text")], None)
    assert {mode(file) for file in tmp_path.glob("store.db*")} == {0o600} and len(list(tmp_path.glob("store.db*"))) == 3
    engine.dispose()
    path.chmod(0o644)
    engine = open_database(str(path))
    assert mode(path) == 0o600 and "was open to other users" in caplog.text
    engine.dispose()


def test_a_second_server_on_a_store_is_refused(tmp_path):
    store = str(tmp_path / "store.db")
    first, second = StoreLock(store), StoreLock(store)
    second.check()
    assert list(tmp_path.iterdir()) == []  # a check creates nothing
    first.acquire()
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    linked = StoreLock(str(tmp_path / "link.db"))
    for refused in (second.acquire, second.check, linked.acquire):
        with pytest.raises(ConfigError, match=r"another server uses the store .*store\.db"):
            refused()
    first.release()
    second.check()
    second.acquire().release()
    assert mode(tmp_path / "store.db-lock") == 0o600


@pytest.mark.parametrize("damage", ["pages", "truncated", "first"])
def test_a_damaged_store_gives_one_sentence(tmp_path, damage):
    path = tmp_path / "store.db"
    engine = open_database(str(path))
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", "text" * 2000) for i in range(20)], None)
    engine.dispose()
    raw = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(raw[:5000])
    else:
        start = 4096 if damage == "pages" else 100
        path.write_bytes(raw[:start] + b"\x5a" * (len(raw) - start))
    with pytest.raises(NosologyError, match="is damaged") as caught:
        open_database(str(path))
    assert "\n" not in str(caught.value)


def test_a_store_that_takes_no_writes_is_not_alive(store, engine):
    assert is_alive(engine)
    if engine.dialect.name == "sqlite":
        import resource

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # as a full disk: no file grows beyond this
        try:
            assert not is_alive(engine)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert is_alive(engine)
    else:
        with write_transaction(engine) as connection:
            name = connection.scalar(text("SELECT current_user"))
            connection.execute(text(f'ALTER ROLE "{name}" SET default_transaction_read_only = on'))
        engine.dispose()  # new connections are read-only
        try:
            assert not is_alive(engine)
        finally:
            with engine.connect() as connection:
                connection.execute(text("SET TRANSACTION READ WRITE"))
                connection.execute(text(f'ALTER ROLE "{name}" RESET default_transaction_read_only'))
                connection.commit()
            engine.dispose()
        assert is_alive(engine)


def test_a_store_of_version_0_1_is_migrated(store):
    """Users, tokens and decisions stay; tokens expire in 90 days; the new triggers are there."""
    with closing(sqlite3.connect(store)) if "://" not in store else closing(PostgresScript(store)) as old:
        old.executescript((Path(__file__).parent / "database_0_1.sql").read_text())
        old.executescript(
            "INSERT INTO users (name, role, must_change, disabled, failures, locked_until, created) "
            "VALUES ('ann', 'coder', true, false, 3, 0, 0); "
            "INSERT INTO tokens (user_id, name, hash, created, revoked) VALUES (1, 'old', 'h', 0, false); "
            "INSERT INTO notes (ref, encounter, received, coding, status, version, codes) "
            "VALUES ('n1', '{}', 0, 'done', 'new', 0, 0); "
            "INSERT INTO texts (note_id, text, length) VALUES (1, 'a text', 6);"
        )
    engine = open_database(store)
    from nosology.workbench.accounts import list_tokens

    with write_transaction(engine) as connection:
        (token,) = list_tokens(connection, 1)
        assert abs(token["expires"] - time.time() - 90 * 86_400) < 60 and "decide" in token["scopes"]
        assert connection.scalar(select(users.c.password_expires)) > time.time()
    for statement in (delete(documents), update(documents).values(length=1)):
        with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(engine) as connection:
            connection.execute(statement)
    with write_transaction(engine) as connection:
        delete_note(connection, 1, 1, "x", "by an admin")
    assert rows_of(engine, 1) == [0, 0, 0]
    engine.dispose()
    open_database(store, existing=True).dispose()  # the tables are those of this version


def test_the_texts_of_a_store_of_revision_0002_become_documents(store):
    """Ids, texts and batches stay; the number of documents of a batch is that of its notes."""
    with closing(sqlite3.connect(store)) if "://" not in store else closing(PostgresScript(store)) as old:
        old.executescript((Path(__file__).parent / "database_0_1.sql").read_text())
    engine = create_engine(postgres_url(store) if "://" in store else f"sqlite:///{store}")
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        for statement in (
            "INSERT INTO batches (name, created, status, total, known) VALUES ('b', 0, 'done', 2, 1)",
            "INSERT INTO notes (ref, encounter, received, coding, status, version, codes, batch_id) "
            "VALUES ('n1', '{}', 5, 'done', 'new', 0, 0, 1), ('n2', '{}', 6, 'done', 'new', 0, 0, NULL)",
            "INSERT INTO texts (note_id, text, length) VALUES (1, 'first', 5), (2, 'second', 6)",
        ):
            connection.execute(text(statement))
    engine.dispose()
    engine = open_database(store)
    with write_transaction(engine) as connection:
        columns = ("note_id", "batch_id", "ref", "version", "text", "length", "start", "received")
        rows = connection.execute(select(*(documents.c[name] for name in columns)).order_by(documents.c.id)).all()
        assert rows == [(1, 1, "n1", 1, "first", 5, 0, 5.0), (2, None, "n2", 1, "second", 6, 0, 6.0)]
        assert connection.execute(select(batches.c.documents, batches.c.corrected)).one() == (2, 0)
        assert add_notes(connection, [Note("n3", "third")], None) == (1, 0)
    with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(engine) as connection:
        connection.execute(delete(documents))
    engine.dispose()
    open_database(store, existing=True).dispose()


class PostgresScript:
    """Runs the SQL of a store of 0.1 in PostgreSQL: with its types, its order of tables and its triggers."""

    def __init__(self, store: str):
        import psycopg

        self.connection = psycopg.connect(store, autocommit=True)

    def executescript(self, script: str) -> None:
        from nosology.workbench.store_tables import metadata

        statements = [part.strip() for part in script.replace("--", "\n--").split(";\n") if part.strip()]
        if not any("CREATE TABLE" in statement for statement in statements):
            self.connection.execute(script)
            return
        made = {}
        for statement in statements:
            if "CREATE TABLE" in statement:
                name = statement.split("CREATE TABLE ")[1].split()[0].strip('"')
                body = statement[statement.index("CREATE TABLE") :].replace("DOUBLE", "DOUBLE PRECISION")
                made[name] = body.replace("\tid INTEGER NOT NULL", "\tid SERIAL NOT NULL")
        known = [table.name for table in metadata.sorted_tables if table.name in made]
        for name in ("alembic_version", *known, "texts"):  # a table after those to which it refers
            self.connection.execute(made[name])
        for statement in statements:
            if statement.startswith(("CREATE INDEX", "INSERT")):
                self.connection.execute(statement)
        for name in ("decisions", "audit", "codings", "texts"):
            self.connection.execute(
                f"CREATE FUNCTION {name}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION '{name} is append-only'; END $$; "
                f"CREATE TRIGGER {name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {name} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION {name}_append_only()"
            )

    def close(self) -> None:
        self.connection.close()
