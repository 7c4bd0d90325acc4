"""Database, cases and audit log on SQLite and PostgreSQL: migrations, append-only tables, conflicts."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from nosology.core import Code, ConfigError, ConflictError, Note, OutputError, ReviewError
from nosology.workbench.audit_log import log_access, read_log
from nosology.workbench.cases import (
    add_notes,
    count_by_status,
    decision_history,
    load_case,
    record_decision,
    select_queue,
)
from nosology.workbench.database import (
    audit,
    codings,
    decisions,
    metadata,
    migrate,
    notes,
    open_database,
    read_transaction,
    write_transaction,
)

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
    with pytest.raises(OutputError, match="cannot be opened"):
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
        kept = [(row["version"], row["user_id"]) for row in decision_history(connection, note_id)]
    assert sorted(wins) == kept
    assert [version for version, _ in kept] == list(range(1, len(kept) + 1))
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
            return [row.ref for row in select_queue(connection, **filters)]

        assert refs(order="uncertain") == ["n5", "n1", "n3", "n4", "n0", "n2"]
        assert refs(statuses=["held"]) == ["n0"]
        assert refs(assignee=people["ben"]) == ["n1"]
        assert refs(unassigned=True, site="west") == ["n3", "n5"]
        assert refs(ref="n4") == ["n4"] and refs(ref="%") == []
        assert count_by_status(connection) == {"new": 5, "held": 1}


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
        log_access(engine, 999, "note", note_id, "x")  # nobody has that number
    log_access(engine, people["ann"], "note", note_id, "x")
    with read_transaction(engine) as connection:
        assert connection.scalar(select(func.count()).select_from(audit)) == 1
