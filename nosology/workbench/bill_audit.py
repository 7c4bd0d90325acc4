"""The audit of finished encounters: their final codes against their documents, without words of the note."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine

from nosology.audit.correction import Weights
from nosology.audit.encounter_audit import audit_encounter
from nosology.audit.finding import BilledCode
from nosology.claims.encounter import Encounter
from nosology.core import Span
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.workbench.cases import Case
from nosology.workbench.coding import CoderPool
from nosology.workbench.finished_encounters import FinishedJob, check_claimable, select_finished
from nosology.workbench.proposals import claim_input
from nosology.workbench.report_evidence import without_reports
from nosology.workbench.review import NotFound
from nosology.workbench.store_tables import bill_audits, notes, users
from nosology.workbench.stored_claims import ClaimInput, for_claim

MAX_ENCOUNTERS = 1000  # with findings, that the page shows


@dataclass(frozen=True)
class BillAuditTask:
    """A finished encounter for a worker process. chooser: of the coder."""

    note_id: int
    version: int
    lang: str
    made_of: ClaimInput
    billed: tuple[BilledCode, ...]
    weights: Weights
    chooser: SiblingChooser | None = None

    @classmethod
    def of(cls, coded: Case, weights: Weights, chooser: SiblingChooser | None = None) -> BillAuditTask:
        """The task of a case."""
        made_of = claim_input(coded.note["text"], coded.note["encounter"], coded.current, coded.suggestions)
        billed = tuple(BilledCode(item.code, item.poa) for item in coded.review.chosen)
        lang = coded.note["lang"] or "en"
        return cls(coded.note["id"], coded.review.version, lang, made_of, billed, weights, chooser)

    def result(self) -> tuple[int, list[dict[str, Any]]]:
        """The findings without words of the note; ConfigError for other languages, systems and dates than claims."""
        check_claimable(self.lang, (item.code for item in self.billed))
        given, stated = self.made_of, dict(self.made_of.fields)
        usable = for_claim(given.suggestions)
        if given.reports and Encounter.of(given.text, stated).is_inpatient:
            usable, _ = without_reports(usable, given.reports)
        result = audit_encounter(
            "", given.text, self.billed, usable, stated, weights=self.weights, chooser=self.chooser
        )
        found = result.to_json()["findings"]
        for item in found:
            item["evidence"] = [[span["start"], span["end"]] for span in item["evidence"]]
        return len(found), found


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


def load_findings(connection: Connection, note_id: int | None = None) -> list[AuditedFinding]:
    """The findings of the newest finished encounters, or of one of them."""
    query = select_finished(bill_audits, notes.c.id, notes.c.ref, users.c.name, bill_audits.c.findings)
    query = query.join(users, users.c.id == notes.c.assignee_id, isouter=True)
    query = query.where(bill_audits.c.found > 0).order_by(notes.c.finished.desc(), notes.c.id).limit(MAX_ENCOUNTERS)
    if note_id is not None:
        query = query.where(notes.c.id == note_id)
    return [
        AuditedFinding(row.id, row.ref, row.name or "", number, item)
        for row in connection.execute(query)
        for number, item in enumerate(row.findings)
    ]


class BillAuditJob(FinishedJob):
    """Audits finished encounters when a reviewer asks for it."""

    results = bill_audits

    def __init__(self, engine: Engine, pool: CoderPool, weights: Weights, chooser: SiblingChooser | None = None):
        super().__init__(engine, pool)
        self._weights, self._chooser = weights, chooser

    def task(self, coded: Case) -> BillAuditTask:
        """The task of a case."""
        return BillAuditTask.of(coded, self._weights, self._chooser)


def find_finding(connection: Connection, note_id: int, number: int) -> AuditedFinding:
    """A finding of an encounter; NotFound if it has been coded again meanwhile."""
    found = load_findings(connection, note_id)
    if not 0 <= number < len(found):
        raise NotFound("there is no such finding any more")
    return found[number]
