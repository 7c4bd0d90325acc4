"""Automatic coding: worker processes with the coder behind a bounded queue, and the thread that codes waiting notes.

Pending work is stored only in the database (`notes.coding = waiting`). After a crash the server continues with it. A
note whose result was not committed is coded again.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine, bindparam, func, insert, select, update

from nosology.core import ConfigError, NosologyError, Note, Suggestion
from nosology.core.parallel import end_with_parent
from nosology.workbench.append_only import DELETED
from nosology.workbench.blind_access import load_pair
from nosology.workbench.cases import record_decision_in, suggestion_to_json
from nosology.workbench.database import SerializedJson, read_transaction, write_transaction
from nosology.workbench.documents import current_documents, lock_documents
from nosology.workbench.double_coding import sample_coded_notes
from nosology.workbench.encounter_data import complete_encounter
from nosology.workbench.note_coding import CodedNote, WaitingNote, code_notes
from nosology.workbench.review import NotFound
from nosology.workbench.store_tables import batches, codings, notes, users
from nosology.workbench.stored_claims import ClaimInput
from nosology.workbench.triage import expected_f1
from nosology.workbench.triage_drift import load_alarm, raise_alarm, watch_drift
from nosology.workbench.triage_guarantee import PassRule, load_pass_rule
from nosology.workbench.warm_up import freeze_tables

if TYPE_CHECKING:
    from nosology.serving.coder import Coder

log = logging.getLogger("nosology.workbench")
T = TypeVar("T")
R = TypeVar("R")
BATCHES_PER_PAGE = 100
CODING_STATES = ("done", "waiting", "failed", "cancelled")
_CHUNK = 8  # notes per task
_CHUNKS_PER_THREAD = 2  # tasks between two queries for waiting notes; few, so that an urgent note comes soon
_POLL_SECONDS = 1.0  # between two queries if no note waits
_coder: Coder | NosologyError | None = None  # of a worker process


class CoderBusyError(NosologyError):
    """The queue of the coder is full."""


def _load_coder(bundle: str, release: str | None) -> None:
    """Loads the coder of this worker process, which runs at a lower priority than the server."""
    global _coder
    end_with_parent()
    from nosology.models.bundle import is_day_one
    from nosology.serving.coder import Coder

    if hasattr(os, "nice"):
        os.nice(10)
    for number in (signal.SIGINT, signal.SIGHUP):  # the server handles them and lets workers finish
        signal.signal(number, signal.SIG_IGN)
    try:
        load = Coder.for_claims if is_day_one(bundle) else Coder.load
        _coder = load(bundle, release=release)
        freeze_tables()
    except NosologyError as error:  # an exception here would break the pool and hide the message
        _coder = error


def _code_in_worker(notes: list[Note]) -> list[CodedNote]:
    if _coder is None or isinstance(_coder, NosologyError):
        raise _coder or NosologyError("the coder is not loaded")
    return code_notes(_coder, notes)


def _propose_in_worker(inputs: list[ClaimInput]) -> list[str | None]:
    return [_claim_json(made_of) for made_of in inputs]


def _claim_json(made_of: ClaimInput) -> str | None:
    """The proposed claim for the database; None if there is none, or if it fails: a page then says why."""
    try:
        return made_of.to_json()
    except ConfigError:
        return None
    except Exception as error:  # the suggestions are right all the same
        log.error("a proposed claim failed: %s", type(error).__name__)
        return None


class CoderPool:
    """Worker processes that load the bundle and code notes; at most `max_pending` tasks wait or run.

    A process that dies (out of memory, killed) is replaced, and its task is tried once more.
    """

    def __init__(self, bundle: Path, release: str | None = None, *, processes: int = 1, max_pending: int = 16):
        self._bundle = (str(bundle), release)
        self._processes = processes
        self._slots = threading.BoundedSemaphore(max_pending)
        self._lock = threading.Lock()
        self._pool = self._new_pool()
        self.max_pending = max_pending
        self.pending = 0

    def _new_pool(self) -> ProcessPoolExecutor:
        # spawn: the server has threads, and a fork would copy their locks.
        spawn = get_context("spawn")
        return ProcessPoolExecutor(self._processes, spawn, initializer=_load_coder, initargs=self._bundle)

    def code(self, notes: Sequence[Note], *, wait: bool = False) -> list[CodedNote]:
        """The results of `code_notes` in a worker; CoderBusyError if the queue is full and wait is False."""
        return self._run(_code_in_worker, list(notes), wait=wait)

    def propose(self, inputs: Sequence[ClaimInput]) -> list[str | None]:
        """The proposed claims as the database stores them, built in a worker; None for all if they kill it."""
        try:
            return self._run(_propose_in_worker, list(inputs), wait=True)
        except BrokenProcessPool:  # the suggestions are right all the same
            log.error("the worker died of %d proposed claims", len(inputs))
            return [None for _ in inputs]

    def run(self, task: Callable[[list[T]], list[R]], items: list[T]) -> list[R]:
        """The results of another task in a worker; waits if the queue is full."""
        return self._run(task, items, wait=True)

    def _run(self, task: Callable[[list[T]], list[R]], items: list[T], *, wait: bool) -> list[R]:
        """The results of a task in a worker."""
        if not self._slots.acquire(blocking=wait):
            raise CoderBusyError("the queue of the coder is full; try again in a moment")
        with self._lock:
            self.pending += 1
        try:
            pool = self._pool
            try:
                return pool.submit(task, items).result()
            except BrokenProcessPool:
                return self._replace(pool).submit(task, items).result()
        finally:
            with self._lock:
                self.pending -= 1
            self._slots.release()

    def _replace(self, broken: ProcessPoolExecutor) -> ProcessPoolExecutor:
        """A working pool; only the first thread that saw the old one break creates it."""
        with self._lock:
            if self._pool is broken:
                self._pool = self._new_pool()
            return self._pool

    def load(self) -> None:
        """Loads the bundle now, so that the first note does not wait for it."""
        self.code([Note("", "")], wait=True)

    def close(self) -> None:
        """Ends the processes after the tasks that run."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class BackgroundCoder:
    """A thread that codes waiting notes and stores the results."""

    def __init__(self, engine: Engine, pool: CoderPool, coder_id: int, *, concurrency: int):
        self.engine, self.pool, self.coder_id, self.concurrency = engine, pool, coder_id, concurrency
        self._urgent: dict[int, None] = {}
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="background-coder", daemon=True)

    def start(self) -> None:
        """Starts with the notes that wait in the database."""
        self._thread.start()

    def notify(self) -> None:
        """Announces new notes."""
        self._wake.set()

    def prioritize(self, note_id: int) -> None:
        """Puts a note that a person has open before all others."""
        self._urgent[note_id] = None

    def stop(self) -> None:
        """Ends after the tasks that run; their results are stored."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        failure = ""  # an error that lasts is logged once
        with ThreadPoolExecutor(self.concurrency) as threads:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    waiting = self._waiting_notes(_CHUNK * self.concurrency * _CHUNKS_PER_THREAD)
                    chunks = [waiting[first : first + _CHUNK] for first in range(0, len(waiting), _CHUNK)]
                    list(threads.map(self._code_chunk, chunks))
                    self._close_finished_batches()
                    failure = ""
                except Exception as error:  # the database may be away for a moment; the thread must survive that
                    if failure != (failure := type(error).__name__):
                        log.error("coding in the background failed: %s", failure)
                    waiting = []
                if not waiting:
                    self._wake.wait(_POLL_SECONDS)

    def _waiting_notes(self, limit: int) -> list[WaitingNote]:
        """The notes to code next: urgent ones, then those of small batches, then those of large batches."""
        urgent = list(self._urgent)
        is_waiting = notes.c.coding == "waiting"
        with read_transaction(self.engine) as connection:
            first = connection.scalars(select(notes.c.id).where(notes.c.id.in_(urgent), is_waiting)).all()
            query = select(notes.c.id).join(batches, batches.c.id == notes.c.batch_id, isouter=True).where(is_waiting)
            query = query.order_by(func.coalesce(batches.c.total, 0), notes.c.id).limit(limit)
            ids = list(dict.fromkeys([*first, *connection.scalars(query)]))[: max(limit, len(first))]
            query = select(notes.c.id, notes.c.encounter).where(notes.c.id.in_(ids))
            encounters = {row.id: row.encounter for row in connection.execute(query)}
            parts = current_documents(connection, ids)
        for note_id in urgent:
            if note_id not in first:
                self._urgent.pop(note_id, None)
        return [WaitingNote(note_id, encounters[note_id], parts[note_id]) for note_id in ids if note_id in encounters]

    def _code_chunk(self, rows: Sequence[WaitingNote]) -> None:
        """Codes some notes. If the coder fails on them it tries each alone, and marks only the failing note."""
        if self._stop.is_set():
            return
        try:
            coded = iter(self.pool.code([note for row in rows for note in row.notes], wait=True))
            merged = [row.merge([next(coded) for _ in row.documents]) for row in rows]
            claims = self.pool.propose([row.claim_input(result) for row, result in zip(rows, merged)])
            results = [replace(result, claim=claim) for result, claim in zip(merged, claims)]
        except BrokenProcessPool:
            results = []
        except NosologyError as error:  # not the fault of a note: the bundle cannot be loaded
            log.error("the coder cannot be loaded: %s", error)
            self._stop.wait(10)
            return
        except Exception as error:
            log.error("the coder failed on %d notes: %s", len(rows), type(error).__name__)
            results = []
        if not results and len(rows) > 1:
            for row in rows:
                self._code_chunk([row])
        elif results or not self._stop.is_set():  # else the pool was closed: the note still waits
            coded_of = {row.note_id: [it.id for it in row.documents] for row in rows}
            save_codings(self.engine, self.coder_id, list(coded_of), results, coded_of)

    def _close_finished_batches(self) -> None:
        """Marks batches without waiting notes as done."""
        waiting = select(notes.c.id).where(notes.c.batch_id == batches.c.id, notes.c.coding == "waiting").exists()
        with read_transaction(self.engine) as connection:
            done = connection.scalars(select(batches.c.id).where(batches.c.status == "waiting", ~waiting)).all()
        if done:
            with write_transaction(self.engine) as connection:
                query = update(batches).where(batches.c.id.in_(done))
                connection.execute(query.values(status="done", finished=time.time()))


_MARK_CODED = (
    update(notes).where(notes.c.id == bindparam("note")).values(coding="done", confidence=bindparam("expected"))
)


def save_codings(
    engine: Engine,
    coder_id: int,
    note_ids: Sequence[int],
    results: Sequence[CodedNote],
    coded_documents: Mapping[int, Sequence[int]] | None = None,
    *,
    now: float | None = None,
) -> None:
    """Stores the results of notes and applies the triage rule; without results the notes are marked as failed.

    coded_documents: of each note. If it has others in the meantime, it still waits.
    """
    is_waiting = (notes.c.id.in_(note_ids), notes.c.coding == "waiting")
    if not results:
        with write_transaction(engine) as connection:
            connection.execute(update(notes).where(*is_waiting).values(coding="failed"))
        return
    with read_transaction(engine) as connection:
        rule = load_pass_rule(connection, coder_id)
        watch = watch_drift(engine, connection, rule.guarantee)
    made, rows, confidence = time.time() if now is None else now, {}, {}
    for note_id, result in zip(note_ids, results):  # serialised before the database is locked
        confidence[note_id] = expected_f1(result.suggestions)
        rows[note_id] = {
            "note_id": note_id,
            "coder_id": coder_id,
            "made": made,
            "suggestions": SerializedJson(json.dumps([suggestion_to_json(item) for item in result.suggestions])),
            "profile": {**result.profile, "confidence": confidence[note_id]},
            "claim": None if result.claim is None else SerializedJson(result.claim),
        }
    with write_transaction(engine) as connection:
        lock_documents(connection)
        # The rows are locked, so that nobody withdraws a document between this check and the commit.
        waiting = set(connection.scalars(select(notes.c.id).where(*is_waiting).with_for_update(key_share=True)))
        if coded_documents is not None:
            now_current = current_documents(connection, waiting)
            waiting = {i for i in waiting if [it.id for it in now_current[i]] == list(coded_documents[i])}
        if not waiting:  # cancelled, or coded by another server in the meantime
            return
        connection.execute(insert(codings), [row for note_id, row in rows.items() if note_id in waiting])
        connection.execute(_MARK_CODED, [{"note": note_id, "expected": confidence[note_id]} for note_id in waiting])
        if watch is not None and watch.alarm is not None:
            raise_alarm(connection, watch.alarm)
        if rule.rule.on and load_alarm(connection) is None:
            for note_id, result in zip(note_ids, results):
                if note_id in waiting:
                    _preaccept(connection, note_id, result.suggestions, confidence[note_id], rule)
        sample_coded_notes(connection, waiting)


def _preaccept(
    connection: Connection, note_id: int, suggestions: Sequence[Suggestion], confidence: float, rule: PassRule
) -> None:
    """Accepts the codes of a note, if the rule lets it pass."""
    note = connection.execute(select(notes).where(notes.c.id == note_id)).one()
    if not rule.passes(note_id, confidence, complete_encounter(note.encounter)):
        return
    if note.status != "new" or note.assignee_id is not None or load_pair(connection, note_id) is not None:
        return  # somebody has decided already, or two people will
    codes = [f"{item.system}:{item.code}" for item in suggestions if item.accepted]
    details = {"codes": codes, "confidence": round(confidence, 4)}
    record_decision_in(connection, note_id, "preaccept", details, user=None, version=note.version)


def batch_progress(engine: Engine, before: int | None = None) -> list[dict[str, Any]]:
    """The newest batches with the user who imported them, each with its number of notes per coding state.

    before: only batches with a smaller id.
    """
    newest = select(batches, users.c.name.label("user")).join(users, users.c.id == batches.c.user_id, isouter=True)
    if before is not None:
        newest = newest.where(batches.c.id < before)
    with read_transaction(engine) as connection:
        rows = connection.execute(newest.order_by(batches.c.id.desc()).limit(BATCHES_PER_PAGE)).all()
        query = select(notes.c.batch_id, notes.c.coding, func.count())
        query = query.where(notes.c.batch_id.in_([row.id for row in rows])).group_by(notes.c.batch_id, notes.c.coding)
        counts = {(batch, state): count for batch, state, count in connection.execute(query)}
    return [row._asdict() | {state: counts.get((row.id, state), 0) for state in CODING_STATES} for row in rows]


def cancel_batch(engine: Engine, batch: int) -> None:
    """Stops coding a batch. Finished results stay; the other notes stay uncoded until it is resumed."""
    _change_state(engine, batch, "waiting", "cancelled")


def resume_batch(engine: Engine, batch: int) -> None:
    """Continues a cancelled batch."""
    _change_state(engine, batch, "cancelled", "waiting")


def _change_state(engine: Engine, batch: int, before: str, after: str) -> None:
    """Changes the state of a batch, and of its notes in the same state."""
    with write_transaction(engine) as connection:
        query = update(batches).where(batches.c.id == batch, batches.c.status == before)
        if not connection.execute(query.values(status=after)).rowcount:
            raise NotFound(f"there is no batch of that number that is {before}")
        where = (notes.c.batch_id == batch, notes.c.coding == before, notes.c.status != DELETED)
        connection.execute(update(notes).where(*where).values(coding=after))
