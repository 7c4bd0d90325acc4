"""The audit of final codes: in the coder's process, for reviewers, per version of the review, without words."""

from __future__ import annotations

import json
import time

import pytest
from sqlalchemy import select

from nosology.core import Note
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.serving.coder import Coder
from nosology.workbench.bill_audit import BillAuditJob, BillAuditTask, load_findings
from nosology.workbench.cases import load_case, record_decisions
from nosology.workbench.coding import save_codings
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.finished_encounters import load_progress, work_in_process
from nosology.workbench.note_coding import CodedNote, code_notes
from nosology.workbench.retention import delete_note
from nosology.workbench.services import register_coder
from nosology.workbench.store_tables import bill_audits
from tests.workbench.conftest import browser, csrf

TEXT = "Assessment and plan: Gout. No evidence of pneumonia. SECRETNAME will return."


class Worker:
    """A pool whose worker is this process."""

    def run(self, task, items):
        return task(items)


@pytest.fixture
def job(engine):
    return BillAuditJob(engine, Worker(), {})


@pytest.fixture
def finished(engine, people):
    """Two finished encounters; the first has a code that the text denies, the second is in Spanish."""
    with write_transaction(engine) as connection:
        rows = [Note("n1", TEXT, extra={"setting": "outpatient"}), Note("n2", TEXT, lang="es")]
        add_notes(connection, rows, None)
    coder = register_coder(engine, "day-one", None)
    save_codings(engine, coder, [1, 2], [CodedNote((), {}), CodedNote((), {})])
    for note in (1, 2):
        codes = [("add", {"code": code}) for code in ("icd10cm:M10.9", "icd10cm:J18.9")]
        record_decisions(engine, note, [*codes, ("finish", {})], user=people["ann"], version=0)
    return 1


def found(engine):
    with read_transaction(engine) as connection:
        return [(item.note_id, item.values["kind"], item.values["code"]) for item in load_findings(connection)]


def progress(engine):
    with read_transaction(engine) as connection:
        result = load_progress(connection, bill_audits)
    return result.done, result.waiting, result.failed


def test_findings_are_stored_per_version_and_without_words(engine, people, finished, job):
    assert progress(engine) == (0, 2, 0)
    assert job.work_on_some() == 2 and job.work_on_some() == 0
    assert progress(engine) == (1, 0, 1)
    assert (finished, "unsupported", "J18.9") in found(engine)
    with read_transaction(engine) as connection:
        stored = json.dumps(connection.scalars(select(bill_audits.c.findings)).all())
        (item,) = [it for it in load_findings(connection) if it.values["code"] == "J18.9"]
        coded = load_case(connection, finished)
    assert "SECRETNAME" not in stored and [TEXT[a:b] for a, b in item.spans] == ["pneumonia"] and item.ref == "n1"
    version = coded.review.version
    changes = [("reopen", {}), ("clear", {"code": "icd10cm:J18.9"}), ("finish", {})]
    record_decisions(engine, finished, changes, user=people["ann"], version=version)
    assert found(engine) == [] and progress(engine) == (0, 1, 1)  # the findings were about other codes
    assert job.work_on_some() == 1
    assert (finished, "unsupported", "J18.9") not in found(engine)


def test_a_deleted_note_leaves_no_findings(engine, people, finished, job):
    job.work_on_some()
    with write_transaction(engine) as connection:
        delete_note(connection, finished, people["adam"], "x", "by an admin")
        assert connection.scalars(select(bill_audits.c.note_id)).all() == [2]
    assert found(engine) == []


def test_codes_of_other_systems_cannot_be_audited(engine, finished):
    with read_transaction(engine) as connection:
        coded = load_case(connection, finished)
    right = BillAuditTask.of(coded, {})
    wrong = BillAuditTask(1, 1, "es", right.made_of, right.billed, {})
    results = work_in_process([right, wrong])
    assert results[1] is None and json.loads(results[0])


def test_the_verifier_of_the_coder_names_a_code_of_the_category(engine, people):
    text = "HPI: He presented with constipation for 9 days.\nAssessment: pneumonia, start ceftriaxone."
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("n1", text, extra={"setting": "outpatient"})], None)
    results = code_notes(Coder.for_claims("day-one"), [Note("", text)])
    save_codings(engine, register_coder(engine, "day-one", None), [1], results)
    codes = [("add", {"code": code}) for code in ("icd10cm:J18.9", "icd10cm:K59.09")]
    record_decisions(engine, 1, [*codes, ("finish", {})], user=people["ann"], version=0)
    with read_transaction(engine) as connection:
        coded = load_case(connection, 1)
    found = []
    for chooser in (None, SiblingChooser.load("day-one")):
        _, findings = BillAuditJob(engine, Worker(), {}, chooser).task(coded).result()
        found.append([(item["kind"], item["code"], item["instead"]) for item in findings])
    assert found == [[("unsupported", "K59.09", "")], [("more_specific", "K59.09", "K59.00")]]


def test_a_reviewer_starts_the_audit_and_sees_the_words(server, ann):
    text = "Assessment and plan: Type 2 diabetes. No evidence of pneumonia."
    note = ann.note("audited", text, setting="outpatient")
    assert ann.decide(note, "add", 0, code="icd10cm:J18.9").status_code == 200
    assert ann.decide(note, "finish", 1, override="test").status_code == 200
    assert browser(server, "ann").get("/findings").status_code == 403
    rita = browser(server, "rita")
    token = csrf(rita)
    assert "Audit 1 encounter<" in rita.get("/findings").text
    assert rita.post("/findings", data={"csrf": token}).status_code == 200
    patience = time.monotonic() + 120
    while "/findings/" not in (page := rita.get("/findings").text) and time.monotonic() < patience:
        time.sleep(0.2)
    assert f'href="/findings/{note}/' in page and "billed without support" in page and "the note denies it" in page
    only = rita.get("/findings?kind=unsupported").text
    assert "J18.9" in only and rita.get("/findings?kind=nonsense").status_code == 404
    address = only.split('href="/findings/')[-1].split('"')[0]
    shown = rita.get(f"/findings/{address}")
    assert shown.status_code == 200 and "highlighted" in shown.text and f'href="/notes/{note}"' in shown.text
    assert rita.get(f"/findings/{note}/99").status_code == 404
    assert "<script>" not in shown.text and "content-security-policy" in shown.headers
    logged = browser(server, "adam").get("/audit").text
    assert "audit of final codes" in logged and "<td>finding</td>" in logged
