"""Background coding: progress, cancel, resume after a restart, killed workers."""

import os
import signal
import time

import pytest
from sqlalchemy import func, select, update

from nosology.core import Note, ReviewError
from nosology.workbench import coding
from nosology.workbench.coding import (
    BackgroundCoder,
    CodedNote,
    CoderBusyError,
    CoderPool,
    batch_progress,
    cancel_batch,
    resume_batch,
    save_codings,
)
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.document_import import add_notes, create_batch
from nosology.workbench.services import register_coder
from nosology.workbench.store_tables import codings, notes
from nosology.workbench.uploads import normalize_encounter


@pytest.fixture(scope="module")
def pool(small_bundle):
    """One process with the small coder."""
    pool = CoderPool(small_bundle, processes=1, max_pending=2)
    pool.load()
    yield pool
    pool.close()


@pytest.fixture
def batch(engine):
    """The number of a batch of forty notes."""
    with write_transaction(engine) as connection:
        number = create_batch(connection, "b", None, 40)
        add_notes(connection, [Note(f"n{i}", "type 2 diabetes. " * (i + 1)) for i in range(40)], number)
    return number


def row(engine):
    return batch_progress(engine)[0]


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def coded(engine) -> int:
    with read_transaction(engine) as connection:
        return connection.scalar(select(func.count()).select_from(codings))


def test_every_note_of_a_batch_is_coded_once(engine, batch, pool, small_bundle):
    background = BackgroundCoder(engine, pool, register_coder(engine, small_bundle, None), concurrency=2)
    background.start()
    until(lambda: row(engine)["status"] == "done")
    background.stop()
    assert (row(engine)["done"], row(engine)["waiting"], coded(engine)) == (40, 0, 40)
    with read_transaction(engine) as connection:
        assert connection.scalar(select(func.count()).where(notes.c.confidence > 0)) == 40


def test_urgent_notes_and_small_batches_come_first(engine, batch, pool, small_bundle):
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("single", "type 2 diabetes")], create_batch(connection, "one", None, 1))
    background = BackgroundCoder(engine, pool, register_coder(engine, small_bundle, None), concurrency=1)
    assert [row.note_id for row in background._waiting_notes(3)] == [41, 1, 2]
    background.prioritize(30)
    background.prioritize(999)  # an unknown note: nothing waits for it
    assert [row.note_id for row in background._waiting_notes(3)] == [30, 41, 1]
    assert list(background._urgent) == [30]


def test_a_cancelled_batch_is_resumed_by_another_server(engine, batch, pool, small_bundle):
    coder = register_coder(engine, small_bundle, None)
    cancel_batch(engine, batch)
    with pytest.raises(ReviewError, match="no batch of that number that is waiting"):
        cancel_batch(engine, batch)
    first = BackgroundCoder(engine, pool, coder, concurrency=1)
    first.start()
    time.sleep(0.3)
    assert coded(engine) == 0 and row(engine)["cancelled"] == 40
    resume_batch(engine, batch)
    first.notify()
    until(lambda: coded(engine) > 0)
    first.stop()  # the server goes down in the middle
    half = coded(engine)
    second = BackgroundCoder(engine, pool, coder, concurrency=2)
    second.start()
    until(lambda: row(engine)["status"] == "done")
    second.stop()
    assert half <= 40 and coded(engine) == 40


def test_results_of_a_cancelled_batch_are_not_stored(engine, batch, small_bundle):
    cancel_batch(engine, batch)
    results = [CodedNote((), {})]
    save_codings(engine, register_coder(engine, small_bundle, None), [1], results)
    assert coded(engine) == 0


def test_a_failing_note_does_not_stop_the_others(engine, batch, pool, small_bundle, monkeypatch):
    real = pool.code

    def sometimes(given, *, wait=False):
        if any(len(note.text) == 17 * 5 for note in given):
            raise ValueError("this one")
        return real(given, wait=wait)

    monkeypatch.setattr(pool, "code", sometimes)
    background = BackgroundCoder(engine, pool, register_coder(engine, small_bundle, None), concurrency=1)
    background.start()
    until(lambda: row(engine)["status"] == "done")
    background.stop()
    assert (row(engine)["done"], row(engine)["failed"]) == (39, 1)


def test_the_coder_gets_the_columns_of_a_note(engine, small_bundle):
    seen = []

    class Watched:
        def code(self, given, *, wait):
            seen.extend(given)
            return [CodedNote((), {}) for _ in given]

        def propose(self, inputs):
            return [None for _ in inputs]

    note = normalize_encounter(
        Note("r", "seen today", extra={"modality": "CT", "Sex": "female", "age": "44", "hits": [1]})
    )
    with write_transaction(engine) as connection:
        add_notes(connection, [note], create_batch(connection, "b", None, 1))
    background = BackgroundCoder(engine, Watched(), register_coder(engine, small_bundle, None), concurrency=1)
    background.start()
    until(lambda: seen)
    background.stop()
    assert [(given.text, given.extra) for given in seen] == [
        ("seen today", {"gender": "F", "sex": "F", "age": 44, "modality": "CT"})
    ]


def test_a_worker_that_is_killed_is_replaced(pool):
    (pid,) = pool._pool._processes
    os.kill(pid, signal.SIGKILL)
    assert pool.code([Note("", "type 2 diabetes")], wait=True)[0].suggestions


def _die(_inputs):
    os._exit(1)


def test_a_worker_that_dies_of_a_claim_costs_only_the_claim(pool, monkeypatch):
    monkeypatch.setattr(coding, "_propose_in_worker", _die)
    assert pool.propose([None, None]) == [None, None]
    assert pool.code([Note("", "type 2 diabetes")], wait=True)[0].suggestions


def test_a_full_queue_raises_coder_busy_error(pool):
    taken = [pool._slots.acquire(blocking=False) for _ in range(pool.max_pending)]
    with pytest.raises(CoderBusyError, match="queue of the coder is full"):
        pool.code([Note("", "x")])
    for _ in taken:
        pool._slots.release()
    assert pool.code([Note("", "x")])


def test_batch_progress_counts_notes_per_state(engine, batch):
    with write_transaction(engine) as connection:
        connection.execute(update(notes).where(notes.c.id <= 7).values(coding="done"))
    assert (row(engine)["done"], row(engine)["waiting"], row(engine)["total"]) == (7, 33, 40)


def test_notes_stay_waiting_if_the_bundle_cannot_be_loaded(engine, batch, tmp_path, small_bundle):
    gone = CoderPool(tmp_path, processes=1)
    background = BackgroundCoder(engine, gone, register_coder(engine, small_bundle, None), concurrency=1)
    background.start()
    until(lambda: gone._pool._processes and gone.pending == 0)
    background.stop()
    gone.close()
    assert (row(engine)["waiting"], row(engine)["failed"]) == (40, 0)
