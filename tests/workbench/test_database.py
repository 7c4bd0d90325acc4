"""Database, cases and audit log on SQLite and PostgreSQL: migrations, append-only tables, conflicts."""

import re
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, delete, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from nosology.core import Code, ConfigError, ConflictError, DataError, Note, OutputError, ReviewError, Span
from nosology.workbench.append_only import table_triggers
from nosology.workbench.audit_log import log_access, read_log
from nosology.workbench.cases import count_by_status, decision_history, load_case, record_decision
from nosology.workbench.conversation import insert_query
from nosology.workbench.database import (
    APPLICATION_ID,
    StoreGoneError,
    migrate,
    open_database,
    postgres_url,
    read_transaction,
    write_transaction,
)
from nosology.workbench.document_import import DocumentImport, add_notes
from nosology.workbench.double_coding import choose_note
from nosology.workbench.retention import delete_note
from nosology.workbench.store_health import is_alive
from nosology.workbench.store_tables import audit, codings, decisions, documents, metadata, notes, sessions, tokens
from nosology.workbench.work_queue import RESERVED_SECONDS, QueueFilter, Reservations, next_note, position, select_queue

HEART = {"code": "icd10cm:I50.9"}


def test_a_new_database_has_the_tables_of_the_metadata(engine):
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_database_of_version_0_1_opens_and_has_the_present_tables(tmp_path):
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript((Path(__file__).parent / "database_0_1.sql").read_text())
    engine = open_database(str(path))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    with write_transaction(engine) as connection:
        assert add_notes(connection, [Note("a", "text")], None) == (1, 0)
    engine.dispose()


ROWS_0_1 = """
INSERT INTO users (id, name, role, must_change, disabled, failures, locked_until, created)
    VALUES (1, 'ann', 'coder', false, false, 3, 0, 100), (2, 'rita', 'reviewer', true, false, 0, 0, 100);
INSERT INTO batches (id, name, user_id, created, status, total) VALUES (1, 'first.csv', 1, 100, 'done', 2);
INSERT INTO coders (id, digest, name, kind, about, created) VALUES (1, 'abc', 'small', 'linear', '{}', 100);
INSERT INTO notes (id, ref, patient, encounter, batch_id, received, coding, status, version, assignee_id, codes,
    finished)
    VALUES (1, 'n1', 'p1', '{"sex": "F", "age": 70}', 1, 100, 'done', 'done', 2, 1, 1, 120),
        (2, 'n2', 'p2', '{}', 1, 100, 'waiting', 'new', 0, null, 0, null);
INSERT INTO texts (note_id, text, length) VALUES (1, 'Heart failure.', 14), (2, 'Diabetes.', 9);
INSERT INTO codings (id, note_id, coder_id, made, suggestions, profile) VALUES (1, 1, 1, 105, '[]', '{}');
INSERT INTO decisions (id, note_id, version, user_id, at, action, details)
    VALUES (1, 1, 1, 1, 110, 'add', '{"code": "icd10cm:I50.9", "start": 0, "end": 13}'),
        (2, 1, 2, 1, 120, 'finish', '{}');
INSERT INTO audit (id, at, user_id, what, note_id, address) VALUES (1, 108, 1, 'note', 1, 'test');
INSERT INTO sessions (id, user_id, csrf, created, seen) VALUES ('s', 1, 'c', 100, 100);
INSERT INTO tokens (id, user_id, name, hash, created, revoked) VALUES (1, 1, 'tests', 'h', 100, false);
"""


def make_store_0_1(store: str) -> None:
    """Creates the tables of version 0.1 with a few rows; for PostgreSQL in its own words."""
    script = (Path(__file__).parent / "database_0_1.sql").read_text()
    if "://" not in store:
        with closing(sqlite3.connect(store)) as old:
            old.executescript(script + ROWS_0_1)
        return
    statements = [part.strip() for part in script.split(";\n")]
    order = ["users", "coders", "settings", "batches", "notes", "texts", "codings", "decisions", "audit"]
    order += ["sessions", "tokens", "alembic_version"]
    tables = {part.split()[2]: part for part in statements if part.startswith("CREATE TABLE")}
    created = [tables[name].replace("DOUBLE", "DOUBLE PRECISION") for name in order]
    created = [part.replace("\n\tid INTEGER", "\n\tid SERIAL") for part in created]
    rest = [part for part in statements if part.startswith(("INSERT", "CREATE INDEX"))]
    rest += table_triggers("postgresql", ("decisions", "audit", "codings", "texts"))
    rest += [part for part in ROWS_0_1.split(";\n") if part.strip()]
    engine = create_engine(postgres_url(store))
    with engine.begin() as connection:
        for statement in created + rest:
            connection.exec_driver_sql(statement)
        for name in set(re.findall(r"INSERT INTO (\w+) \(id", ROWS_0_1)) - {"sessions"}:
            connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), 10)"))
    engine.dispose()


def test_rows_of_version_0_1_are_kept_and_go_on(store):
    make_store_0_1(store)
    engine = open_database(store)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    with read_transaction(engine) as connection:
        first, second = load_case(connection, 1), load_case(connection, 2)
        listed = select_queue(connection, QueueFilter(status="all"), 1)
        assert connection.scalar(select(func.count()).select_from(sessions)) == 0  # everybody signs in again
        assert list(connection.scalars(select(tokens.c.expires > 1e9))) == [True]
        assert [(row["what"], row["object"]) for row in read_log(connection, note_id=1)] == [("note", "")]
    assert (first.note["text"], first.note["encounter"]["age"], second.note["text"]) == (
        "Heart failure.",
        70,
        "Diabetes.",
    )
    assert first.review.status == "done" and first.review.chosen[0].evidence == (Span(0, 13),)
    assert [(row.ref, row.documents, row.changed, row.open_queries) for row in listed] == [
        ("n1", 1, 120, 0),
        ("n2", 1, 100, 0),
    ]
    with write_transaction(engine) as connection:
        late = Note("ct", "CT chest: clear.", extra={"encounter": "n1", "document": "radiology"})
        assert DocumentImport(connection, 1, None).run([late]).added == 1
        connection.execute(update(notes).values(coding="done"))
        insert_query(connection, 1, 1, {"question": "Which kind?"}, length=14)
    copy = choose_note(engine, 2, 1, "test")
    with write_transaction(engine) as connection:
        assert load_case(connection, copy).note["text"] == load_case(connection, 1).note["text"]
        assert load_case(connection, 1).review.status == "open"
        delete_note(connection, 1, 2, "test", "test")
    with read_transaction(engine) as connection:
        assert list(connection.scalars(select(documents.c.ref))) == ["n2"]
    with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(engine) as connection:
        connection.execute(delete(documents))
    engine.dispose()


@pytest.mark.parametrize(
    "tables", ["CREATE TABLE users (name TEXT)", "CREATE TABLE alembic_version (version_num TEXT)"]
)
@pytest.mark.parametrize("existing", [False, True])
def test_a_database_of_another_program_is_refused_and_not_changed(tmp_path, tables, existing):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute(tables)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="database of another program"):
        open_database(str(path), existing=existing)
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["other.db"]


def test_a_file_that_is_no_database_is_refused_and_not_changed(tmp_path):
    (tmp_path / "notes.txt").write_text("no database" * 100)
    with pytest.raises(ConfigError, match="no SQLite database"):
        open_database(str(tmp_path / "notes.txt"))
    assert (tmp_path / "notes.txt").read_text() == "no database" * 100


def test_an_empty_database_is_a_new_store(tmp_path):
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # what a full disk leaves of a new store
    assert (tmp_path / "store.db").stat().st_size
    open_database(str(tmp_path / "store.db")).dispose()


def test_a_replaced_store_is_not_written(tmp_path):
    engine = open_database(str(tmp_path / "store.db"))
    open_database(str(tmp_path / "other.db")).dispose()
    (tmp_path / "other.db").rename(tmp_path / "store.db")
    with pytest.raises(StoreGoneError, match="deleted or replaced"), write_transaction(engine) as connection:
        add_notes(connection, [Note("a", "text")], None)
    assert not is_alive(engine)
    engine.dispose()


def test_a_store_that_must_exist_is_not_created(tmp_path):
    with pytest.raises(DataError, match="no such store"):
        open_database(str(tmp_path / "missing.db"), existing=True)
    assert list(tmp_path.iterdir()) == []
    open_database(str(tmp_path / "store.db")).dispose()
    open_database(str(tmp_path / "store.db"), existing=True).dispose()


def test_a_store_has_an_application_id(tmp_path):
    open_database(str(tmp_path / "store.db")).dispose()
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_a_store_of_version_0_1_is_not_migrated_when_it_is_read(tmp_path):
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript((Path(__file__).parent / "database_0_1.sql").read_text())
        old.execute("DROP INDEX ix_notes_site")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="of another version"):
        open_database(str(path), existing=True)
    assert path.read_bytes() == before


def test_a_database_is_reopened_unchanged(store, engine, note_id, people):
    record_decision(engine, note_id, "add", HEART, user=people["ann"], version=0)
    again = open_database(store)
    migrate(again)
    with read_transaction(again) as connection:
        assert load_case(connection, note_id).review.codes == (Code("icd10cm", "I50.9"),)
    again.dispose()


def test_a_database_of_a_newer_program_is_refused(store, engine):
    with write_transaction(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigError, match="made by a newer version"):
        open_database(store)


def test_invalid_stores_give_an_error_without_password(tmp_path):
    with pytest.raises(ConfigError, match="store must be a file for SQLite or a postgresql:// address"):
        open_database("mysql://somewhere/x")
    with pytest.raises(OutputError, match="cannot be opened") as caught:
        open_database("postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match=r"cannot write .*file is no folder"):
        open_database(str(tmp_path / "file" / "below.db"))


def test_decisions_are_stored_with_user_and_summary(engine, note_id, people):
    review = record_decision(engine, note_id, "add", HEART, user=people["ann"], version=0).review
    review = record_decision(engine, note_id, "finish", {}, user=people["ann"], version=review.version)
    with read_transaction(engine) as connection:
        rows = decision_history(connection, note_id)
        note = connection.execute(select(notes)).mappings().one()
    assert [(row["version"], row["user"], row["action"]) for row in rows] == [
        (1, "ann", "add"),
        (2, "ann", "finish"),
    ]
    assert (note["status"], note["version"], note["codes"], note["assignee_id"]) == ("done", 2, 1, people["ann"])
    assert note["finished"] is not None


@pytest.mark.parametrize("table", [decisions, audit, codings])
def test_triggers_refuse_to_change_rows(engine, note_id, people, table):
    record_decision(engine, note_id, "add", HEART, user=people["ann"], version=0)
    log_access(engine, people["ann"], "note", note_id, "127.0.0.1")
    column = {"decisions": "action", "audit": "what", "codings": "note_id"}[table.name]
    with write_transaction(engine) as connection:
        if table is codings:
            connection.execute(
                text("INSERT INTO coders (digest, name, kind, about, created) VALUES ('d', 'c', 'linear', '{}', 0)")
            )
            row = {"note_id": note_id, "coder_id": 1, "made": 0.0, "suggestions": [], "profile": {}}
            connection.execute(codings.insert().values(**row))
    for statement in (update(table).values({column: table.c[column]}), delete(table)):
        with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(engine) as connection:
            connection.execute(statement)


def test_the_second_decision_on_a_version_is_a_conflict(engine, note_id, people):
    record_decision(engine, note_id, "add", HEART, user=people["ann"], version=0)
    with pytest.raises(ConflictError, match=r"ann changed this note .* ago \(add\); your decision was not saved"):
        record_decision(engine, note_id, "reject", {**HEART, "reason": "wrong"}, user=people["ben"], version=0)
    with read_transaction(engine) as connection:
        assert load_case(connection, note_id).review.codes == (Code("icd10cm", "I50.9"),)


def test_concurrent_decisions_get_distinct_versions(engine, note_id, people):
    """Every acknowledged decision of eight threads is in the history, each version once."""
    wins, conflicts = [], []

    def push(user: int) -> None:
        for _ in range(6):
            with read_transaction(engine) as connection:
                seen = connection.scalar(select(notes.c.version).where(notes.c.id == note_id))
            try:
                review = record_decision(engine, note_id, "assign", {"user": user}, user=user, version=seen).review
                wins.append((review.version, user))
            except ConflictError:
                conflicts.append(user)

    threads = [threading.Thread(target=push, args=(user,)) for user in list(people.values()) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with read_transaction(engine) as connection:
        stored = [(row["version"], row["user_id"]) for row in decision_history(connection, note_id)]
    assert sorted(wins) == stored
    assert [version for version, _ in stored] == list(range(1, len(stored) + 1))
    assert len(wins) + len(conflicts) == 48


def test_known_notes_are_skipped(engine):
    incoming = [Note("a", "one"), Note("b", "two"), Note("a", "three")]
    with write_transaction(engine) as connection:
        assert add_notes(connection, incoming, None) == (2, 1)
        assert add_notes(connection, incoming, None) == (0, 3)
        assert load_case(connection, 1).note["text"] == "one"


def test_the_queue_filters_and_orders(engine, people):
    with write_transaction(engine) as connection:
        incoming = [Note(f"n{i}", "x", site=("east", "west")[i % 2]) for i in range(6)]
        add_notes(connection, incoming, None)
        for i, sure in enumerate((0.9, 0.2, None, 0.5, 0.7, 0.1)):
            connection.execute(update(notes).where(notes.c.ref == f"n{i}").values(confidence=sure))
    record_decision(engine, 1, "hold", {}, user=people["ann"], version=0)
    record_decision(engine, 2, "assign", {"user": people["ben"]}, user=people["ann"], version=0)
    with read_transaction(engine) as connection:

        def refs(**filters):
            return [row.ref for row in select_queue(connection, QueueFilter(**filters), people["ben"])]

        assert refs(order="uncertain") == ["n5", "n1", "n3", "n4", "n0", "n2"]
        assert refs(status="held") == ["n0"] and refs(statuses=("new", "held"), order="newest")[-1] == "n0"
        assert refs(mine="me") == ["n1"]
        assert refs(mine="nobody", site="west") == ["n3", "n5"]
        assert refs(ref="n4") == ["n4"] and refs(ref="%") == []
        assert count_by_status(connection) == {"new": 5, "held": 1}


def next_refs(engine, user, wanted, *, reviewer=False, reserved=()):
    """The ids of the notes that a user gets one after the other, and the place of each in the queue."""
    found, after = [], 0
    with read_transaction(engine) as connection:
        while (
            after := next_note(connection, wanted, user, reviewer=reviewer, after=after, reserved=reserved)
        ) is not None:
            place = position(connection, wanted, user, after, reviewer=reviewer)
            found.append((connection.scalar(select(notes.c.ref).where(notes.c.id == after)), place))
    return found


@pytest.mark.parametrize("order", ["oldest", "newest", "uncertain"])
def test_next_visits_every_note_of_the_filter_once_in_its_order_and_ends(engine, people, order):
    with write_transaction(engine) as connection:
        for i, sure in enumerate((0.9, None, 0.5, 0.5, None, 0.1)):
            add_notes(connection, [Note(f"n{i}", "x", site=("east", "west")[i % 2])], None, now=1000.0 + i // 2)
            connection.execute(update(notes).where(notes.c.ref == f"n{i}").values(confidence=sure))
    orders = {
        "oldest": ["n0", "n1", "n2", "n3", "n4", "n5"],
        "newest": ["n5", "n4", "n3", "n2", "n1", "n0"],
        "uncertain": ["n5", "n2", "n3", "n0", "n1", "n4"],
    }
    visited = next_refs(engine, people["ann"], QueueFilter(order=order))
    assert visited == [(ref, (place + 1, 6)) for place, ref in enumerate(orders[order])]
    west = next_refs(engine, people["ann"], QueueFilter(order=order, site="west"))
    assert [ref for ref, _ in west] == [ref for ref in orders[order] if ref in ("n1", "n3", "n5")]


def test_next_offers_a_second_review_to_the_reviewer_who_has_taken_it(engine, people):
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(name, "x") for name in ("a", "b")], None)
    for note_id, asks in ((1, "ann"), (2, "rita")):
        record_decision(engine, note_id, "add", HEART, user=people["ann"], version=0)
        record_decision(engine, note_id, "second", {}, user=people[asks], version=1)
        record_decision(engine, note_id, "assign", {"user": people["rita"]}, user=people["rita"], version=2)
    assert next_refs(engine, people["rita"], QueueFilter(), reviewer=True) == [("a", (1, 1))]
    assert next_refs(engine, people["adam"], QueueFilter(), reviewer=True) == [("a", (1, 2)), ("b", (2, 2))]


def test_next_leaves_out_what_others_do_and_offers_second_reviews_to_reviewers(engine, people):
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", "x") for i in range(5)], None)
    record_decision(engine, 1, "assign", {"user": people["ben"]}, user=people["ben"], version=0)
    record_decision(engine, 2, "assign", {"user": people["ben"]}, user=people["ben"], version=0)
    record_decision(engine, 2, "second", {}, user=people["ben"], version=1)
    record_decision(engine, 3, "hold", {}, user=people["ann"], version=0)
    refs = lambda **options: [ref for ref, _ in next_refs(engine, wanted=QueueFilter(), **options)]  # noqa: E731
    assert refs(user=people["ann"]) == ["n3", "n4"]
    assert refs(user=people["ann"], reviewer=True) == ["n1", "n3", "n4"]
    assert refs(user=people["ben"], reviewer=True) == ["n0", "n3", "n4"], (
        "who asked for a second review does not give it"
    )
    assert refs(user=people["ann"], reserved={4}) == ["n4"]


def test_a_reserved_note_is_given_to_one_user_until_the_next_one_is_taken(monkeypatch):
    held = Reservations()
    assert held.take(1, 7) and held.take(1, 7) and not held.take(1, 8)
    assert held.of_others(8) == {1} and held.of_others(7) == set()
    assert held.take(2, 7) and held.take(1, 8)
    later = time.monotonic() + RESERVED_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert held.of_others(9) == set() and held.take(2, 9)


def test_only_active_users_are_assigned(engine, note_id, people):
    with pytest.raises(ReviewError, match="somebody who can sign in"):
        record_decision(engine, note_id, "assign", {"user": 99}, user=people["ann"], version=0)


def test_access_is_logged(engine, note_id, people):
    log_access(engine, people["ann"], "note", note_id, "10.0.0.7")
    with read_transaction(engine) as connection:
        row = read_log(connection)[0]
        assert connection.scalar(select(func.count()).select_from(audit)) == 1
    assert (row["user"], row["what"], row["ref"], row["address"]) == ("ann", "note", "n1", "10.0.0.7")


def test_concurrent_accesses_are_all_logged(engine, note_id, people):
    threads = [
        threading.Thread(target=lambda: [log_access(engine, people["ann"], "note", note_id, "x") for _ in range(5)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with read_transaction(engine) as connection:
        assert connection.scalar(select(func.count()).select_from(audit)) == 40


def test_an_invalid_log_entry_raises_and_spoils_no_other(engine, note_id, people):
    with pytest.raises(SQLAlchemyError):
        log_access(engine, 999, "note", note_id, "x")  # no user has this id
    log_access(engine, people["ann"], "note", note_id, "x")
    with read_transaction(engine) as connection:
        assert connection.scalar(select(func.count()).select_from(audit)) == 1


@pytest.mark.parametrize("name", ["other.db", "a?b.db"])
def test_a_foreign_database_with_a_write_ahead_log_gets_no_new_files(tmp_path, name):
    with closing(sqlite3.connect(tmp_path / name)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("CREATE TABLE theirs (x)")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="database of another program"):
        open_database(str(tmp_path / name))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("address", ["sqlite://", "sqlite:////tmp/o.db?timeout=3", "sqlite+pysqlite:////tmp/o.db"])
def test_addresses_of_sqlite_are_refused(address):
    with pytest.raises(ConfigError, match="store must be a file"):
        open_database(address)
