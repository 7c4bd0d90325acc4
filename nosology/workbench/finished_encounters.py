"""Work on finished encounters in the processes of the coder, when a reviewer asks for it.

A result is stored with the version of the review it is about; after a later decision it does not count, and the next
run replaces it. The tables of results have the same columns, see `result_table` of store_tables.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from sqlalchemy import Connection, Engine, Select, Table, case, delete, func, insert, select

from nosology.core import Code, ConfigError
from nosology.workbench.blind_access import open_originals
from nosology.workbench.cases import Case, load_case
from nosology.workbench.coding import CoderPool
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.store_tables import notes

log = logging.getLogger("nosology.workbench")
_CHUNK = 4  # encounters per task: a person who waits for the coder waits for one task


class FinishedTask(Protocol):
    """The work on one version of a review, for a worker process."""

    @property
    def note_id(self) -> int: ...

    @property
    def version(self) -> int: ...

    def result(self) -> tuple[int, Any]:
        """How many things were found, and what is stored of them as JSON; ConfigError if the work cannot be done."""
        ...


def check_claimable(lang: str, codes: Iterable[Code]) -> None:
    """ConfigError unless an encounter is one of claims by its language and the systems of its final codes."""
    if not lang.lower().startswith("en") or not {code.system for code in codes} <= {"icd10cm", "icd10pcs"}:
        raise ConfigError("the encounter must be in English, with codes of ICD-10-CM and ICD-10-PCS")


def work_in_process(tasks: list[FinishedTask]) -> list[str | None]:
    """The results of tasks as JSON; None for one that cannot be done."""
    results: list[str | None] = []
    for task in tasks:
        try:
            results.append(json.dumps(task.result()))
        except ConfigError:
            results.append(None)
        except Exception as error:  # the others can be done all the same
            log.error("the work on a finished encounter failed: %s", type(error).__name__)
            results.append(None)
    return results


@dataclass(frozen=True)
class FinishedProgress:
    """Numbers of finished encounters: done, not done yet, and those where it cannot be done."""

    done: int
    waiting: int
    failed: int


def select_finished(results: Table, *columns: Any) -> Select[*tuple[Any, ...]]:
    """Finished encounters whose final codes are known, with the result of their present version."""
    own = (results.c.note_id == notes.c.id) & (results.c.version == notes.c.version)
    query = select(*columns).select_from(notes.join(results, own, isouter=True))
    is_final = (notes.c.status == "done", notes.c.double_of.is_(None), notes.c.id.not_in(open_originals()))
    return query.where(*is_final, notes.c.coding == "done")


def load_progress(connection: Connection, results: Table) -> FinishedProgress:
    """How many finished encounters have a result."""
    is_done, has_findings = results.c.note_id.is_not(None), results.c.findings.is_not(None)
    counts = [func.count(), func.count(results.c.note_id), func.sum(case((is_done & ~has_findings, 1), else_=0))]
    total, done, failed = connection.execute(select_finished(results, *counts)).one()
    return FinishedProgress(done - (failed or 0), total - done, failed or 0)


class FinishedJob(ABC):
    """A thread that works on finished encounters when a reviewer asks for it. results: its table."""

    results: ClassVar[Table]

    def __init__(self, engine: Engine, pool: CoderPool):
        self._engine, self._pool = engine, pool
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.results.name, daemon=True)
        self.is_running = False

    @abstractmethod
    def task(self, coded: Case) -> FinishedTask:
        """The task of a case."""

    def start(self) -> None:
        """Starts the thread, which then waits."""
        self._thread.start()

    def request(self) -> None:
        """Works on all finished encounters that have no result yet."""
        self.is_running = True
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread after the task that runs."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                while not self._stop.is_set() and self.work_on_some():
                    pass
            except Exception as error:  # the database may be away for a moment; the reviewer can ask again
                log.error("the work on finished encounters failed: %s", type(error).__name__)
            self.is_running = self._wake.is_set()
            if self._stop.is_set():
                return

    def work_on_some(self) -> int:
        """The number of encounters that have a result now, 0 if none was waiting."""
        waiting = select_finished(self.results, notes.c.id).where(self.results.c.note_id.is_(None))
        with read_transaction(self._engine) as connection:
            ids = list(connection.scalars(waiting.order_by(notes.c.id).limit(_CHUNK)))
            tasks = [self.task(load_case(connection, note_id)) for note_id in ids]
        if tasks:
            self._save(tasks, self._pool.run(work_in_process, tasks))
        return len(tasks)

    def _save(self, tasks: Sequence[FinishedTask], results: Sequence[str | None]) -> None:
        rows = []
        for task, result in zip(tasks, results):
            found, value = (0, None) if result is None else json.loads(result)
            row = {"note_id": task.note_id, "version": task.version, "made": time.time()}
            rows.append(row | {"found": found, "findings": value})
        with write_transaction(self._engine) as connection:
            ids = [task.note_id for task in tasks]
            still = select(notes.c.id).where(notes.c.id.in_(ids), notes.c.status == "done").with_for_update()
            present = set(connection.scalars(still))  # one may have been deleted meanwhile
            connection.execute(delete(self.results).where(self.results.c.note_id.in_(ids)))
            if kept := [row for row in rows if row["note_id"] in present]:
                connection.execute(insert(self.results), kept)
