"""Notes coded in the background: progress, cancel, resume after a restart, workers that die."""

import os
import signal
import time

import pytest
from sqlalchemy import func, select, update

from nosology.core import Note, ReviewError
from nosology.workbench import batches
from nosology.workbench.inference import Busy, Workers
from nosology.workbench.intake import with_encounter
from nosology.workbench.services import register
from nosology.workbench.store.engine import reading, writing
from nosology.workbench.store.schema import codings, notes
from nosology.workbench.work import add_notes, new_batch


@pytest.fixture(scope="module")
def workers(small_bundle):
    """One process with the small coder."""
    made = Workers(small_bundle, processes=1, bound=2)
    made.warm()
    yield made
    made.close()


@pytest.fixture
def batch(engine):
    """The number of a batch of forty notes."""
    with writing(engine) as connection:
        number = new_batch(connection, "b", None, 40)
        add_notes(connection, [Note(f"n{i}", "type 2 diabetes. " * (i + 1)) for i in range(40)], number)
    return number


def row(engine):
    return batches.progress(engine)[0]


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def coded(engine) -> int:
    with reading(engine) as connection:
        return connection.scalar(select(func.count()).select_from(codings))


def test_a_batch_runs_to_its_end_and_each_note_is_coded_once(engine, batch, workers, small_bundle):
    background = batches.Background(engine, workers, register(engine, small_bundle, None), at_once=2)
    background.start()
    until(lambda: row(engine)["status"] == "done")
    background.stop()
    assert (row(engine)["done"], row(engine)["waiting"], coded(engine)) == (40, 0, 40)
    with reading(engine) as connection:
        assert connection.scalar(select(func.count()).where(notes.c.confidence > 0)) == 40


def test_a_note_of_a_small_batch_or_that_somebody_waits_for_does_not_wait_for_a_large_batch(
    engine, batch, workers, small_bundle
):
    with writing(engine) as connection:
        add_notes(connection, [Note("single", "type 2 diabetes")], new_batch(connection, "one", None, 1))
    background = batches.Background(engine, workers, register(engine, small_bundle, None), at_once=1)
    assert [found.note_id for found in background._waiting(3)] == [41, 1, 2]
    background.hurry(30)
    background.hurry(999)  # there is none, and nobody waits for it for ever
    assert [found.note_id for found in background._waiting(3)] == [30, 41, 1]
    assert list(background._hurried) == [30]


def test_cancel_keeps_what_is_done_and_resume_goes_on_in_another_server(engine, batch, workers, small_bundle):
    coder = register(engine, small_bundle, None)
    batches.cancel(engine, batch)
    with pytest.raises(ReviewError, match="no batch of that number that is waiting"):
        batches.cancel(engine, batch)
    first = batches.Background(engine, workers, coder, at_once=1)
    first.start()
    time.sleep(0.3)
    assert coded(engine) == 0 and row(engine)["cancelled"] == 40
    batches.resume(engine, batch)
    first.wake()
    until(lambda: coded(engine) > 0)
    first.stop()  # the server goes down in the middle
    half = coded(engine)
    second = batches.Background(engine, workers, coder, at_once=2)
    second.start()
    until(lambda: row(engine)["status"] == "done")
    second.stop()
    assert half <= 40 and coded(engine) == 40


def test_what_was_cancelled_meanwhile_is_not_kept(engine, batch, small_bundle):
    batches.cancel(engine, batch)
    found = [{"suggestions": [], "profile": {}}]
    batches.keep(engine, register(engine, small_bundle, None), [1], found)
    assert coded(engine) == 0


def test_a_coder_that_cannot_read_a_note_stops_no_other(engine, batch, workers, small_bundle, monkeypatch):
    real = workers.code

    def sometimes(given, *, wait=False):
        if any(len(note.text) == 17 * 5 for note in given):
            raise ValueError("this one")
        return real(given, wait=wait)

    monkeypatch.setattr(workers, "code", sometimes)
    background = batches.Background(engine, workers, register(engine, small_bundle, None), at_once=1)
    background.start()
    until(lambda: row(engine)["status"] == "done")
    background.stop()
    assert (row(engine)["done"], row(engine)["failed"]) == (39, 1)


def test_the_coder_is_given_what_stands_beside_a_note(engine, small_bundle):
    seen = []

    class Watched:
        def code(self, given, *, wait):
            seen.extend(given)
            return [{"suggestions": [], "profile": {}} for _ in given]

    note = with_encounter(Note("r", "seen today", extra={"modality": "CT", "Sex": "female", "age": "44", "hits": [1]}))
    with writing(engine) as connection:
        add_notes(connection, [note], new_batch(connection, "b", None, 1))
    background = batches.Background(engine, Watched(), register(engine, small_bundle, None), at_once=1)
    background.start()
    until(lambda: seen)
    background.stop()
    assert [(given.text, given.extra) for given in seen] == [
        ("seen today", {"gender": "F", "sex": "F", "age": 44, "modality": "CT"})
    ]


def test_a_worker_that_is_killed_is_replaced(workers):
    (pid,) = workers._pool._processes
    os.kill(pid, signal.SIGKILL)
    assert workers.code([Note("", "type 2 diabetes")], wait=True)[0]["suggestions"]


def test_a_full_queue_says_so_at_once(workers):
    taken = [workers._slots.acquire(blocking=False) for _ in range(workers.bound)]
    with pytest.raises(Busy, match="queue of the coder is full"):
        workers.code([Note("", "x")])
    for _ in taken:
        workers._slots.release()
    assert workers.code([Note("", "x")])


def test_the_numbers_of_a_batch_are_those_of_its_notes(engine, batch):
    with writing(engine) as connection:
        connection.execute(update(notes).where(notes.c.id <= 7).values(coding="done"))
    assert (row(engine)["done"], row(engine)["waiting"], row(engine)["total"]) == (7, 33, 40)


def test_notes_wait_where_the_bundle_cannot_be_loaded(engine, batch, tmp_path, small_bundle):
    gone = Workers(tmp_path, processes=1)
    background = batches.Background(engine, gone, register(engine, small_bundle, None), at_once=1)
    background.start()
    until(lambda: gone._pool._processes and gone.waiting == 0)
    background.stop()
    gone.close()
    assert (row(engine)["waiting"], row(engine)["failed"]) == (40, 0)
