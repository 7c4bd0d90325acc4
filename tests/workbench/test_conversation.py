"""Queries, comments and sending back: from question to answer, turnaround, deletion, and what physicians see."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from nosology.core import ConflictError, Note, ReviewError
from nosology.workbench import conversation
from nosology.workbench.accounts import create_token, create_user
from nosology.workbench.audit_log import read_log
from nosology.workbench.cases import load_case, record_decision
from nosology.workbench.conversation import UNABLE, list_queries, load_conversation
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.retention import delete_note
from nosology.workbench.store_copy import backup_store, restore_store
from nosology.workbench.store_tables import comments, queries, query_events, users
from nosology.workbench.turnaround import measure_conversation
from tests.workbench.conftest import PASSWORD, ApiClient, browser, csrf

SECRET = "Xyzzy the patient said"
TABLES = (comments, queries, query_events)


def engine_of(server):
    return server[0].app.state.services.engine


def add_physician(server, name: str) -> int:
    """The id of a physician, who is added once."""
    with write_transaction(engine_of(server)) as connection:
        known = connection.scalar(select(users.c.id).where(users.c.name == name))
        return known or create_user(connection, name, "physician", PASSWORD)


@pytest.fixture
def phil(server):
    add_physician(server, "phil")
    return browser(server, "phil")


def token_of(client) -> dict[str, str]:
    return {"x-csrf-token": re.search(r'name="csrf" content="([^"]+)"', client.get("/queries").text)[1]}


def ask(api, note: int, **values):
    body = {"question": f"{SECRET}: which type of heart failure?", "options": ["systolic", "diastolic"], **values}
    response = api.post(f"/notes/{note}/queries", body)
    assert response.status_code == 201, response.text
    return response.json()


def state_of(api, note: int) -> dict:
    row = api.get(f"/notes/{note}").json()
    return {name: row[name] for name in ("status", "version", "assignee")}


def test_an_answer_brings_the_note_back_to_work(server, ann, phil):
    note = ann.note("asked and answered")
    query = ask(ann, note, start=10, end=20, code="icd10cm:I50.9", hold=True, physician=add_physician(server, "phil"))
    assert query["choices"] == ["systolic", "diastolic", "other", UNABLE] and query["addressee"] == "phil"
    held = state_of(ann, note)
    assert held["status"] == "held" and held["assignee"] is not None
    row = next(row for row in ann.get("/notes", params={"status": "held"}).json()["notes"] if row["id"] == note)
    assert (row["open_queries"], row["answered_queries"]) == (1, 0)
    coder = browser(server, "ann")
    assert "query open" in coder.get("/?status=all&talk=query_open").text
    assert "asked and answered" not in coder.get("/?status=all&talk=query_answered").text

    page = phil.get(f"/queries/{query['id']}").text
    assert "which type of heart failure?" in page and "congestive heart failure" in page and "I50.9" not in page
    data = {"choice": "systolic", "text": "EF 25 percent"}
    response = phil.post(f"/queries/{query['id']}/answer", data=data, headers=token_of(phil), follow_redirects=False)
    assert response.status_code == 303
    assert state_of(ann, note) == {**held, "status": "open", "version": held["version"] + 1}
    [answered] = ann.get("/queries", params={"note": note}).json()
    assert (answered["state"], answered["answer"], answered["physician"]) == ("answered", "systolic", "phil")
    assert "asked and answered" in coder.get("/?talk=query_answered").text
    panel = coder.get(f"/notes/{note}").text
    assert "EF 25 percent" in panel
    history = [(row["action"], row["user"]) for row in ann.get(f"/notes/{note}/decisions").json()]
    assert history == [("assign", "ann"), ("hold", "ann"), ("resume", "phil")]


def test_a_coder_records_the_answer_of_a_named_physician(server, ann):
    note = ann.note("by phone")
    first, second = ask(ann, note, hold=True), ask(ann, note)
    path = f"/queries/{first['id']}/answer"
    assert ann.post(path, {"physician": " ", "choice": "systolic"}).status_code == 422
    assert ann.post(path, {"physician": "Dr. Weiss", "choice": "no such answer"}).status_code == 422
    assert "words of the answer" in ann.post(path, {"physician": "Dr. Weiss", "choice": "other"}).json()["detail"]
    answered = ann.post(path, {"physician": "Dr. Weiss", "choice": "other", "text": "combined"}).json()
    assert (answered["physician"], answered["closed_by"], answered["text"]) == ("Dr. Weiss", "ann", "combined")
    assert ann.post(path, {"physician": "Dr. Weiss", "choice": "systolic"}).status_code == 409
    assert state_of(ann, note)["status"] == "held"  # another query is still open
    assert ann.post(f"/queries/{second['id']}/withdraw").json()["state"] == "withdrawn"
    assert state_of(ann, note)["status"] == "open"
    assert "answered already by Dr. Weiss" in ann.post(f"/queries/{first['id']}/withdraw").json()["detail"]


def test_a_note_that_was_held_by_hand_stays_on_hold(ann):
    note = ann.note("held by hand")
    query = ask(ann, note)
    ann.decide(note, "hold", 0)
    ann.post(f"/queries/{query['id']}/answer", {"physician": "Dr. Weiss", "choice": UNABLE})
    assert state_of(ann, note)["status"] == "held"


def test_a_note_with_an_open_query_is_finished_with_a_reason_and_its_late_answer_is_shown(server, ann):
    note, coder = ann.note("finished before the answer"), browser(server, "ann")
    ann.decide(note, "add", 0, code="icd10cm:I10")
    query = ask(ann, note)
    assert "a query to a physician is open" in ann.decide(note, "finish", 1).json()["detail"]
    assert ann.decide(note, "finish", 1, override="the physician is away").status_code == 200
    done = "/?status=done&talk=query_answered"
    assert "finished before the answer" not in coder.get(done).text
    ann.post(f"/queries/{query['id']}/answer", {"physician": "Dr. Weiss", "choice": "systolic"})
    assert "finished before the answer" in coder.get(done).text and state_of(ann, note)["status"] == "done"
    ann.decide(note, "reopen", 2)
    ann.decide(note, "finish", 3)
    assert "finished before the answer" not in coder.get(done).text


def test_queries_are_checked(server, ann):
    note = ann.note("invalid queries")
    path = f"/notes/{note}/queries"
    for wrong in (
        {"question": "  "},
        {"question": "q" * 4001},
        {"start": 3},
        {"start": 9, "end": 3},
        {"start": 0, "end": 10**6},
        {"code": "nothing"},
        {"physician": 999_999},
        {"options": ["x"] * 9},
        {"options": ["x" * 201]},
    ):
        response = ann.post(path, {"question": SECRET, **wrong})
        assert response.status_code == 422 and SECRET not in response.text, wrong
    repeated = ask(ann, note, options=["Systolic", " systolic ", "OTHER", "Unable to determine", ""])
    assert repeated["choices"] == ["Systolic", "other", UNABLE]
    assert [row["id"] for row in ann.get("/queries", params={"note": note}).json()] == [repeated["id"]]


def test_what_is_sent_again_with_its_key_is_stored_once(ann):
    note = ann.note("sent twice")
    first, again = (ask(ann, note, hold=True, key="k1") for _ in range(2))
    assert first == again and state_of(ann, note)["version"] == 2
    written = [ann.post(f"/notes/{note}/comments", {"text": "hello", "key": "k1"}).json() for _ in range(2)]
    assert written[0] == written[1]


def test_comments_do_not_raise_the_version(server, ann):
    note, ben = ann.note("commented"), ApiClient(server[0], server[1]["ben"])
    ann.decide(note, "add", 0, code="icd10cm:I10")
    assert ben.post(f"/notes/{note}/comments", {"text": SECRET, "code": "icd10cm:I10"}).status_code == 201
    assert ben.post(f"/notes/{note}/comments", {"text": "\n"}).status_code == 422
    assert ann.decide(note, "add", 1, code="icd10cm:E11.9").status_code == 200  # no conflict
    [comment] = ann.get(f"/notes/{note}/comments").json()
    assert (comment["author"], comment["text"], comment["code"]) == ("ben", SECRET, "icd10cm:I10")
    coder = browser(server, "ann")
    assert "1 comment<" in coder.get("/?status=all&order=newest").text and SECRET in coder.get(f"/notes/{note}").text


def test_others_notes_are_asked_about_by_reviewers_only(server, ann):
    note = ann.note("of ann")
    ann.decide(note, "add", 0, code="icd10cm:I10")
    ben, rita = (ApiClient(server[0], server[1][name]) for name in ("ben", "rita"))
    query = ask(ann, note)
    body = {"physician": "Dr. Weiss", "choice": "systolic"}
    for path, value in ((f"/notes/{note}/queries", {"question": "?"}), (f"/queries/{query['id']}/answer", body)):
        assert ben.post(path, value).status_code == 403
    assert ben.post(f"/queries/{query['id']}/withdraw").status_code == 403
    assert rita.post(f"/queries/{query['id']}/withdraw").status_code == 200


def test_a_query_is_closed_on_the_page_of_its_own_note_only(server, ann):
    one, other = ann.note("query here"), ann.note("query not here")
    query, coder = ask(ann, one), browser(server, "ann")
    headers = {"x-csrf-token": csrf(coder), "hx-request": "true"}
    assert coder.post(f"/notes/{other}/queries/{query['id']}/withdraw", headers=headers).status_code == 404
    assert "withdrawn by ann" in coder.post(f"/notes/{one}/queries/{query['id']}/withdraw", headers=headers).text


def test_a_note_is_sent_back_with_a_reason_and_its_second_review_stays_due(server, ann):
    rita = ApiClient(server[0], server[1]["rita"])
    note = ann.note("sent back")
    ann.decide(note, "add", 0, code="icd10cm:I10")
    ann.decide(note, "second", 1)
    assert ann.decide(note, "return", 2, explanation="mine").status_code == 403
    assert rita.decide(note, "return", 2, explanation=" ").status_code == 422
    assert rita.decide(note, "return", 2).status_code == 422
    assert rita.decide(note, "return", 2, explanation=f"{SECRET}: see the echo").json()["status"] == "open"
    with read_transaction(engine_of(server)) as connection:
        review = load_case(connection, note).review
        coder_id = connection.scalar(select(users.c.id).where(users.c.name == "ann"))
    assert (review.assignee, review.second_of, review.status) == (coder_id, coder_id, "open")
    coder = browser(server, "ann")
    page = coder.get(f"/notes/{note}").text
    assert "Sent back by rita." in page and "see the echo" in page
    assert "sent back</span>" in coder.get("/?talk=sent_back").text
    assert rita.decide(note, "return", 3, explanation="again").status_code == 422  # it is no second review now
    ann.decide(note, "add", 3, code="icd10cm:E11.9")
    assert ann.decide(note, "finish", 4).json()["status"] == "second"
    assert "Sent back by" not in coder.get(f"/notes/{note}").text and "sent back</span>" not in coder.get("/").text
    assert ann.decide(note, "approve", 5).status_code == 403
    assert rita.decide(note, "approve", 5).json()["status"] == "done"
    page, history = coder.get(f"/notes/{note}").text, coder.get(f"/notes/{note}/history").text
    for text in (page, history):
        assert "What second review changed" in text and "code added" in text
    assert "sent back 1 time." in history and "see the echo" in history


def test_who_asked_for_a_second_review_does_not_send_it_back(engine, note_id, people):
    record_decision(engine, note_id, "add", {"code": "icd10cm:I10"}, user=people["ann"], version=0)
    record_decision(engine, note_id, "finish", {}, user=people["ann"], version=1)
    record_decision(engine, note_id, "second", {}, user=people["rita"], version=2)
    details = {"explanation": "wrong"}
    with pytest.raises(ReviewError, match="another person's task"):
        record_decision(engine, note_id, "return", details, user=people["rita"], version=3)
    after = record_decision(engine, note_id, "return", details, user=people["adam"], version=3).review
    assert after.assignee == people["ann"]  # who finished it, not who asked for the review


def test_texts_are_in_no_entry_of_the_audit_log(server, ann, phil):
    note = ann.note("audited")
    query = ask(ann, note, hold=True)
    ann.post(f"/notes/{note}/comments", {"text": SECRET})
    phil.get(f"/queries/{query['id']}")
    data = {"choice": "other", "text": SECRET}
    phil.post(f"/queries/{query['id']}/answer", data=data, headers=token_of(phil))
    second = ask(ann, note)
    ann.post(f"/queries/{second['id']}/withdraw")
    with read_transaction(engine_of(server)) as connection:
        rows = read_log(connection, note_id=note)
    found = {(row["what"], row["user"]) for row in rows}
    assert found >= {("ask query", "ann"), ("comment", "ann"), ("query", "phil"), ("answer query", "phil")}
    assert ("withdraw query", "ann") in found
    assert not any("Xyzzy" in str(dict(row)) for row in rows)


def test_a_physician_sees_only_queries_to_them_or_to_any(server, ann, phil):
    note, petra = ann.note("addressed"), add_physician(server, "petra")
    others, anybody = ask(ann, note, physician=petra), ask(ann, note)
    listed = phil.get("/queries").text
    assert f'/queries/{anybody["id"]}"' in listed and f'/queries/{others["id"]}"' not in listed
    assert phil.get(f"/queries/{others['id']}").status_code == 404
    answer = {"choice": "systolic"}
    assert phil.post(f"/queries/{others['id']}/answer", data=answer, headers=token_of(phil)).status_code == 404
    other = browser(server, "petra")
    other.post(f"/queries/{anybody['id']}/answer", data=answer, headers=token_of(other))
    assert phil.get(f"/queries/{anybody['id']}").status_code == 404  # answered by somebody else
    assert other.get(f"/queries/{anybody['id']}").status_code == 200
    response = phil.post(
        f"/queries/{anybody['id']}/answer", data=answer, headers={**token_of(phil), "hx-request": "true"}
    )
    assert response.status_code == 409 and "answered already by petra" in response.text


def test_a_form_of_a_physician_keeps_what_was_typed(ann, phil):
    query = ask(ann, ann.note("typed"), options=[])
    data = {"choice": "no such", "text": "my own words"}
    response = phil.post(f"/queries/{query['id']}/answer", data=data, headers=token_of(phil))
    assert response.status_code == 422 and "my own words</textarea>" in response.text


PHYSICIAN_ROUTES = {"/queries", "/queries/{query_id}", "/queries/{query_id}/answer", "/password", "/sessions"}
PHYSICIAN_ROUTES |= {"/sessions/end", "/lock", "/logout"}
PUBLIC_ROUTES = {"/login", "/oidc/start", "/oidc/back", "/health/live", "/health/ready", "/metrics"}


def all_routes(app):
    """(method, path, path with values) of every route, also of routers within routers."""
    values = {"note_id": 1, "query_id": 1, "batch": 1, "act": "cancel", "system": "icd10cm", "code": "I10"}
    values |= {"form": "json", "user_id": 1, "token": 1}

    def routes(items):
        for route in items:
            inner = getattr(route, "original_router", None)
            yield from routes(inner.routes) if inner is not None else [route]

    for route in routes(app.routes):
        if isinstance(route, APIRoute):
            path = re.sub(r"{(\w+)}", lambda name: str(values.get(name[1], 1)), route.path)
            yield from ((method, route.path, path) for method in route.methods)


def test_a_physician_is_refused_by_every_other_route(server, ann, phil):
    ann.note("seen by no physician")
    headers, tried = token_of(phil), set()
    for method, route, path in all_routes(server[0].app):
        if route in PHYSICIAN_ROUTES | PUBLIC_ROUTES:
            continue
        tried.add(route)
        response = phil.request(method, path, headers=headers, follow_redirects=False)
        if route in ("/", "/next"):
            assert (response.status_code, response.headers["location"]) == (303, "/queries")
        else:
            assert response.status_code == 403, (method, route, response.status_code)
    assert {"/", "/notes/{note_id}", "/tokens", "/users", "/measures", "/api/v1/notes", "/api/v1/queries"} <= tried
    assert len(tried) > 40
    page = phil.get("/queries").text
    assert all(f'href="{path}"' not in page for path in ("/batches", "/measures", "/tokens", "/users"))


def test_a_physician_has_no_api_and_no_notes(server, ann, phil):
    number = add_physician(server, "phil")
    with write_transaction(engine_of(server)) as connection:
        token = create_token(connection, number, "of a former coder")
    api = ApiClient(server[0], token)
    for path in ("/notes", "/queries", "/measures"):
        assert api.get(path).status_code == 403
    note = ann.note("not for physicians")
    assert ann.decide(note, "assign", 0, user=number).status_code == 422
    assert "phil</option>" not in browser(server, "ann").get(f"/notes/{note}").text.partition("</select>")[0]


def test_coders_do_not_answer_as_physicians(server, ann):
    query, coder = ask(ann, ann.note("not yours")), browser(server, "ann")
    assert coder.get("/queries").status_code == 403 and coder.get(f"/queries/{query['id']}").status_code == 403


def test_one_of_many_answers_at_once_is_stored(server, ann):
    note, phil = ann.note("many answers"), add_physician(server, "phil")
    query, statuses = ask(ann, note, hold=True, physician=phil), []
    body = {"physician": "Dr. Weiss", "choice": "systolic"}

    def push():
        statuses.append(ann.post(f"/queries/{query['id']}/answer", body).status_code)

    threads = [threading.Thread(target=push) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + [409] * 5
    assert state_of(ann, note) == {**state_of(ann, note), "status": "open", "version": 3}


def test_the_export_has_the_conversation(server, ann):
    note = ann.note("exported conversation")
    query = ask(ann, note, start=0, end=5)
    ann.post(f"/queries/{query['id']}/answer", {"physician": "Dr. Weiss", "choice": "systolic"})
    ann.post(f"/notes/{note}/comments", {"text": "hello"})
    value = ann.get(f"/notes/{note}/export", params={"format": "json"}).json()
    [asked], [comment] = value["queries"], value["comments"]
    assert (asked["answer"], asked["physician"], asked["passage"]) == ("systolic", "Dr. Weiss", {"start": 0, "end": 5})
    assert (comment["user"], comment["text"]) == ("ann", "hello")


@pytest.fixture
def talked(engine, note_id, people):
    """A note with a comment, an answered and an open query."""
    with write_transaction(engine) as connection:
        conversation.insert_comment(connection, note_id, people["ann"], SECRET)
        for question in (SECRET, "and now?"):
            conversation.insert_query(connection, note_id, people["ann"], {"question": question}, length=100)
        query = conversation.load_query(connection, 1)
        conversation.insert_answer(connection, query, people["rita"], "Dr. Weiss", "other", SECRET)
    return engine


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_tables_are_append_only(talked, table):
    for statement in (update(table).values(at=1.0), delete(table)):
        with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(talked) as connection:
            connection.execute(statement)


def test_a_query_is_closed_once(talked, people):
    with read_transaction(talked) as connection:
        query = conversation.load_query(connection, 1)
    with pytest.raises(ConflictError, match="answered already"), write_transaction(talked) as connection:
        conversation.insert_withdrawal(connection, query, people["ann"])
    row = {"query_id": 1, "note_id": 1, "user_id": people["ann"], "at": 0.0, "kind": "withdrawn"}
    with pytest.raises(SQLAlchemyError), write_transaction(talked) as connection:
        connection.execute(insert(query_events).values(**row))


def test_deleting_a_note_deletes_its_conversation(talked, note_id):
    with write_transaction(talked) as connection:
        delete_note(connection, note_id, None, "test", "test")
        assert [connection.scalar(select(func.count()).select_from(table)) for table in TABLES] == [0, 0, 0]
        assert list_queries(connection) == []


def test_a_backup_has_the_conversation(talked, store, note_id, tmp_path):
    backup_store(store, tmp_path / "copy.db")
    restore_store(tmp_path / "copy.db", str(tmp_path / "restored.db"))
    restored = open_database(str(tmp_path / "restored.db"), existing=True)
    with read_transaction(restored) as connection, read_transaction(talked) as before:
        assert load_conversation(connection, note_id) == load_conversation(before, note_id)
        assert len(load_conversation(connection, note_id).queries) == 2
    restored.dispose()


def test_a_migrated_store_has_append_only_comments(tmp_path):
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript((Path(__file__).parent / "database_0_1.sql").read_text())
    engine = open_database(str(path))
    with write_transaction(engine) as connection:
        user = create_user(connection, "phil", "physician", PASSWORD)
        add_notes(connection, [Note("a", "text")], None)
        conversation.insert_comment(connection, 1, user, "hello")
    with pytest.raises(SQLAlchemyError, match="append-only"), write_transaction(engine) as connection:
        connection.execute(delete(comments))
    engine.dispose()


def add_query(connection, note, user, asked, hours, answer, physician, options=("a", "b")):
    row = {"note_id": note, "user_id": user, "at": asked, "question": "?", "options": list(options)}
    number = connection.execute(insert(queries).values(**row)).inserted_primary_key[0]
    if hours is not None:
        row = {"query_id": number, "note_id": note, "user_id": user, "at": asked + 3600 * hours, "kind": "answered"}
        connection.execute(insert(query_events).values(**row, physician=physician, answer=answer))


def test_turnaround_by_physician_and_month(engine, note_id, people):
    june, july, user = 1_749_900_000.0, 1_752_500_000.0, people["ann"]  # 2025-06-14, 2025-07-14
    with write_transaction(engine) as connection:
        for hours in range(1, 10):
            add_query(connection, note_id, user, june, hours, "a", "Dr. Weiss")
        add_query(connection, note_id, user, june, 100, "other", "Dr. Weiss")
        add_query(connection, note_id, user, july, 2, UNABLE, "Dr. Roth")
        add_query(connection, note_id, user, july, 4, "other", "Dr. Roth", options=())
        add_query(connection, note_id, user, july, None, None, None)
        found = measure_conversation(connection)
    assert [row.name for row in found.by_physician] == ["Dr. Roth", "Dr. Weiss", "any physician"]
    roth, weiss, anybody = found.by_physician
    assert (weiss.answered, weiss.median, weiss.ninetieth, weiss.agreement) == (10, 5.5, 9, 0.9)
    assert (roth.answered, roth.median, roth.ninetieth, roth.agreement) == (2, 3, 4, 0)
    assert roth.answers == {"offered": 0, "free": 1, "other": 0, UNABLE: 1}
    assert (anybody.open, anybody.answered, anybody.median, anybody.agreement) == (1, 0, None, None)
    assert [(row.name, row.answered, row.open) for row in found.by_month] == [("2025-07", 2, 1), ("2025-06", 10, 0)]
    assert (found.total.answered, found.changed, found.returned) == (12, None, None)


def test_the_share_of_second_reviews_with_changes(server, ann):
    rita = ApiClient(server[0], server[1]["rita"])
    with read_transaction(engine_of(server)) as connection:
        before = len(measure_conversation(connection).reviews)
    for name, codes in (("kept", []), ("one more", ["icd10cm:E11.9"])):
        note, version = ann.note(f"second review: {name}"), 2
        ann.decide(note, "add", 0, code="icd10cm:I10")
        ann.decide(note, "second", 1)
        for code in codes:
            rita.decide(note, "add", version, code=code)
            version += 1
        assert rita.decide(note, "approve", version).status_code == 200
    with read_transaction(engine_of(server)) as connection:
        found = measure_conversation(connection)
    changed = [bool(review.changes) for review in found.reviews]
    assert len(changed) == before + 2 and found.changed == sum(changed) / len(changed) and not all(changed)
    words = {row[0]: row[1:] for row in found.kinds}
    assert words["code added"][0] >= 1
    page = browser(server, "ann").get("/measures").text
    assert "Queries to physicians" in page and "Second review</h2>" in page
