"""Exports of many notes: formats, filters, audit entries, memory, and a client that stops."""

from __future__ import annotations

import csv
import gc
import io
import json
import tracemalloc

import pytest
from fhir.resources.R4B.bundle import Bundle
from sqlalchemy import select, update

from nosology.core import Note
from nosology.workbench.accounts import User, create_user
from nosology.workbench.bulk_export import _CHUNK, NEXT_SINCE, _stream
from nosology.workbench.cases import record_decision, record_decisions
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.store_tables import audit, notes
from nosology.workbench.work_queue import QueueFilter
from tests.workbench.conftest import NOTE, ApiClient, browser

DONE = QueueFilter(statuses=("done",))
CODES = [("add", {"code": code}) for code in ("icd10cm:I50.9", "icd10cm:E11.9")]


def fill(engine, user: int, number: int, *, done: int) -> None:
    """Adds notes; the first ones get two codes and are finished."""
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", NOTE, patient="p", site="east") for i in range(1, number + 1)], None)
    for note in range(1, done + 1):
        record_decisions(engine, note, [*CODES, ("finish", {})], user=user, version=0)


def logged(engine) -> list[tuple]:
    query = select(audit.c.what, audit.c.note_id, audit.c.object).where(audit.c.what.like("bulk%"))
    with read_transaction(engine) as connection:
        return [tuple(row) for row in connection.execute(query.order_by(audit.c.id))]


def rita(people) -> User:
    return User(people["rita"], "rita", "reviewer", False, None)


@pytest.mark.parametrize("form", ["fhir", "csv", "json"])
def test_each_format_has_every_finished_note_once_and_each_is_logged(engine, people, form):
    fill(engine, people["ann"], _CHUNK + 7, done=_CHUNK + 5)
    body = "".join(_stream(engine, rita(people), DONE, form, "here"))
    names = [f"n{i}" for i in range(1, _CHUNK + 6)]
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(body)))
        assert [(row["note"], row["code"]) for row in rows] == [(n, c) for n in names for c in ("I50.9", "E11.9")]
    else:
        values = [json.loads(line) for line in body.splitlines()]
        found = [value["note"] if form == "json" else value["identifier"]["value"] for value in values]
        assert found == names
        if form == "fhir":
            assert Bundle.model_validate(values[0]).entry[-2].resource.status == "active"
    assert "Chief complaint" not in body
    what = f"bulk export {form}"
    each = [(what, note, "") for note in range(1, _CHUNK + 6)]
    assert logged(engine) == [*each, (what, None, f"{_CHUNK + 5} notes")]


def test_a_client_that_stops_leaves_true_entries(engine, people):
    fill(engine, people["ann"], 2 * _CHUNK, done=2 * _CHUNK)
    stream = _stream(engine, rita(people), DONE, "json", "here")
    next(stream)
    stream.close()
    assert [entry[1] for entry in logged(engine)] == [*range(1, _CHUNK + 1), None]
    assert logged(engine)[-1][2] == f"{_CHUNK} notes"


def test_notes_that_change_during_an_export_come_as_they_are_then(engine, people):
    fill(engine, people["ann"], 2 * _CHUNK + 1, done=2 * _CHUNK)
    stream = _stream(engine, rita(people), DONE, "json", "here")
    first = next(stream)
    last = 2 * _CHUNK
    record_decision(engine, last, "reopen", {}, user=people["ann"], version=3)
    record_decisions(engine, last + 1, [*CODES, ("finish", {})], user=people["ann"], version=0)
    names = [json.loads(line)["note"] for line in (first + "".join(stream)).splitlines()]
    assert names == [f"n{i}" for i in range(1, last)] + [f"n{last + 1}"]


def test_the_memory_does_not_grow_with_the_number_of_notes(tmp_path):
    engine = open_database(str(tmp_path / "w.db"))
    with write_transaction(engine) as connection:
        user = create_user(connection, "rita", "reviewer", None)
        for site, number in (("small", 2 * _CHUNK), ("large", 8 * _CHUNK)):
            incoming = [Note(f"{site}-{i}", NOTE, site=site, extra={"kind": "x" * 5_000}) for i in range(number)]
            add_notes(connection, incoming, None)
        connection.execute(update(notes).values(status="done"))

    def peak(site: str) -> tuple[int, int]:
        """(bytes of memory, bytes sent). Garbage of reference cycles does not count: Python may keep it for a while."""
        wanted, size = QueueFilter(statuses=("done",), site=site), 0
        tracemalloc.start()
        for part in _stream(engine, User(user, "rita", "reviewer", False, None), wanted, "json", "here"):
            size += len(part)
            gc.collect()
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used, size

    peak("small")  # what is loaded once
    (small, sent), (large, more) = peak("small"), peak("large")
    assert large - small < (more - sent) / 10
    engine.dispose()


def test_export_by_api_and_page_is_for_reviewers(server):
    client, tokens = server
    person, coder = ApiClient(client, tokens["rita"]), ApiClient(client, tokens["ann"])
    note = person.note("bulk-1", site="bulk")
    assert person.decide(note, "add", 0, code="icd10cm:I50.9").status_code == 200
    first = person.get("/export", params={"site": "bulk"})
    assert first.status_code == 200 and first.text == "" and "ndjson" in first.headers["content-type"]
    assert person.decide(note, "finish", 1).status_code == 200
    since = float(first.headers[NEXT_SINCE])
    response = person.get("/export", params={"site": "bulk", "since": since, "format": "csv"})
    assert [row["code"] for row in csv.DictReader(io.StringIO(response.text))] == ["I50.9"]
    later = float(response.headers[NEXT_SINCE])
    assert person.get("/export", params={"site": "bulk", "since": later}).text == ""
    assert coder.get("/export").status_code == 403
    page = browser(server, "rita")
    assert 'href="/export/csv?site=bulk"' in page.get("/?site=bulk").text
    file = page.get("/export/csv?site=bulk")
    assert file.text == response.text and "attachment" in file.headers["content-disposition"]
    assert page.get("/export/exe").status_code == 404
    other = browser(server, "ann")
    assert "/export/" not in other.get("/").text and other.get("/export/csv").status_code == 403
