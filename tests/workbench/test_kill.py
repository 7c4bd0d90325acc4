"""SIGKILL in the middle of imports and batches: nothing confirmed is lost, nothing is half there, no process stays."""

from __future__ import annotations

import threading
import time
from collections import Counter
from http.client import HTTPException

import pytest
from sqlalchemy import Engine, func, select

from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.store_lock import AdvisoryLock, StoreLock
from nosology.workbench.store_tables import audit, batches, codings, documents, notes
from tests.workbench.conftest import NOTE, fill_people, new_store
from tests.workbench.processes import Server, call, wait_for_end

SIZE = 16  # notes per import


def count(engine: Engine, *conditions) -> int:
    with read_transaction(engine) as connection:
        return connection.scalar(select(func.count()).select_from(notes).where(*conditions)) or 0


class Importers:
    """Threads that import batches until the server is gone; `confirmed` has the names of those with status 202.

    After two imports each, they wait for `more`.
    """

    def __init__(self, server: Server, token: str):
        self.server, self.token = server, token
        self.sent: list[str] = []
        self.confirmed: list[str] = []
        self.more = threading.Event()
        self.threads = [threading.Thread(target=self._work, args=(i,)) for i in range(3)]
        for thread in self.threads:
            thread.start()

    def _work(self, number: int) -> None:
        for turn in range(200):
            if turn == 2:
                self.more.wait(120)
            name = f"import-{number}-{turn}"
            self.sent.append(name)
            incoming = [{"id": f"{name}-{i}", "text": NOTE * 5} for i in range(SIZE)]
            try:
                status, _ = call(self.server, self.token, "/notes", {"name": name, "notes": incoming})
            except (OSError, HTTPException):
                return
            assert status == 202
            self.confirmed.append(name)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)  # decisions are killed in both kinds of stores
def test_kill_9_leaves_whole_imports_and_a_batch_that_goes_on(small_bundle, store, tmp_path):
    token = fill_people(store)["ann"]
    engine = open_database(store)
    server = Server(small_bundle, store, log=tmp_path / "log").start()
    workers = server.children()
    with pytest.raises(RuntimeError, match=r"ended with 1: nosology: another server uses the store .*; stop it first"):
        Server(small_bundle, store, log=tmp_path / "second").start()
    importers = Importers(server, token)
    end = time.monotonic() + 120
    while not count(engine, notes.c.coding == "done"):
        assert time.monotonic() < end
        time.sleep(0.01)
    importers.more.set()
    while len(importers.confirmed) < 8:
        assert time.monotonic() < end
        time.sleep(0.01)
    server.process.kill()  # the server only: its workers must end by themselves
    server.process.wait()
    for thread in importers.threads:
        thread.join()
    wait_for_end(workers)
    check_imports(engine, importers)
    waiting = count(engine, notes.c.coding == "waiting")
    assert 0 < waiting < count(engine), "killed in the middle of coding"
    again = Server(small_bundle, store, log=tmp_path / "log").start()
    end = time.monotonic() + 300
    while count(engine, notes.c.coding == "waiting") or "waiting" in states(engine):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert again.stop() in (0, -15)
    with read_transaction(engine) as connection:
        coded = Counter(connection.scalars(select(codings.c.note_id)))
    assert set(coded.values()) == {1} and len(coded) == count(engine) == count(engine, notes.c.coding == "done")
    assert set(states(engine)) == {"done"}
    engine.dispose()


def states(engine: Engine) -> list[str]:
    with read_transaction(engine) as connection:
        return list(connection.scalars(select(batches.c.status)))


def check_imports(engine: Engine, importers: Importers) -> None:
    """Every confirmed import is there, and each that is there has all of its notes, texts and audit entry."""
    with read_transaction(engine) as connection:
        query = select(batches.c.name, batches.c.total, func.count(documents.c.note_id))
        query = query.join(notes, notes.c.batch_id == batches.c.id, isouter=True)
        query = query.join(documents, documents.c.note_id == notes.c.id, isouter=True)
        found = {name: rest for name, *rest in connection.execute(query.group_by(batches.c.id))}
        entries = connection.scalar(select(func.count()).select_from(audit).where(audit.c.what == "import"))
    assert set(importers.confirmed) <= set(found) <= set(importers.sent)
    assert set(map(tuple, found.values())) == {(SIZE, SIZE)} and entries == len(found)
    assert count(engine) == SIZE * len(found)


def test_the_lock_in_postgresql_is_taken_again_after_a_lost_connection(request, tmp_path):
    store = new_store(request, tmp_path, "postgres")
    engine = open_database(store)
    lock = StoreLock(store).acquire()
    lock.guard(engine)
    held = lock._session
    assert isinstance(held, AdvisoryLock) and held._connection is not None

    def lose() -> None:
        process = held._connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SELECT pg_terminate_backend({process}, 10000)")
        engine.dispose()  # as after a restart of the database: all connections are new

    lose()
    with write_transaction(engine) as connection:
        assert connection.scalar(select(func.count()).select_from(notes)) == 0
    with pytest.raises(Exception, match="another server uses the store"):
        StoreLock(store).check()
    lose()
    other = StoreLock(store).acquire()
    with pytest.raises(Exception, match="another server uses the store now"), write_transaction(engine):
        pass
    other.release()
    with write_transaction(engine):
        pass
    lock.release()
    StoreLock(store).check()
    engine.dispose()
