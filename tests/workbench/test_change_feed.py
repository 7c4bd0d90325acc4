"""Changes by time: pages by cursor miss nothing, whatever is written and committed meanwhile."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from sqlalchemy import select, update

from nosology.core import Note
from nosology.workbench.cases import record_decision
from nosology.workbench.change_clock import ChangeClock
from nosology.workbench.change_feed import changed_notes, recent_decisions, to_seconds
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.retention import delete_note
from nosology.workbench.store_tables import notes
from nosology.workbench.work_queue import QueueFilter
from tests.workbench.conftest import ApiClient

CHANGED = QueueFilter(order="changed", statuses=())


def read_all(read, limit):
    """(rows, last cursor) of all pages, from a cursor or the start."""

    def after(cursor=None):
        rows = []
        while (page := read(cursor=cursor, limit=limit)).rows:
            rows, cursor = [*rows, *page.rows], page.next
        return rows, cursor

    return after


def test_the_clock_never_goes_back(monkeypatch):
    clock, now = ChangeClock(), 1000.0
    monkeypatch.setattr("nosology.workbench.change_clock.time.time", lambda: now)
    first = clock.now()
    now = 900.0
    assert first == 1000.0 < clock.now() < clock.settled() < 1000.1
    clock.start_after(950.0)
    assert clock.now() > 1000.0
    clock.start_after(1e9)  # a clock that was wrong is not followed for ever
    assert clock.now() < 1000.1
    with clock.writing():
        before = clock.settled()
        assert before == clock.settled() < clock.now()
    assert clock.settled() > before


def test_every_change_of_a_note_is_in_the_feed(engine, people):
    after = read_all(lambda **place: changed_notes(engine, CHANGED, 1, **place), 2)
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", "text") for i in range(5)], None)
    rows, cursor = after()
    assert sorted(row.ref for row in rows) == [f"n{i}" for i in range(5)]
    assert after(cursor) == ([], cursor)
    record_decision(engine, 2, "add", {"code": "icd10cm:I10"}, user=people["ann"], version=0)
    with write_transaction(engine) as connection:
        connection.execute(update(notes).where(notes.c.id == 4).values(coding="done"))
        delete_note(connection, 5, None, "", "test")
    rows, cursor = after(cursor)
    assert [(row.id, row.status, row.coding) for row in rows] == [
        (2, "open", "waiting"),
        (4, "new", "done"),
        (5, "deleted", "cancelled"),
    ]
    assert changed_notes(engine, CHANGED, 1, cursor=None, limit=2).pages == 3


def test_a_change_that_is_committed_late_is_not_missed(engine, people):
    """A transaction writes first and commits last: the feed waits for it instead of going past it."""
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", "text") for i in range(3)], None)
    feeds = {
        "notes": read_all(lambda **place: changed_notes(engine, CHANGED, 1, **place), 10),
        "decisions": read_all(lambda **place: recent_decisions(engine, since=None, until=None, **place), 10),
    }
    cursors = {name: after()[1] for name, after in feeds.items()}
    written, commit = threading.Event(), threading.Event()

    def slow() -> None:
        with write_transaction(engine) as connection:
            connection.execute(update(notes).where(notes.c.id == 1).values(site="east"))
            written.set()
            commit.wait(30)

    thread = threading.Thread(target=slow)
    thread.start()
    written.wait(30)
    if engine.dialect.name == "postgresql":  # SQLite has one writer at a time
        record_decision(engine, 2, "hold", {}, user=people["ann"], version=0)
        with read_transaction(engine) as connection:
            assert connection.scalar(select(notes.c.version).where(notes.c.id == 2)) == 1
    for name, after in feeds.items():
        assert after(cursors[name]) == ([], cursors[name]), "committed later than what is running"
    commit.set()
    thread.join()
    expected = [1, 2] if engine.dialect.name == "postgresql" else [1]
    assert [row.id for row in feeds["notes"](cursors["notes"])[0]] == expected
    assert [row["note_id"] for row in feeds["decisions"](cursors["decisions"])[0]] == expected[1:]


def test_a_reader_sees_every_decision_of_many_writers_once(engine, people):
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", "text") for i in range(4)], None)
    done = threading.Event()

    def work(note: int) -> None:
        for version in range(12):
            record_decision(
                engine, note, "hold" if version % 2 == 0 else "resume", {}, user=people["ann"], version=version
            )

    threads = [threading.Thread(target=work, args=(note,)) for note in range(1, 5)]
    for thread in threads:
        thread.start()
    after = read_all(lambda **place: recent_decisions(engine, since=None, until=None, **place), 3)
    seen, cursor = [], None
    while not done.is_set():
        if not any(thread.is_alive() for thread in threads):
            done.set()
        rows, cursor = after(cursor)
        seen += [(row["note_id"], row["version"]) for row in rows]
    assert len(seen) == 48 and set(seen) == {(note, version) for note in range(1, 5) for version in range(1, 13)}


def test_times_of_requests():
    assert to_seconds(None) is None and to_seconds(12.5) == 12.5
    assert to_seconds(datetime(1970, 1, 1, 0, 1)) == to_seconds(datetime(1970, 1, 1, 0, 1, tzinfo=UTC)) == 60


def test_lists_have_totals_times_and_cursors(server):
    client = ApiClient(server[0], server[1]["rita"])
    start = time.time()
    ids = [client.note(f"feed-{i}", site="feeds") for i in range(3)]
    every = client.get("/notes", params={"site": "feeds", "limit": 2}).json()
    assert (every["total"], every["pages"], every["next"], len(every["notes"])) == (3, 2, None, 2)
    second = client.get("/notes", params={"site": "feeds", "limit": 2, "page": 1}).json()
    assert [note["id"] for note in (*every["notes"], *second["notes"])] == ids
    middle = time.time()
    assert client.decide(ids[1], "hold", 0).status_code == 200
    moment = datetime.fromtimestamp(middle, UTC).isoformat()
    changed = client.get("/notes", params={"site": "feeds", "since": moment}).json()
    assert [note["id"] for note in changed["notes"]] == [ids[1]] and changed["total"] == 1
    before = client.get("/notes", params={"site": "feeds", "since": start, "until": middle}).json()
    assert {note["id"] for note in before["notes"]} == {ids[0], ids[2]}
    feed = client.get("/notes", params={"site": "feeds", "order": "changed"}).json()
    assert [note["id"] for note in feed["notes"]][-1] == ids[1] and feed["next"]
    again = client.get("/notes", params={"site": "feeds", "order": "changed", "cursor": feed["next"]}).json()
    assert (again["notes"], again["next"], again["total"]) == ([], feed["next"], 3)
    decided = client.get("/decisions", params={"since": middle}).json()
    assert [(row["note_id"], row["action"], row["user"]) for row in decided["decisions"]] == [(ids[1], "hold", "rita")]
    assert (decided["total"], decided["pages"]) == (1, 1)
    for wrong in ({"cursor": "1.0:1"}, {"order": "changed", "page": 1}, {"order": "changed", "cursor": "x"}):
        assert client.get("/notes", params=wrong).status_code == 422
