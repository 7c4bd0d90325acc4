"""Notes that wait for the coder, coded in the background: progress, cancel, and going on after a restart.

What is left to do stands in the store alone (`notes.coding = waiting`): a server that was killed finds it there, and a
note whose coding was not kept is simply coded again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, func, insert, select, update

from nosology.core import NosologyError, Note
from nosology.workbench.inference import Workers
from nosology.workbench.intake import columns_of
from nosology.workbench.measures import confidence_curve, triage_rule
from nosology.workbench.review import Missing
from nosology.workbench.store.engine import Written, reading, writing
from nosology.workbench.store.schema import batches, codings, notes, texts
from nosology.workbench.triage import raw_confidence
from nosology.workbench.work import record_in

log = logging.getLogger("nosology.workbench")
_CHUNK = 8  # notes a piece of work, and
_ROUND = 2  # pieces a thread between looks into the store: few, so that a note that a person waits for comes soon
_REST = 1.0  # seconds between looks into the store where nothing waits


class Background:
    """A thread that hands waiting notes to the workers and keeps what comes back."""

    def __init__(self, engine: Engine, workers: Workers, coder_id: int, *, at_once: int):
        self.engine, self.workers, self.coder_id, self.at_once = engine, workers, coder_id, at_once
        self.coded = 0
        self._hurried: dict[int, None] = {}
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    def start(self) -> None:
        """Begins, with whatever an earlier server left undone."""
        self._thread.start()

    def wake(self) -> None:
        """Says that there is something new."""
        self._wake.set()

    def hurry(self, note_id: int) -> None:
        """Says that a person waits for a note: it comes before all others."""
        self._hurried[note_id] = None

    def stop(self) -> None:
        """Ends after the pieces of work that are under way, whose results are kept."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        with ThreadPoolExecutor(self.at_once) as threads:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    waiting = self._waiting(_CHUNK * self.at_once * _ROUND)
                    chunks = [waiting[first : first + _CHUNK] for first in range(0, len(waiting), _CHUNK)]
                    list(threads.map(self._chunk, chunks))
                    self._close_finished()
                except Exception as error:  # the store may be away for a moment; the thread must outlive that
                    log.error("coding in the background failed: %s", type(error).__name__)
                    waiting = []
                if not waiting:
                    self._wake.wait(_REST)

    def _waiting(self, limit: int) -> Sequence[Any]:
        """The notes to code next: those that people wait for, then those of small batches, then of large ones."""
        hurried = list(self._hurried)
        due = notes.c.coding == "waiting"
        with reading(self.engine) as connection:
            first = list(connection.scalars(select(notes.c.id).where(notes.c.id.in_(hurried), due))) if hurried else []
            rest = select(notes.c.id).join(batches, batches.c.id == notes.c.batch_id, isouter=True).where(due)
            rest = rest.order_by(func.coalesce(batches.c.total, 0), notes.c.id).limit(limit)
            ids = list(dict.fromkeys([*first, *connection.scalars(rest)]))[: max(limit, len(first))]
            wanted = select(texts.c.note_id, texts.c.text, notes.c.encounter).join(notes, notes.c.id == texts.c.note_id)
            rows = connection.execute(wanted.where(texts.c.note_id.in_(ids))).all()
        for note_id in hurried:
            if note_id not in first:
                self._hurried.pop(note_id, None)
        return sorted(rows, key=lambda row: ids.index(row.note_id))

    def _chunk(self, rows: Sequence[Any]) -> None:
        """Codes some notes; a note that the coder cannot code is marked as failed and stops no other."""
        if self._stop.is_set():
            return
        try:
            given = [Note("", row.text, extra=columns_of(row.encounter)) for row in rows]
            found = self.workers.code(given, wait=True)
        except BrokenProcessPool:
            found = []
        except NosologyError as error:  # no note's fault: the bundle cannot be loaded
            log.error("the coder cannot be loaded: %s", error)
            self._stop.wait(10)
            return
        except Exception as error:
            log.error("the coder failed on %d notes: %s", len(rows), type(error).__name__)
            found = []
        if not found and len(rows) > 1:
            for row in rows:
                self._chunk([row])
            return
        if self._stop.is_set() and not found:
            return  # the workers were closed under us: the note is still waiting
        keep(self.engine, self.coder_id, [row.note_id for row in rows], found)
        self.coded += len(found)

    def _close_finished(self) -> None:
        """Marks batches as done of which no note waits any more."""
        open_notes = select(notes.c.id).where(notes.c.batch_id == batches.c.id, notes.c.coding == "waiting").exists()
        with reading(self.engine) as connection:
            due = connection.scalars(select(batches.c.id).where(batches.c.status == "waiting", ~open_notes)).all()
        if due:
            with writing(self.engine) as connection:
                connection.execute(
                    update(batches).where(batches.c.id.in_(due)).values(status="done", finished=time.time())
                )


def keep(engine: Engine, coder_id: int, note_ids: Sequence[int], found: Sequence[Mapping[str, Any]]) -> None:
    """Keeps the suggestions of notes; without `found` they are marked as failed. Triage is applied where it is on."""
    if not found:
        with writing(engine) as connection:
            failed = update(notes).where(notes.c.id.in_(note_ids), notes.c.coding == "waiting")
            connection.execute(failed.values(coding="failed"))
        return
    with reading(engine) as connection:
        rule, curve = triage_rule(connection), confidence_curve(connection)
    now, rows, sure = time.time(), {}, {}
    for note_id, item in zip(note_ids, found):  # all that can be made ready before the store is locked
        raw = raw_confidence(item["suggestions"])
        sure[note_id] = float(curve(raw))
        suggestions = Written(json.dumps(item["suggestions"]))
        profile = {**item["profile"], "confidence": raw}
        values = {"note_id": note_id, "coder_id": coder_id, "made": now}
        rows[note_id] = {**values, "suggestions": suggestions, "profile": profile}
    with writing(engine) as connection:
        still = list(
            connection.scalars(select(notes.c.id).where(notes.c.id.in_(note_ids), notes.c.coding == "waiting"))
        )
        if not still:  # cancelled, or coded by another server meanwhile
            return
        connection.execute(insert(codings), [rows[note_id] for note_id in still])
        connection.execute(_CODED, [{"note": note_id, "sure": sure[note_id]} for note_id in still])
        for note_id, item in zip(note_ids, found):
            if note_id in still and rule.takes(note_id, sure[note_id]):
                _preaccept(connection, note_id, item["suggestions"], sure[note_id])


_CODED = update(notes).where(notes.c.id == bindparam("note")).values(coding="done", confidence=bindparam("sure"))


def _preaccept(connection: Connection, note_id: int, suggestions: Sequence[Mapping[str, Any]], sure: float) -> None:
    if connection.scalar(select(notes.c.version).where(notes.c.id == note_id)):
        return
    codes = [f"{item['system']}:{item['code']}" for item in suggestions if item["accepted"]]
    details = {"codes": codes, "confidence": round(sure, 4)}
    record_in(connection, note_id, "preaccept", details, user=None, version=0)


def progress(engine: Engine) -> list[dict[str, Any]]:
    """All batches, newest first, each with how many of its notes are coded, waiting, failed or cancelled."""
    with reading(engine) as connection:
        rows = connection.execute(select(batches).order_by(batches.c.id.desc()).limit(100)).mappings().all()
        counted = connection.execute(
            select(notes.c.batch_id, notes.c.coding, func.count())
            .where(notes.c.batch_id.in_([row["id"] for row in rows]))
            .group_by(notes.c.batch_id, notes.c.coding)
        ).all()
    states: dict[int, dict[str, int]] = {}
    for batch, coding, count in counted:
        states.setdefault(batch, {})[coding] = count
    return [
        {**row, **{name: states.get(row["id"], {}).get(name, 0) for name in ("done", "waiting", "failed", "cancelled")}}
        for row in rows
    ]


def cancel(engine: Engine, batch: int) -> None:
    """Stops coding a batch; what is coded stays, the other notes stay uncoded until it is resumed."""
    _change(engine, batch, "waiting", "cancelled")


def resume(engine: Engine, batch: int) -> None:
    """Goes on with a cancelled batch."""
    _change(engine, batch, "cancelled", "waiting")


def _change(engine: Engine, batch: int, before: str, after: str) -> None:
    """Brings a batch, and its notes in the same state, from one state to another."""
    with writing(engine) as connection:
        changed = connection.execute(
            update(batches).where(batches.c.id == batch, batches.c.status == before).values(status=after)
        )
        if not changed.rowcount:
            raise Missing(f"there is no batch of that number that is {before}")
        where = (notes.c.batch_id == batch, notes.c.coding == before)
        connection.execute(update(notes).where(*where).values(coding=after))
