"""Documentation gaps of finished encounters: about final codes, per version of the review, without words, ranked."""

from __future__ import annotations

import json
import time

import pytest
from sqlalchemy import select

from nosology.core import Note
from nosology.serving.coder import Coder
from nosology.workbench.cases import load_case, record_decisions
from nosology.workbench.coding import save_codings
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.department_gaps import GapJob, find_gap, load_gaps
from nosology.workbench.document_import import add_notes
from nosology.workbench.finished_encounters import load_progress
from nosology.workbench.note_coding import CodedNote
from nosology.workbench.retention import delete_note
from nosology.workbench.review import NotFound
from nosology.workbench.services import register_coder
from nosology.workbench.store_tables import found_gaps
from tests.workbench.conftest import browser, csrf

TEXT = "DISCHARGE DIAGNOSES:\n1. Pneumonia\n2. Heart failure, continue furosemide\nSECRETNAME left. Labs: Na 122."
STAY = {"setting": "inpatient", "sex": "F", "age": 78, "date": "2026-02-01"}


class Worker:
    """A pool whose worker is this process."""

    def run(self, task, items):
        return task(items)


@pytest.fixture
def job(engine):
    return GapJob(engine, Worker(), {})


def finish(engine, people, note, *codes, version=0):
    steps = [("add", {"code": f"icd10cm:{code}"}) for code in codes]
    record_decisions(engine, note, [*steps, ("finish", {})], user=people["ann"], version=version)


@pytest.fixture
def finished(engine, people):
    """Three finished encounters: final codes that are open, final codes that answer the questions, and Spanish."""
    rows = [
        Note("n1", TEXT, extra={**STAY, "Service": "Medicine"}),
        Note("n2", TEXT, extra={**STAY, "specialty": "Surgery"}),
        Note("n3", TEXT, lang="es", extra=STAY),
    ]
    with write_transaction(engine) as connection:
        add_notes(connection, rows, None)
    suggestions = tuple(Coder.for_claims("day-one").code(TEXT))
    save_codings(engine, register_coder(engine, "day-one", None), [1, 2, 3], [CodedNote(suggestions, {})] * 3)
    finish(engine, people, 1, "J18.9", "I50.9")
    finish(engine, people, 2, "J18.9", "I50.22", "E87.1")
    finish(engine, people, 3, "I50.9")


def gaps_of(engine):
    with read_transaction(engine) as connection:
        return load_gaps(connection)


def subjects(engine, note):
    return {place.gap.subject for place in gaps_of(engine).places() if place.note_id == note}


def progress(engine):
    with read_transaction(engine) as connection:
        result = load_progress(connection, found_gaps)
    return result.done, result.waiting, result.failed


def test_gaps_are_about_the_final_codes_and_stored_without_words(engine, people, finished, job):
    assert progress(engine) == (0, 3, 0)
    assert job.work_on_some() == 3 and job.work_on_some() == 0
    assert progress(engine) == (2, 0, 1)
    assert {"query-heart-failure-type", "query-sodium-low"} <= subjects(engine, 1)
    assert not {"query-heart-failure-type", "query-sodium-low"} & subjects(engine, 2)  # the coder has found both
    with read_transaction(engine) as connection:
        stored = json.dumps(connection.scalars(select(found_gaps.c.findings)).all())
        text = load_case(connection, 1).note["text"]
        (failure,) = (it for it in load_gaps(connection).places() if it.gap.subject == "query-heart-failure-type")
        assert find_gap(connection, 1, failure.number) == failure
        with pytest.raises(NotFound):
            find_gap(connection, 1, 99)
    assert "SECRETNAME" not in stored and "furosemide" not in stored
    assert [text[span.start : span.end] for span in failure.gap.evidence] == ["Heart failure"]
    assert (failure.ref, failure.specialty, failure.gap.code) == ("n1", "Medicine", "I50.9")


def test_a_later_decision_and_a_deletion_remove_gaps(engine, people, finished, job):
    job.work_on_some()
    with read_transaction(engine) as connection:
        version = load_case(connection, 1).review.version
    changes = [("reopen", {}), ("clear", {"code": "icd10cm:I50.9"}), ("add", {"code": "icd10cm:I50.32"})]
    record_decisions(engine, 1, [*changes, ("finish", {})], user=people["ann"], version=version)
    assert progress(engine) == (1, 1, 1) and subjects(engine, 1) == set()  # the gaps were about other codes
    assert job.work_on_some() == 1
    assert "query-heart-failure-type" not in subjects(engine, 1) and "query-sodium-low" in subjects(engine, 1)
    with write_transaction(engine) as connection:
        delete_note(connection, 1, people["adam"], "x", "by an admin")
        assert sorted(connection.scalars(select(found_gaps.c.note_id))) == [2, 3]
    assert subjects(engine, 1) == set()


def test_the_list_is_ranked_by_specialty_and_leads_to_its_encounters(engine, finished, job):
    job.work_on_some()
    gaps = gaps_of(engine)
    assert gaps.records.encounters == {"Medicine": 1, "Surgery": 1}
    first = gaps.ranked()[0]
    assert first.specialty == "Medicine" and first.drg_can_change == 1
    assert {item.specialty for item in gaps.ranked("Surgery")} <= {"Surgery"}
    entry, places = gaps.of_group("Medicine", "specificity", "query-heart-failure-type")
    assert (entry.encounters, [place.note_id for place in places]) == (1, [1])
    assert entry == next(item for item in gaps.ranked() if item.subject == entry.subject)
    with pytest.raises(NotFound):
        gaps.of_group("Surgery", "specificity", "query-heart-failure-type")


def test_a_reviewer_starts_the_search_and_opens_a_gap(server, ann):
    note = ann.note("open", "Assessment and plan: Heart failure, continue furosemide.", setting="outpatient")
    assert ann.decide(note, "add", 0, code="icd10cm:I50.9").status_code == 200
    assert ann.decide(note, "finish", 1, override="test").status_code == 200
    assert browser(server, "ann").get("/gaps").status_code == 403
    rita = browser(server, "rita")
    token = csrf(rita)
    assert 'href="/gaps"' in rita.get("/measures").text and ">Search 1 encounter<" in rita.get("/gaps").text
    assert rita.post("/gaps", data={"csrf": token}).status_code == 200
    patience = time.monotonic() + 120
    while "/gaps/encounters" not in (page := rita.get("/gaps").text) and time.monotonic() < patience:
        time.sleep(0.2)
    assert "without its type" in page and "furosemide" not in page
    group = "/gaps/encounters?specialty=not+stated&kind=specificity&subject=query-heart-failure-type"
    listed = rita.get(group).text
    assert f'href="/gaps/{note}/' in listed
    address = listed.split(f'href="/gaps/{note}/')[1].split('"')[0]
    shown = rita.get(f"/gaps/{note}/{address}")
    assert "highlighted" in shown.text and f'href="/notes/{note}"' in shown.text and "I50.22" in shown.text
    assert rita.get(group.replace("failure", "nonsense")).status_code == 404
    assert rita.get("/gaps?specialty=nonsense").status_code == 404 and rita.get(f"/gaps/{note}/99").status_code == 404
    logged = browser(server, "adam").get("/audit").text
    assert "documentation gaps" in logged and "<td>gap</td>" in logged
