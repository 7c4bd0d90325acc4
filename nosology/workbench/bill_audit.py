"""The audit of finished encounters: their final codes against their documents, in the processes of the coder.

A reviewer starts it. Findings are stored with the version of the review they are about, without words of the note;
after a later decision they do not count, and the next audit replaces them.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, case, delete, func, insert, select

from nosology.audit.correction import Weights
from nosology.audit.encounter_audit import audit_encounter
from nosology.audit.finding import BilledCode
from nosology.claims.encounter import Encounter
from nosology.core import ConfigError, Span
from nosology.workbench.blind_access import open_originals
from nosology.workbench.cases import Case, load_case
from nosology.workbench.coding import CoderPool
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.proposals import claim_input
from nosology.workbench.report_evidence import without_reports
from nosology.workbench.review import NotFound
from nosology.workbench.store_tables import bill_audits, notes, users
from nosology.workbench.stored_claims import ClaimInput, for_claim

log = logging.getLogger("nosology.workbench")
MAX_ENCOUNTERS = 1000  # with findings, that the page shows
_CHUNK = 4  # encounters per task: a person who waits for the coder waits for one task


@dataclass(frozen=True)
class BillAuditTask:
    """A finished encounter for a worker process."""

    note_id: int
    version: int
    lang: str
    made_of: ClaimInput
    billed: tuple[BilledCode, ...]
    weights: Weights

    @classmethod
    def of(cls, coded: Case, weights: Weights) -> BillAuditTask:
        """The task of a case."""
        made_of = claim_input(coded.note["text"], coded.note["encounter"], coded.current, coded.suggestions)
        billed = tuple(BilledCode(item.code, item.poa) for item in coded.review.chosen)
        return cls(coded.note["id"], coded.review.version, coded.note["lang"] or "en", made_of, billed, weights)

    def findings(self) -> list[dict[str, Any]]:
        """The findings without words of the note; ConfigError for other languages, systems and dates than claims."""
        systems = {item.code.system for item in self.billed}
        if not self.lang.lower().startswith("en") or not systems <= {"icd10cm", "icd10pcs"}:
            raise ConfigError("only encounters in English with codes of ICD-10-CM and ICD-10-PCS are audited")
        given, stated = self.made_of, dict(self.made_of.fields)
        usable = for_claim(given.suggestions)
        if given.reports and Encounter.of(given.text, stated).is_inpatient:
            usable, _ = without_reports(usable, given.reports)
        result = audit_encounter("", given.text, self.billed, usable, stated, weights=self.weights)
        found = result.to_json()["findings"]
        for item in found:
            item["evidence"] = [[span["start"], span["end"]] for span in item["evidence"]]
        return found


def audit_in_worker(tasks: list[BillAuditTask]) -> list[str | None]:
    """The findings of encounters as JSON; None for one that cannot be audited."""
    results: list[str | None] = []
    for task in tasks:
        try:
            results.append(json.dumps(task.findings()))
        except ConfigError:
            results.append(None)
        except Exception as error:  # the others can be audited all the same
            log.error("the audit of an encounter failed: %s", type(error).__name__)
            results.append(None)
    return results


@dataclass(frozen=True)
class AuditedFinding:
    """A finding with its encounter; number: among the findings of the encounter. values: as audit_encounter has it."""

    note_id: int
    ref: str
    coder: str
    number: int
    values: Mapping[str, Any]

    @property
    def spans(self) -> list[Span]:
        """The evidence."""
        return [Span(start, end) for start, end in self.values["evidence"]]


@dataclass(frozen=True)
class AuditProgress:
    """Numbers of finished encounters: audited, not audited yet, and those that cannot be audited."""

    audited: int
    waiting: int
    failed: int


def _finished(*columns: Any) -> Select[*tuple[Any, ...]]:
    """Finished encounters whose final codes are known, with the audit of their present version."""
    own = (bill_audits.c.note_id == notes.c.id) & (bill_audits.c.version == notes.c.version)
    query = select(*columns).select_from(notes.join(bill_audits, own, isouter=True))
    is_final = (notes.c.status == "done", notes.c.double_of.is_(None), notes.c.id.not_in(open_originals()))
    return query.where(*is_final, notes.c.coding == "done")


def load_progress(connection: Connection) -> AuditProgress:
    """How many finished encounters are audited."""
    is_audited, has_findings = bill_audits.c.note_id.is_not(None), bill_audits.c.findings.is_not(None)
    counts = [func.count(), func.count(bill_audits.c.note_id), func.sum(case((is_audited & ~has_findings, 1), else_=0))]
    total, audited, failed = connection.execute(_finished(*counts)).one()
    return AuditProgress(audited - (failed or 0), total - audited, failed or 0)


def load_findings(connection: Connection, note_id: int | None = None) -> list[AuditedFinding]:
    """The findings of the newest finished encounters, or of one of them."""
    query = _finished(notes.c.id, notes.c.ref, users.c.name, bill_audits.c.findings)
    query = query.join(users, users.c.id == notes.c.assignee_id, isouter=True)
    query = query.where(bill_audits.c.found > 0).order_by(notes.c.finished.desc(), notes.c.id).limit(MAX_ENCOUNTERS)
    if note_id is not None:
        query = query.where(notes.c.id == note_id)
    return [
        AuditedFinding(row.id, row.ref, row.name or "", number, item)
        for row in connection.execute(query)
        for number, item in enumerate(row.findings)
    ]


class BillAuditJob:
    """A thread that audits finished encounters when a reviewer asks for it."""

    def __init__(self, engine: Engine, pool: CoderPool, weights: Weights):
        self._engine, self._pool, self._weights = engine, pool, weights
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="bill-audit", daemon=True)
        self.is_running = False

    def start(self) -> None:
        """Starts the thread, which then waits."""
        self._thread.start()

    def request(self) -> None:
        """Audits all finished encounters that are not audited yet."""
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
                while not self._stop.is_set() and self.audit_some():
                    pass
            except Exception as error:  # the database may be away for a moment; the reviewer can ask again
                log.error("the audit of finished encounters failed: %s", type(error).__name__)
            self.is_running = self._wake.is_set()
            if self._stop.is_set():
                return

    def audit_some(self) -> int:
        """The number of encounters that were audited now, 0 if none was waiting."""
        query = _finished(notes.c.id).where(bill_audits.c.note_id.is_(None)).order_by(notes.c.id).limit(_CHUNK)
        with read_transaction(self._engine) as connection:
            ids = list(connection.scalars(query))
            tasks = [BillAuditTask.of(load_case(connection, note_id), self._weights) for note_id in ids]
        if tasks:
            self._save(tasks, self._pool.run(audit_in_worker, tasks))
        return len(tasks)

    def _save(self, tasks: Sequence[BillAuditTask], results: Sequence[str | None]) -> None:
        rows = []
        for task, result in zip(tasks, results):
            found = None if result is None else json.loads(result)
            row = {"note_id": task.note_id, "version": task.version, "made": time.time(), "findings": found}
            rows.append(row | {"found": len(found or ())})
        with write_transaction(self._engine) as connection:
            ids = [task.note_id for task in tasks]
            still = select(notes.c.id).where(notes.c.id.in_(ids), notes.c.status == "done").with_for_update()
            present = set(connection.scalars(still))  # one may have been deleted meanwhile
            connection.execute(delete(bill_audits).where(bill_audits.c.note_id.in_(ids)))
            if kept := [row for row in rows if row["note_id"] in present]:
                connection.execute(insert(bill_audits), kept)


def find_finding(connection: Connection, note_id: int, number: int) -> AuditedFinding:
    """A finding of an encounter; NotFound if it has been coded again meanwhile."""
    found = load_findings(connection, note_id)
    if not 0 <= number < len(found):
        raise NotFound("there is no such finding any more")
    return found[number]
