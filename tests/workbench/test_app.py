"""The whole application on SQLite and PostgreSQL: API, pages, security, error responses."""

from __future__ import annotations

import json
import logging
import re
import threading
import time

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import column, insert, literal, select, update
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import PlainTextResponse

from nosology.codes import table
from nosology.workbench.app import THREADS
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.page_html import static_path
from nosology.workbench.security import SecurityMiddleware
from nosology.workbench.store_settings import save_setting
from nosology.workbench.store_tables import decisions, notes, users
from nosology.workbench.triage import newest_coder
from nosology.workbench.triage_guarantee import newest_coding
from tests.workbench.conftest import NOTE, PASSWORD, ApiClient, browser, csrf

HEART = "icd10cm:I50.9"


def test_a_note_from_import_to_export(server, ann):
    note = ann.note("whole", patient="p1", sex="F", age=70, date="2025-11-03", kind="inpatient")
    shown = ann.get(f"/notes/{note}").json()
    assert shown["text"] == NOTE and shown["confidence"] > 0
    accepted = [item["code"] for item in shown["suggestions"] if item["accepted"]]
    assert "I50.9" in accepted
    lung = next(item for item in shown["suggestions"] if item["code"] == "J18.9")
    assert any("negated" in span.get("context", []) for span in lung["evidence"])
    assert ann.decide(note, "accept", 0, code=HEART).json() == {"version": 1, "status": "open", "codes": [HEART]}
    start = NOTE.index("type 2 diabetes")
    assert ann.decide(note, "add", 1, code="icd10cm:E11.9", start=start, end=start + 15).status_code == 200
    assert ann.decide(note, "reject", 2, code="icd10cm:J18.9", reason="negated").status_code == 200
    assert ann.decide(note, "order", 3, codes=["icd10cm:E11.9", HEART]).status_code == 200
    assert ann.decide(note, "finish", 4).json()["status"] == "done"
    assert ann.get(f"/notes/{note}").json()["groups"]["drg"]
    assert [row["action"] for row in ann.get(f"/notes/{note}/decisions").json()][-1] == "finish"
    bundle = ann.get(f"/notes/{note}/export").json()
    assert bundle["entry"][2]["resource"]["code"]["coding"][0]["code"] == "E11.9"
    assert ann.get(f"/notes/{note}/export", params={"format": "csv"}).text.count("\r\n") == 3
    measures = ann.get("/measures").json()
    assert measures["notes"] >= 1 and measures["kept"] is not None


def test_a_note_that_is_no_text_is_refused(ann):
    response = ann.post("/notes", {"notes": [{"id": "letter", "text": "{\\rtf1 secret}"}]})
    assert response.status_code == 422
    assert "the note letter is an RTF document, not plain text" in response.json()["detail"]


def test_a_conflict_names_the_other_user(server, ann):
    ben = ApiClient(server[0], server[1]["ben"])
    note = ann.note("conflict")
    assert ann.decide(note, "accept", 0, code=HEART).status_code == 200
    response = ben.decide(note, "reject", 0, code=HEART, reason="wrong")
    assert response.status_code == 409 and "ann changed this note" in response.json()["detail"]
    refused = ben.decide(note, "reject", 1, code=HEART, reason="wrong")
    assert refused.status_code == 403 and "assigned to somebody else" in refused.json()["detail"]
    rita = ApiClient(server[0], server[1]["rita"])
    assert rita.decide(note, "reject", 1, code=HEART, reason="wrong").status_code == 200


def test_only_reviewers_approve_and_nobody_preaccepts(server, ann):
    rita = ApiClient(server[0], server[1]["rita"])
    note = ann.note("second")
    assert ann.decide(note, "second", 0).status_code == 200
    assert ann.decide(note, "approve", 1).status_code == 403
    assert rita.decide(note, "preaccept", 1).status_code == 403
    assert rita.decide(note, "approve", 1).status_code == 422, "it has no code"
    assert rita.decide(note, "approve", 1, override="nothing to code").status_code == 200


def test_finish_needs_codes_that_can_be_billed_or_a_reason(server, ann):
    note = ann.note("gate")
    empty = ann.decide(note, "finish", 0)
    assert empty.status_code == 422 and "the note has no code" in empty.json()["detail"]
    for version, code in enumerate(("icd10cm:E10.9", "icd10cm:E11.9")):
        assert ann.decide(note, "add", version, code=code).status_code == 200
    refused = ann.decide(note, "finish", 2)
    assert refused.status_code == 422 and "E10.9 and E11.9 exclude each other" in refused.json()["detail"]
    assert ann.decide(note, "finish", 2, override="  ").status_code == 422
    assert ann.decide(note, "finish", 2, override="payer asks for both").json()["status"] == "done"
    assert ann.get(f"/notes/{note}/decisions").json()[-1]["details"] == {"override": "payer asks for both"}


def test_a_decision_that_is_sent_again_with_its_key_is_recorded_once(server, ann):
    note = ann.note("twice")
    for _ in range(2):
        response = ann.decide(note, "add", 0, code=HEART, key="k-1")
        assert response.status_code == 200 and response.json()["version"] == 1
    undone = [ann.decide(note, "undo", 1, key="k-2").json() for _ in range(2)]
    assert [(item["version"], item["codes"]) for item in undone] == [(2, []), (2, [])]
    assert ann.decide(note, "add", 2, code=HEART, key="<x>").status_code == 422


def test_requests_without_sign_in_or_role_are_refused(server):
    client, tokens = server
    for path in ("/api/v1/notes", "/api/v1/batches", "/api/v1/measures", "/api/v1/notes/1/export"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer nos_wrong"}).status_code == 401
    for path in ("/", "/notes/1", "/batches", "/measures", "/users", "/audit"):
        response = client.get(path, follow_redirects=False)
        place = "/login" if path == "/" else f"/login?next={path}"
        assert (response.status_code, response.headers["location"]) == (303, place)
    for path in ("/users", "/audit"):
        assert client.get(path, headers={"authorization": f"Bearer {tokens['ann']}"}).status_code == 403
    assert client.get("/triage", headers={"authorization": f"Bearer {tokens['ann']}"}).status_code == 403
    assert client.get("/health/live").status_code == client.get("/health/ready").status_code == 200


def test_an_error_page_keeps_the_menu_of_who_is_signed_in(server):
    for client, has_menu in ((browser(server, "ann"), True), (server[0], False)):
        text = client.get("/notes/99999" if has_menu else "/login/nothing").text
        assert (
            "Not found" in text and ('<nav aria-label="Main">' in text, 'action="/logout"' in text) == (has_menu,) * 2
        )
    token = {"authorization": f"Bearer {server[1]['ann']}"}
    refused = server[0].get("/users", headers=token)
    assert refused.status_code == 403 and "<nav" not in refused.text  # a token has no menu


def test_a_refused_sign_in_keeps_the_name(server):
    client = TestClient(server[0].app, base_url="http://localhost")
    text = client.post("/login", data={"name": 'ann"><b>', "password": "wrong"}).text
    assert 'name="name" value="ann&#34;&gt;&lt;b&gt;"' in text and "wrong" not in text.replace("is wrong", "")


def test_forms_need_the_csrf_token_of_their_session(server):
    client = browser(server, "ann")
    cookie = client.cookies.jar._cookies["localhost.local"]["/"]["nosology_session"]
    assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "lax"
    value = {"name": "mine", "scope": ["read"]}
    assert client.post("/tokens", data=value).status_code == 403
    other = csrf(browser(server, "ben"))
    assert client.post("/tokens", data={**value, "csrf": other}).status_code == 403
    assert client.post("/api/v1/codes/search", json={"query": "heart"}).status_code == 403
    token = csrf(client)
    assert "nos_" in client.post("/tokens", data={**value, "csrf": token}).text
    assert (
        client.post("/api/v1/codes/search", json={"query": "heart"}, headers={"x-csrf-token": token}).status_code == 200
    )
    client.post("/logout", data={"csrf": token})
    assert client.get("/", follow_redirects=False).status_code == 303


def test_another_site_cannot_sign_somebody_in(server):
    client, form = TestClient(server[0].app, base_url="http://localhost"), {"name": "ann", "password": PASSWORD}
    server[0].app.state.services.sign_in_limit._events.clear()
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 303)):
        response = client.post("/login", data=form, headers={"sec-fetch-site": site}, follow_redirects=False)
        assert response.status_code == status


def test_wrong_passwords_are_limited_per_address(server):
    client = TestClient(server[0].app, base_url="http://localhost")
    services = server[0].app.state.services
    services.sign_in_limit._events.clear()
    responses = [client.post("/login", data={"name": f"x{i}", "password": "y"}).status_code for i in range(12)]
    services.sign_in_limit._events.clear()
    assert responses[0] == 401 and responses[-1] == 429


def test_every_response_has_the_security_headers(server):
    for path in ("/login", f"{static_path()}/style.css", "/nowhere", "/api/v1/notes", "/health/live"):
        headers = server[0].get(path).headers
        assert (
            "default-src 'none'" in headers["content-security-policy"]
            and "unsafe" not in headers["content-security-policy"]
        )
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    assert server[0].get("/login").headers["cache-control"] == "no-store"


EVIL = (
    "<script>alert('boo')</script> <img src=x onerror=alert(1)> {{ 7*7 }} ]]> </section></div> "
    "\u202egnihtemos\u2066 &amp; congestive heart failure \x07 \"'"
)


def test_html_in_a_note_is_escaped(server, ann):
    note = ann.note("<b>evil</b>", EVIL + NOTE * 4, patient="<i>p</i>")  # mostly text: HTML alone is refused
    client = browser(server, "ann")
    page = client.get(f"/notes/{note}").text
    assert "<script>alert" not in page and "<img src=x" not in page and "\u202e" not in page and "<b>evil" not in page
    assert "&lt;script&gt;" in page and "{{ 7*7 }}" in page and "⇄" in page
    assert "<b>evil" not in client.get("/").text
    for path in (f"/notes/{note}/history", "/measures", "/batches"):
        assert client.get(path).status_code == 200


def test_a_note_of_100_000_words_is_shown(server, ann):
    if server[0].app.state.services.engine.dialect.name != "sqlite":
        return  # the store has no part in this, and once is slow enough
    text = "Known congestive heart failure, feels well.\n" * 16_700
    note = ann.note("long", text)
    client = browser(server, "ann")
    started = time.process_time()
    page = client.get(f"/notes/{note}")
    assert page.status_code == 200 and re.sub("<[^>]+>", "", page.text).count("feels well") == 16_700
    assert time.process_time() - started < 20


def test_no_text_of_a_note_in_logs_or_errors(server, ann, caplog):
    secret = "Xyzzyplugh the patient said"
    with caplog.at_level(logging.DEBUG):
        ann.note("secret", f"{secret}. congestive heart failure")
        responses = [
            ann.post("/notes", {"notes": [{"id": "s2", "text": [secret]}]}),
            ann.post("/code", {"text": {"x": secret}}),
            ann.post("/codes/search", {"query": secret, "system": secret}),
            ann.decide(1, secret[:20], 0, code=secret),
            ann.post("/fhir", {"resourceType": secret}),
        ]
    assert all(response.status_code == 422 and "Xyzzy" not in response.text for response in responses[:3])
    assert all("the patient said" not in response.text for response in responses)
    assert "Xyzzy" not in caplog.text


def test_an_unexpected_error_shows_no_value_in_log_or_response(server, ann, caplog, monkeypatch):
    def fail(*_):
        raise ValueError("Xyzzyplugh the patient said")

    monkeypatch.setattr("nosology.workbench.cases.list_assignees", fail)
    note = ann.note("fails")
    response = browser(server, "ann").get(f"/notes/{note}")  # raised here if it went on to the server's log
    assert response.status_code == 500 and "Xyzzy" not in response.text + caplog.text
    assert re.search(r"request failed: ValueError at .*test_app.py:\d+", caplog.text)
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_database_errors_show_no_values(server):
    engine = server[0].app.state.services.engine
    with pytest.raises(SQLAlchemyError) as caught, read_transaction(engine) as connection:
        connection.execute(select(literal("Xyzzy"), column("nowhere")))
    assert "Xyzzy" not in str(caught.value)


@pytest.mark.parametrize("number", ["0", "-1", "99999999999", "9" * 30, "x"])
def test_invalid_ids_give_404(server, number):
    client = browser(server, "adam")
    token = {"csrf": csrf(client)}
    for path in (f"/notes/{number}", f"/notes/{number}/history", f"/notes/{number}/export/csv", "/codes/icd10cm/ZZ"):
        assert client.get(path).status_code == 404
    for path in (
        f"/users/{number}",
        f"/tokens/{number}/revoke",
        f"/batches/{number}/cancel",
        f"/notes/{number}/decide",
    ):
        assert client.post(path, data={**token, "action": "finish", "version": "0"}).status_code == 404
    for path in (f"/?batch={number}&page_number={number}", f"/next?after={number}"):
        assert client.get(path).status_code == 200


def test_nul_characters_give_no_server_error(server):
    client = browser(server, "adam")
    token = {"csrf": csrf(client)}
    assert client.get("/?site=%00").status_code < 500
    forms = {"/tokens": "name", "/users": "name", "/find": "ref", "/codes/search": "query", "/login": "name"}
    for path, field in forms.items():
        assert client.post(path, data={**token, field: "a\x00b", "password": "x"}).status_code < 500
    assert client.post("/batches", data={**token, "ref": "a\x00b", "text": "x\x00y"}).status_code < 500


def test_reads_are_in_the_audit_log(server, ann):
    note = ann.note("read me")
    client = browser(server, "ben")
    client.get(f"/notes/{note}")
    client.get(f"/notes/{note}/export/csv")
    rows = re.findall(
        r"<td>(ben)</td><td>([a-z ]+)</td><td><a href=\"/notes/(\d+)", browser(server, "adam").get("/audit").text
    )
    assert ("ben", "note", str(note)) in rows and ("ben", "export csv", str(note)) in rows


def test_a_refused_decision_is_logged_as_access(server, ann):
    note = ann.note("refused")
    client = browser(server, "ben")
    form = {"csrf": csrf(client), "action": "finish", "version": "7"}
    assert client.post(f"/notes/{note}/decide", data=form).status_code == 409
    page = browser(server, "adam").get(f"/audit?note={note}").text
    assert "<td>ben</td><td>panel</td>" in page and "<td>queue</td>" not in page


def test_accept_needs_a_suggestion_and_stores_only_its_fields(server, ann):
    note = ann.note("strange")
    response = ann.decide(note, "accept", 0, code="icd10cm:Z99.2")
    assert response.status_code == 422 and "only what the coder has suggested" in response.json()["detail"]
    assert ann.decide(note, "accept", 0, code=HEART, reason="x", codes=["y"]).status_code == 200
    assert ann.get(f"/notes/{note}/decisions").json()[0]["details"] == {"code": HEART}


def test_two_users_get_different_next_notes(server, ann):
    for i in range(2):
        ann.note(f"next {i}")
    ann_, ben = browser(server, "ann"), browser(server, "ben")
    first = ann_.get("/next?order=uncertain")
    second = ben.get("/next?order=uncertain")
    assert "/notes/" in first.url.path and "/notes/" in second.url.path and first.url.path != second.url.path
    assert 'data-queue="order=uncertain"' in first.text


def test_a_note_is_found_by_its_id(server, ann):
    note = ann.note("MRN-77-b")
    client = browser(server, "ben")
    token = csrf(client)
    assert client.post("/find", data={"csrf": token, "ref": " MRN-77-b "}).url.path == f"/notes/{note}"
    page = client.post("/find", data={"csrf": token, "ref": "mrn-77"})
    assert f'href="/notes/{note}?status=all&amp;order=newest"' in page.text and "MRN" not in str(page.url)
    assert "Nothing here" in client.post("/find", data={"csrf": token, "ref": "100%_"}).text


def test_queue_links_keep_the_batch_filter(server):
    page = browser(server, "ann").get("/?status=all&batch=1&site=a%26b").text
    assert re.search(r'href="/\?status=done&amp;mine=&amp;site=a%26b&amp;order=oldest&amp;batch=1"', page)
    assert 'name="batch" value="1"' in page


def test_columns_are_imported_and_not_exported(ann):
    note = ann.note("columns", sex="F", columns={"modality": "CT", "dose": 0.5})
    assert ann.get(f"/notes/{note}").json()["encounter"] == {"modality": "CT", "dose": 0.5, "sex": "F"}
    assert ann.get(f"/notes/{note}/export", params={"format": "json"}).json()["encounter"] == {"sex": "F"}
    assert ann.post("/code", {"text": NOTE, "columns": {"modality": "CT"}}).json()["suggestions"]
    assert ann.post("/code", {"text": NOTE, "columns": {"modality": ["CT"]}}).status_code == 422


def test_pages_do_not_wait_for_the_code_endpoint(server, ann, monkeypatch):
    workers, goes_on = server[0].app.state.services.pool, threading.Event()
    real = workers.code
    monkeypatch.setattr(workers, "code", lambda texts, **how: goes_on.wait(30) and real(texts, **how))
    asking = [threading.Thread(target=ann.post, args=("/code", {"text": "x"})) for _ in range(THREADS + 2)]
    for thread in asking:
        thread.start()
    try:
        started = time.monotonic()
        assert server[0].get("/login").status_code == 200 and time.monotonic() - started < 15
    finally:
        goes_on.set()
        for thread in asking:
            thread.join()


def test_static_files_are_cached_forever_under_a_hashed_path(server):
    response = server[0].get(f"{static_path()}/app.js")
    assert "immutable" in response.headers["cache-control"]
    assert f'src="{static_path()}/app.js"' in server[0].get("/login").text
    assert server[0].get("/static/app.js").status_code == 404


def test_a_request_that_is_too_large_gives_413_with_the_limit(server):
    response = server[0].post("/api/v1/notes", headers={"content-length": str(1 << 30)}, content=b"x")
    assert response.status_code == 413 and "64 MB" in response.text


def test_behind_a_proxy_the_last_forwarded_address_counts():
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["scheme"], scope["client"][0]))
        await PlainTextResponse("")(scope, receive, send)

    headers = {"x-forwarded-for": "6.6.6.6, 10.0.0.9"}
    TestClient(SecurityMiddleware(app, secure=True, behind_proxy=True)).get("/", headers=headers)
    TestClient(SecurityMiddleware(app, secure=False)).get("/", headers=headers)
    assert seen == [("https", "10.0.0.9"), ("http", "testclient")]


def test_decision_forms_return_the_panel(server, ann):
    note = ann.note("form", sex="M", age=50)
    client = browser(server, "ann")
    token = {"x-csrf-token": csrf(client)}

    def decide(**values):
        return client.post(f"/notes/{note}/decide", data=values, headers=token)

    page = decide(action="accept", version=0, code=HEART)
    assert page.status_code == 200 and 'data-version="1"' in page.text
    late = decide(action="accept", version=0, code="icd10cm:E11.9")
    assert late.status_code == 409 and "Conflict" in late.text and 'data-version="1"' in late.text
    assert decide(action="add", version=1, code="icd10cm:C56.1").status_code == 200
    assert "is for female patients" in client.get(f"/notes/{note}").text
    assert decide(action="reject", version=2, code="icd10cm:C56.1", reason="no").status_code == 422
    assert decide(action="order", version=2, codes=json.dumps(["icd10cm:C56.1", HEART])).status_code == 200
    assert decide(action="order", version=3, codes="not json").status_code == 422
    book = client.get("/codes/icd10cm/I50.9?instead_of=icd10cm:I50.9").text
    offered = set(re.findall(r'data-to="icd10cm:([^"]+)"', book))
    assert {"I50.1", "I50.23"} <= offered and all(table("icd10cm").billable(code) for code in offered)
    assert "I50.9" in client.post("/codes/search", data={"query": "heart failure"}, headers=token).text
    assert client.get("/codes/icd10cm/nothing").status_code == 404


def test_new_users_must_change_the_one_time_password(server):
    admin = browser(server, "adam")
    token = csrf(admin)
    name = f"new {time.time_ns()}"
    page = admin.post("/users", data={"csrf": token, "name": name, "role": "reviewer"}).text
    secret = re.search(r'class="secret">([^<]+)<', page)[1]
    client = TestClient(server[0].app, base_url="http://localhost")
    server[0].app.state.services.sign_in_limit._events.clear()
    client.post("/login", data={"name": name, "password": secret})
    assert client.get("/", follow_redirects=False).headers["location"] == "/password"
    form = {"csrf": re.search(r'name="csrf" content="([^"]+)"', client.get("/password").text)[1], "old": secret}
    assert client.post("/password", data={**form, "new": PASSWORD, "again": "else"}).status_code == 422
    assert client.post("/password", data={**form, "new": PASSWORD, "again": PASSWORD}).status_code == 200
    assert client.get("/triage").status_code == 200


def test_files_are_uploaded_by_a_form(server):
    client = browser(server, "ann")
    token = csrf(client)
    files = [
        ("files", ("a.txt", b"heart failure", "text/plain")),
        ("files", ("b.jsonl", b'{"id": "b1", "text": "x"}', "")),
    ]
    page = client.post("/batches", data={"csrf": token}, files=files)
    assert page.status_code == 200 and "a.txt" in page.text
    assert client.post("/batches", data={"csrf": token}, files=[("files", ("c.jsonl", b"{", ""))]).status_code == 422
    assert client.post("/batches", data={"csrf": token, "text": "x", "ref": ""}).status_code == 422
    assert client.post("/batches", data={"csrf": token, "text": "x", "ref": "typed"}).status_code == 200
    again = client.post("/batches", data={"csrf": token}, files=files)
    assert again.status_code == 200 and "0 imported. 2 skipped" in again.text


def test_a_note_with_a_decision_of_older_rules_is_shown_and_measured(server, ann):
    note = ann.note("of older rules")
    assert ann.decide(note, "add", 0, code=HEART).status_code == 200
    assert ann.decide(note, "second", 1).status_code == 200
    with write_transaction(server[0].app.state.services.engine) as connection:  # as an older version allowed it
        user = connection.scalar(select(users.c.id).where(users.c.name == "ann"))
        row = {"note_id": note, "version": 3, "user_id": user, "at": time.time(), "action": "approve", "details": {}}
        connection.execute(insert(decisions).values(**row))
        connection.execute(
            update(notes).where(notes.c.id == note).values(version=3, status="done", finished=time.time())
        )
    assert ann.get(f"/notes/{note}").json()["version"] == 3
    assert ann.get("/measures").status_code == browser(server, "ann").get("/measures").status_code == 200


def test_an_assignee_who_is_disabled_is_named(server, ann):
    admin = browser(server, "adam")
    name = f"leaver {time.time_ns()}"
    admin.post("/users", data={"csrf": csrf(admin), "name": name, "role": "coder"})
    with read_transaction(server[0].app.state.services.engine) as connection:
        user = connection.scalar(select(users.c.id).where(users.c.name == name))
    note = ann.note("of a leaver")
    assert ann.decide(note, "assign", 0, user=user).status_code == 200
    admin.post(f"/users/{user}", data={"csrf": csrf(admin), "act": "disable"})
    assert "a disabled user</option>" in admin.get(f"/notes/{note}").text
    assert name in admin.get(f"/notes/{note}/history").text


def test_a_pasted_text_is_kept_if_it_was_not_imported(server, ann):
    client = browser(server, "ann")
    ann.note("pasted before")
    for ref in ("", "pasted before"):  # without an id, and the text that is there already
        page = client.post("/batches", data={"csrf": csrf(client), "text": NOTE, "ref": ref}).text
        assert f"{NOTE}</textarea>" in page


def test_a_day_that_the_calendar_does_not_have_is_refused(ann):
    for name in ("date", "admitted", "discharged"):
        body = {"notes": [{"id": f"no {name}", "text": "x", name: "2025-02-30"}]}
        assert ann.post("/notes", body).status_code == 422


def test_triage_preaccepts_and_users_may_reopen(server, ann):
    admin = browser(server, "adam")
    token = csrf(admin)
    assert "nobody has calibrated" in admin.get("/triage").text
    assert admin.post("/triage", data={"csrf": token, "on": "yes", "sample": "0.01"}).status_code == 200
    guard = {
        "loss": "errors",
        "tolerated": 0.5,
        "threshold": 0.3,
        "notes": 90,
        "tested": 81,
        "passed": 60,
        "found": 0.1,
    }
    try:
        note = ann.note("not calibrated", "congestive heart failure. type 2 diabetes.")
        assert ann.get(f"/notes/{note}").json()["status"] == "new"
        with write_transaction(server[0].app.state.services.engine) as connection:
            coding = newest_coding(connection)
            about = {"fewest": 42, "number": 1, "coder_id": newest_coder(connection), "coding": coding, "made": 1.0}
            save_setting(connection, "triage_guarantee", {**guard, **about})
        assert "confidence of at least 0.30" in admin.get("/triage").text
        note = ann.note("sure", "congestive heart failure. type 2 diabetes.")
        shown = ann.get(f"/notes/{note}").json()
        assert shown["status"] == "preaccepted" and {item["origin"] for item in shown["codes"]} == {"triage"}
        assert ann.decide(note, "accept", 1, code="icd10cm:I10").status_code == 422
        assert ann.decide(note, "reopen", 1).json()["status"] == "open"
    finally:
        admin.post("/triage", data={"csrf": token, "sample": "0.1"})
        admin.post("/triage/restart", data={"csrf": token})
    for sample in ("0", "7"):
        assert admin.post("/triage", data={"csrf": token, "sample": sample}).status_code == 422


def test_reviewers_state_what_triage_tolerates(server):
    reviewer, coder = browser(server, "rita"), browser(server, "ann")
    form = {"csrf": csrf(reviewer), "loss": "errors", "tolerated": "0.5"}
    page = reviewer.post("/triage/calibration", data=form).text
    assert "Nothing may pass" in page and "are too few" in page and "Calibration 1 of this coder" in page
    assert "at most 5 in 100 encounters with another DRG" in reviewer.post(
        "/triage/calibration", data={**form, "loss": "drg", "tolerated": "5"}
    ).text.replace("\n", " ")
    for wrong in ({"tolerated": "0"}, {"tolerated": "11"}, {"tolerated": "nan"}, {"loss": "money"}):
        assert reviewer.post("/triage/calibration", data={**form, **wrong}).status_code == 422
    assert reviewer.post("/triage", data={"csrf": form["csrf"], "on": "yes"}).status_code == 403
    for path in ("/triage/calibration", "/triage/alarm", "/triage/restart"):
        assert coder.post(path, data={**form, "csrf": csrf(coder)}).status_code == 403
        assert reviewer.post(path, data={**form, "csrf": "wrong"}).status_code == 403
    assert "nobody has calibrated" in reviewer.post("/triage/restart", data={"csrf": form["csrf"]}).text


def test_metrics_count_requests_and_contain_no_patient_data(server, ann):
    note = ann.note("counted")
    ann.get(f"/notes/{note}")
    text = server[0].get("/metrics").text
    assert 'nosology_requests_total{method="GET",route="/api/v1/notes/{note_id}",status="200"}' in text
    assert "nosology_notes_uncoded" in text and "counted" not in text and NOTE[:20] not in text


def test_requests_that_are_too_large_are_refused_before_they_are_read(server):
    response = server[0].post("/login", content=b"", headers={"content-length": str(1 << 40)})
    assert response.status_code == 413


def test_a_database_failure_gives_503_until_it_is_back(server, ann, monkeypatch):
    from sqlalchemy.exc import OperationalError

    from nosology.workbench import api

    def away(*_, **__):
        raise OperationalError("SELECT text of a note", {}, Exception("gone"))

    monkeypatch.setattr(api, "count_by_status", away)
    response = ann.get("/notes")
    assert response.status_code == 503 and response.headers["retry-after"] == "2" and "SELECT" not in response.text
    monkeypatch.undo()
    assert ann.get("/notes").status_code == 200
