"""Security of the server: bodies, tokens, sign-in, sessions, hosts, and what the audit log says about them."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from nosology.core import ConfigError
from nosology.core.files import text_sha256
from nosology.workbench import accounts, security
from nosology.workbench.accounts import create_token
from nosology.workbench.audit_log import read_log, shown_notes
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.security import SESSION_COOKIE, SecurityMiddleware
from nosology.workbench.server_settings import OidcSettings, ServerSettings
from nosology.workbench.sign_in import FailureLimit, SignInDelays
from nosology.workbench.store_tables import sessions, tokens, users
from tests.workbench.conftest import NOTE, PASSWORD, ApiClient, browser, csrf


def engine_of(server):
    return server[0].app.state.services.engine


def newest(server, what: str):
    """The newest entry of the audit log with this action."""
    with read_transaction(engine_of(server)) as connection:
        return next(row for row in read_log(connection) if row["what"] == what)


@pytest.fixture
def fresh(server):
    """A server without failures of earlier tests."""
    services = server[0].app.state.services
    services.sign_in_limit, services.sign_in_delays = FailureLimit(10, 60.0), SignInDelays()
    yield server
    services.sign_in_limit, services.sign_in_delays = FailureLimit(10, 60.0), SignInDelays()


def ask(app, path: str, headers=(), method="POST", body=None):
    """(status, bytes of the body that the application received) of a request as the server passes it on."""
    read, sent = [0], []
    chunks = iter(body or ())

    async def receive():
        chunk = next(chunks, b"")
        read[0] += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunk)}

    async def send(message):
        sent.append(message)

    pairs = [(b"host", b"localhost"), *headers, (b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": pairs, "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http",
             "root_path": "", "http_version": "1.1", "asgi": {"version": "3.0"}}  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0], read[0]


@pytest.mark.parametrize("path", ["/api/v1/notes", "/api/v1/fhir", "/api/v1/code", "/batches", "/users", "/nowhere"])
def test_the_body_of_an_unknown_client_is_not_read(server, path):
    for headers in ((), [(b"authorization", b"Bearer nos_wrong")], [(b"cookie", b"nosology_session=x")]):
        started, read = ask(server[0].app, path, headers, body=[b"x" * 1000] * 3)
        assert read == 0 and started["status"] == (401 if path.startswith("/api/") else 303)
        assert (b"connection", b"close") in started["headers"]


def test_a_database_that_is_away_gives_503_while_the_user_is_looked_up(server, monkeypatch):
    def away(*_):
        raise OperationalError("SELECT", {}, Exception("gone"))

    monkeypatch.setattr(security, "token_user", away)
    response = ApiClient(server[0], server[1]["ann"]).get("/notes")
    assert response.status_code == 503 and "database does not respond" in response.text


def test_a_body_without_length_is_counted(server, monkeypatch):
    headers = [(b"authorization", f"Bearer {server[1]['ann']}".encode())]
    monkeypatch.setattr(security, "MAX_REQUEST_BYTES", 100_000)
    started, read = ask(server[0].app, "/api/v1/notes", headers, body=[b"x" * 10_000] * 50)
    assert started["status"] == 413 and read == 110_000
    form = [(b"content-type", b"application/x-www-form-urlencoded")]
    started, read = ask(server[0].app, "/login", form, body=[b"x" * 10_000] * 50)
    assert started["status"] == 413 and read == 20_000


def test_a_token_has_its_scopes_only(server):
    with write_transaction(engine_of(server)) as connection:
        user = connection.scalar(select(users.c.id).where(users.c.name == "adam"))
        made = {scope: create_token(connection, user, scope, [scope]) for scope in accounts.SCOPES}
    note = ApiClient(server[0], server[1]["ann"]).note("scopes")
    requests = {
        "read": ("GET", f"/notes/{note}", None),
        "import": ("POST", "/notes", {"notes": [{"id": "scoped", "text": "x"}]}),
        "code": ("POST", "/code", {"text": "x"}),
        "decide": ("POST", f"/notes/{note}/decisions", {"action": "hold", "version": 0}),
        "export": ("GET", f"/notes/{note}/export", None),
    }
    for scope, token in made.items():
        for needed, (method, path, body) in requests.items():
            headers = {"authorization": f"Bearer {token}"}
            response = server[0].request(method, f"/api/v1{path}", json=body, headers=headers)
            assert (response.status_code == 403) == (scope != needed), (scope, needed, response.text)


def test_a_token_of_an_admin_opens_no_page_and_makes_no_users(server):
    headers = {"authorization": f"Bearer {server[1]['adam']}"}
    for path in ("/", "/users", "/audit", "/settings", "/tokens", "/notes/1"):
        assert server[0].get(path, headers=headers).status_code == 403
    for path, form in (("/users", {"name": "mallory", "role": "admin"}), ("/tokens", {"name": "x", "scope": "read"})):
        assert server[0].post(path, headers=headers, data=form).status_code == 403
    with read_transaction(engine_of(server)) as connection:
        assert connection.scalar(select(users.c.id).where(users.c.name == "mallory")) is None


def test_the_page_of_tokens_shows_scopes_expiry_and_last_use(server):
    client = browser(server, "ben")
    form = {"csrf": csrf(client), "name": "nightly", "scope": ["read", "export"], "days": "30"}
    moments = [time.time()]
    page = client.post("/tokens", data=form).text
    moments.append(time.time())
    token = re.search(r"nos_[\w-]+", page)[0]
    days = {time.strftime("%Y-%m-%d", time.gmtime(moment + 30 * 86_400)) for moment in moments}  # two at midnight
    assert "read, export" in page and any(day in page for day in days)
    ApiClient(server[0], token).get("/notes")
    assert "just now" in client.get("/tokens").text
    assert newest(server, "add token")["object"] == "nightly: read, export for 30 days"
    assert client.post("/tokens", data={"csrf": form["csrf"], "name": "all"}).status_code == 422  # no scope
    with read_transaction(engine_of(server)) as connection:
        number = connection.scalar(select(tokens.c.id).where(tokens.c.name == "nightly"))
    client.post(f"/tokens/{number}/revoke", data={"csrf": form["csrf"]})
    assert newest(server, "revoke token")["object"] == "nightly"


def sign_in(server, name: str, password: str, address: str = "10.0.0.1", cookies=None) -> int:
    client = TestClient(server[0].app, base_url="http://localhost", client=(address, 1), cookies=cookies)
    return client.post("/login", data={"name": name, "password": password}, follow_redirects=False).status_code


def test_nobody_locks_out_another_person(fresh):
    limit = fresh[0].app.state.services.sign_in_limit
    limit.limit = 1000  # of addresses: here it is about names
    known = browser(fresh, "adam")  # a browser in which adam has signed in before
    statuses = [sign_in(fresh, "adam", "wrong") for _ in range(6)]
    assert statuses[:4] == [401] * 4 and statuses[-1] == 429
    assert sign_in(fresh, "adam", PASSWORD) == 429  # the delay applies to the right password, too
    assert sign_in(fresh, "nobody at all", "x") == 401
    assert sign_in(fresh, "adam", PASSWORD, "10.0.0.2") == 303
    device = {"nosology_device": known.cookies["nosology_device"]}
    assert sign_in(fresh, "adam", PASSWORD, cookies=device) == 303  # at the address of the attacker
    services = fresh[0].app.state.services
    services.sign_in_delays._failures = {k: (n, 0.0) for k, (n, _) in services.sign_in_delays._failures.items()}
    assert sign_in(fresh, "adam", PASSWORD) == 303  # after the delay


def test_right_passwords_do_not_count_for_the_limit_of_an_address(fresh):
    assert [sign_in(fresh, "ann", PASSWORD) for _ in range(15)] == [303] * 15
    assert [sign_in(fresh, f"x{number}", "wrong") for number in range(12)] == [401] * 10 + [429] * 2


def test_a_delayed_attempt_verifies_one_hash(fresh, monkeypatch):
    from nosology.workbench import passwords

    hasher, verified = passwords._hasher(), []

    class Counting:
        hash = staticmethod(hasher.hash)

        @staticmethod
        def verify(hashed, password):
            verified.append(hashed)
            return hasher.verify(hashed, password)

    passwords._dummy_hash()
    monkeypatch.setattr(passwords, "_hasher", Counting)
    fresh[0].app.state.services.sign_in_limit.limit = 1000
    for name in ("ann", "nobody"):
        statuses = [sign_in(fresh, name, "wrong") for _ in range(5)]
        assert statuses == [401, 401, 401, 401, 429] and len(verified) == 5
        verified.clear()


def test_refused_sign_ins_name_the_account_and_no_typed_secret(fresh):
    sign_in(fresh, "Ann", "wrong")
    row = newest(fresh, "sign in refused")
    assert (row["object"], row["address"]) == ("ann: wrong password", "10.0.0.1")
    sign_in(fresh, "my secret password", "x")
    assert re.fullmatch(r"unknown name [0-9a-f]{8}", newest(fresh, "sign in refused")["object"])
    sign_in(fresh, "ann", PASSWORD)
    assert newest(fresh, "sign in")["object"] == "password"


def test_a_locked_session_goes_on_at_the_same_place(fresh):
    client = browser(fresh, "ann")
    token, cookie = csrf(client), client.cookies[SESSION_COOKIE]
    form = {"csrf": token, "next": "/notes/1?order=newest"}
    response = client.post("/lock", data=form, follow_redirects=False)
    assert response.headers["location"] == "/login?next=/notes/1%3Forder%3Dnewest"
    assert 'name="next" value="/notes/1?order=newest"' in client.get(response.headers["location"]).text
    assert client.get("/batches", follow_redirects=False).headers["location"] == "/login?next=/batches"
    assert client.post("/api/v1/code", json={"text": "x"}, headers={"x-csrf-token": token}).status_code == 401
    form = {"name": "ann", "password": PASSWORD, "next": form["next"]}
    assert client.post("/login", data=form, follow_redirects=False).headers["location"] == "/notes/1?order=newest"
    assert client.cookies[SESSION_COOKIE] == cookie and csrf(client) == token
    for place in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:1"):
        response = client.post("/login", data={**form, "next": place}, follow_redirects=False)
        assert response.headers["location"] == "/"


def test_users_end_their_own_sessions(server):
    first, second, other = browser(server, "ben"), browser(server, "ben"), browser(server, "rita")
    page = first.get("/sessions").text
    assert page.count("this one") == 1 and page.count('action="/sessions/end"') >= 2
    with read_transaction(engine_of(server)) as connection:
        stored = connection.execute(select(sessions.c.id, sessions.c.csrf)).all()
    wanted = next(row.id for row in stored if row.csrf == csrf(second))
    assert other.post("/sessions/end", data={"csrf": csrf(other), "session": wanted}).status_code == 404
    assert first.post("/sessions/end", data={"csrf": csrf(first), "session": wanted}).status_code == 200
    assert second.get("/", follow_redirects=False).status_code == 303 and first.get("/").status_code == 200


def test_changes_of_users_and_settings_name_their_object(server):
    admin = browser(server, "adam")
    token, name = {"csrf": csrf(admin)}, f"new {time.time_ns()}"
    admin.post("/users", data={**token, "name": name, "role": "coder"})
    assert newest(server, "add user")["object"] == f"{name}: coder"
    with read_transaction(engine_of(server)) as connection:
        number = connection.scalar(select(users.c.id).where(users.c.name == name))
    admin.post(f"/users/{number}", data={**token, "role": "reviewer"})
    assert newest(server, "user role")["object"] == f"{name}: coder -> reviewer"
    for act in ("disable", "enable", "reset"):
        admin.post(f"/users/{number}", data={**token, "act": act})
        assert newest(server, f"user {act}")["object"] == name
    admin.post("/triage", data={**token, "sample": "0.2"})
    assert newest(server, "triage")["object"] == "sample: 0.1 -> 0.2"
    admin.post("/triage", data={**token, "sample": "0.1"})
    admin.post("/triage/calibration", data={**token, "loss": "drg", "tolerated": "5"})
    words = "at most 5 in 100 encounters with another DRG: nothing may pass, 0 encounters"
    assert newest(server, "triage calibration")["object"] == words
    admin.post("/triage/restart", data=token)
    assert newest(server, "triage restart")["object"] == "encounters coded from now on count"
    admin.post("/settings/sessions", data={**token, "hours": "8", "idle_minutes": "120"})
    assert newest(server, "session limits")["object"] == "hours: 12 -> 8"
    admin.post("/settings/sessions", data={**token, "hours": "12", "idle_minutes": "120"})
    assert admin.post("/settings/sessions", data={**token, "hours": "0"}).status_code == 422
    assert f"{name}: coder -&gt; reviewer" in admin.get("/audit").text
    page = admin.get("/users").text
    assert all(line in page for lines in accounts.RIGHTS.values() for line in lines)


def test_lists_batches_and_coded_texts_name_their_object(server):
    ann = ApiClient(server[0], server[1]["ann"])
    note = ann.note("objects")
    ann.get("/notes", params={"order": "newest"})
    assert f"{note}" in newest(server, "queue")["object"]
    assert re.fullmatch(r"batch \d+: 1 added, 0 known", newest(server, "import")["object"])
    ann.post("/code", {"text": NOTE})
    assert newest(server, "code")["object"] == f"a text of {len(NOTE)} characters"
    ann.post("/claim", {"text": NOTE, "date": "2025-11-03"})
    assert newest(server, "claim of a text")["object"] == f"a text of {len(NOTE)} characters"
    batch = ann.post("/notes", {"notes": [{"id": f"many {i}", "text": NOTE * 20} for i in range(40)]}).json()["batch"]
    assert ann.post(f"/batches/{batch}/cancel").status_code == 200
    row = newest(server, "batch cancel")
    assert (row["object"], row["user"]) == (f"batch {batch}", "ann")
    assert shown_notes([9, 3, 4, 5]) == "notes 3-5, 9" and shown_notes([]) == "no notes"


def test_a_file_with_a_long_name_is_refused_with_a_sentence(server):
    client = browser(server, "ann")
    token = csrf(client)
    for name in (f"{'n' * 400}.txt", f"{'n' * 400}.csv"):
        page = client.post("/batches", data={"csrf": token}, files=[("files", (name, b"id,text\n1,a", ""))])
        assert page.status_code == 422 and "name of a file may have 200 characters; got 404" in page.text


def test_the_history_of_imports_names_the_user_and_what_was_skipped(server):
    ann = ApiClient(server[0], server[1]["ann"])
    body = {"name": "history of imports", "notes": [{"id": f"import {i}", "text": "x"} for i in range(3)]}
    assert [ann.post("/notes", body).json()["known"] for _ in range(2)] == [0, 3]
    rows = [row for row in ann.get("/batches").json() if row["name"] == "history of imports"]
    assert [(row["user"], row["total"], row["known"]) for row in rows] == [("ann", 0, 3), ("ann", 3, 0)]
    page = browser(server, "ann").get("/batches").text
    assert re.search(
        r'history of imports</bdi>.*?<bdi>ann</bdi></td>(<td class="n">0</td>){2}<td class="n">3</td>', page, re.S
    )


def test_only_known_hosts_are_answered(server, tmp_path):
    for host, status in (("localhost:8400", 200), ("127.0.0.1", 200), ("[::1]:1", 200), ("evil.example", 400)):
        assert server[0].get("/login", headers={"host": host}).status_code == status
    assert server[0].get("/health/live", headers={"host": "10.1.2.3"}).status_code == 200
    settings = ServerSettings(tmp_path, "x.db", behind_proxy=True, public_url="https://coding.example.org")
    assert settings.hosts == {"coding.example.org"} and settings.address == "https://coding.example.org"
    for url in ("coding.example.org", "http://coding.example.org", "https://x/path", "ftp://x"):
        with pytest.raises(ConfigError, match="--public-url must be"):
            ServerSettings(tmp_path, "x.db", behind_proxy=True, public_url=url)
    oidc = OidcSettings("https://idp.example.org", "us", "secret")
    with pytest.raises(ConfigError, match="--public-url must be given with --oidc-issuer"):
        ServerSettings(tmp_path, "x.db", behind_proxy=True, oidc=oidc)


def test_a_host_that_cannot_be_parsed_is_refused():
    middleware = SecurityMiddleware(None, secure=False, hosts={"localhost"})
    assert not middleware._is_known_host("[::1", "/") and not middleware._is_known_host("", "/")


def test_an_expired_one_time_password_does_not_sign_in(fresh):
    with write_transaction(engine_of(fresh)) as connection:
        user = accounts.create_user(connection, f"late {time.time_ns()}", "coder", None)
        name = connection.scalar(select(users.c.name).where(users.c.id == user))
        password = accounts.reset_password(connection, user)
    assert sign_in(fresh, name, password) == 303
    with write_transaction(engine_of(fresh)) as connection:
        connection.execute(update(users).where(users.c.id == user).values(password_expires=time.time() - 1))
    assert sign_in(fresh, name, password) == 401
    assert newest(fresh, "sign in refused")["object"] == f"{name}: one-time password expired"


def test_a_page_that_polls_does_not_keep_its_session_open(server):
    client = browser(server, "ann")
    engine = engine_of(server)
    session = text_sha256(client.cookies[SESSION_COOKIE])
    mine = sessions.c.id == session

    def seen() -> float:
        with read_transaction(engine) as connection:
            return connection.scalar(select(sessions.c.seen).where(mine))

    with write_transaction(engine) as connection:
        connection.execute(update(sessions).where(mine).values(seen=sessions.c.seen - 600))
    before = seen()
    for path in ("/batches/rows", "/notes/1/coded"):
        assert client.get(path).status_code < 300
    assert seen() == before
    client.get("/batches")
    assert seen() > before
