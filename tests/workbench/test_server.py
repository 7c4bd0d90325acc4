"""The server process: SIGKILL loses no decision, SIGTERM finishes running requests, the first start."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import closing
from http.client import HTTPException
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nosology.cli import app
from nosology.cli.serve import serve as serve_command
from nosology.core import ConfigError, NosologyError, Note
from nosology.workbench.app import serve
from nosology.workbench.cases import decision_history
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.document_import import add_notes
from nosology.workbench.server_settings import ServerSettings
from tests.core.process_family import is_running
from tests.workbench.conftest import fill_people
from tests.workbench.processes import Server, call, open_request, wait_for_end


def test_kill_9_loses_no_acknowledged_decision(small_bundle, store, tmp_path):
    tokens = fill_people(store)
    engine = open_database(store)
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(f"n{i}", "type 2 diabetes") for i in range(8)], None)
    server = Server(small_bundle, store, log=tmp_path / "log").start()
    acknowledged: list[tuple[int, int]] = []

    def work(note: int, token: str) -> None:
        version = 0
        while True:
            action = {"action": "hold" if version % 2 == 0 else "resume", "version": version}
            try:
                status, _ = call(server, token, f"/notes/{note}/decisions", action)
            except (OSError, HTTPException):  # killed before its response, or in the middle of it
                return
            if status == 200:
                version += 1
                acknowledged.append((note, version))

    threads = [threading.Thread(target=work, args=(note, tokens["ann"])) for note in range(1, 9)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 60:
        time.sleep(0.01)
    server.kill()
    for thread in threads:
        thread.join()
    again = Server(small_bundle, store, log=tmp_path / "log").start()
    try:
        for note in range(1, 9):
            status, rows = call(again, tokens["ann"], f"/notes/{note}/decisions")
            versions = [row["version"] for row in rows]
            assert status == 200 and versions == list(range(1, len(versions) + 1))
            assert {version for number, version in acknowledged if number == note} <= set(versions)
        with read_transaction(engine) as connection:
            assert sum(len(decision_history(connection, note)) for note in range(1, 9)) >= len(acknowledged) >= 60
        # And it ends in peace: what is in flight is answered, the exit is clean.
        with closing(open_request(again, tokens["ann"], "/code", {"text": "type 2 diabetes " * 3000})) as connection:
            assert again.stop() in (0, -15)
            assert connection.getresponse().status == 200
    finally:
        engine.dispose()


def test_the_first_start_prints_only_the_one_time_password_and_the_address(small_bundle, tmp_path):
    log = tmp_path / "log"
    server = Server(small_bundle, str(tmp_path / "w.db"), log=log).start()
    server.stop()
    lines = log.read_text().splitlines()
    assert lines[0] == f"Created the store {tmp_path / 'w.db'}"
    assert re.fullmatch(r"First start: sign in as admin with the one-time password \S{20} .*", lines[1])
    assert lines[2:] == [f"Workbench at {server.address}"]


def test_workers_end_when_the_server_is_killed(small_bundle, tmp_path):
    server = Server(small_bundle, str(tmp_path / "w.db"), log=tmp_path / "log").start()
    workers = server.children()
    assert workers and all(map(is_running, workers))
    server.process.kill()
    server.process.wait()
    wait_for_end(workers)


def test_a_worker_in_a_long_call_ends_when_the_server_is_killed(small_bundle):
    """A regular expression that takes minutes holds the interpreter's lock: no thread of the worker runs."""
    program = f"""
import re, sys
from pathlib import Path
from nosology.workbench.coding import CoderPool
if __name__ == "__main__":
    pool = CoderPool(Path({str(small_bundle)!r}))
    pool.load()
    pool._pool.submit(re.fullmatch, "(a+)+b", "a" * 60)
    print(*pool._pool._processes, flush=True)
    sys.stdin.read()
"""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        command = [sys.executable, file.name]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        (worker,) = map(int, server.stdout.readline().split())

        def seconds() -> float:
            return sum(map(int, Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[11:13])) / 100

        started, end = seconds(), time.monotonic() + 120
        while seconds() < started + 0.3:  # it computes
            assert time.monotonic() < end
            time.sleep(0.05)
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()  # not read to its end: the worker has it open, too
    end = time.monotonic() + 30
    try:
        while is_running(worker):
            assert time.monotonic() < end, "the worker outlived the server"
            time.sleep(0.05)
    finally:
        if is_running(worker):
            os.kill(worker, signal.SIGKILL)


def test_a_second_server_is_refused_and_a_killed_one_blocks_nobody(small_bundle, tmp_path):
    store = str(tmp_path / "w.db")
    first = Server(small_bundle, store, log=tmp_path / "log").start()
    with pytest.raises(RuntimeError, match=r"nosology: another server uses the store .*w\.db; stop it first"):
        Server(small_bundle, store, log=tmp_path / "second").start()
    resource.prlimit(first.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))  # as a full disk
    first.wait_for_status("/health/ready", 503)
    resource.prlimit(first.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    first.wait_for_status("/health/ready", 200)
    first.process.kill()
    first.process.wait()
    Server(small_bundle, store, log=tmp_path / "log").start().stop()


def test_a_damaged_store_gives_one_sentence(small_bundle, tmp_path):
    store = tmp_path / "w.db"
    fill_people(str(store))
    store.write_bytes(store.read_bytes()[:100] + bytes(8000))
    with pytest.raises(RuntimeError) as caught:
        Server(small_bundle, str(store), log=tmp_path / "log").start()
    assert "nosology: the store is damaged; restore a backup" in str(caught.value)
    assert "Traceback" not in (tmp_path / "log").read_text()


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
os.execv(sys.executable, [sys.executable, "-m", "nosology", "serve", *sys.argv[1:]])
"""


def test_a_full_disk_at_the_start_gives_one_sentence_and_leaves_no_process(small_bundle, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", LIMITED, str(small_bundle), "--store", str(tmp_path / "w.db"), "--port", port]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=120
    )  # returns when its workers have ended, too
    assert run.returncode == 1
    (line,) = run.stderr.strip().splitlines()
    assert line.startswith("nosology: the store cannot be opened: ")


def test_the_end_of_the_terminal_ends_the_server_in_peace(small_bundle, tmp_path):
    store = str(tmp_path / "w.db")
    token = fill_people(store)["ann"]
    server = Server(small_bundle, store, log=tmp_path / "log").start()
    responses = []
    value = {"text": "type 2 diabetes " * 30_000}
    asking = threading.Thread(target=lambda: responses.append(call(server, token, "/code", value)[0]))
    asking.start()
    while b"nosology_coder_waiting 1.0" not in urllib.request.urlopen(f"{server.address}/metrics").read():
        time.sleep(0.01)
    os.killpg(server.process.pid, signal.SIGHUP)  # a terminal sends it to the workers too
    server.process.wait(timeout=60)
    asking.join()
    assert responses == [200]


def test_a_store_that_is_deleted_under_the_server_takes_no_more_notes(small_bundle, tmp_path):
    store = str(tmp_path / "w.db")
    token = fill_people(store)["adam"]
    server = Server(small_bundle, store, log=tmp_path / "log").start()
    for path in tmp_path.glob("w.db*"):
        path.unlink()
    batch = {"name": "b", "notes": [{"id": "n", "text": "type 2 diabetes"}]}
    assert call(server, token, "/notes", batch)[0] == 503
    server.wait_for_status("/health/ready", 503)
    end = time.monotonic() + 60
    while "coding in the background failed: StoreGoneError" not in (tmp_path / "log").read_text():
        assert time.monotonic() < end, "errors of the server must be in its log"
        time.sleep(0.05)
    server.stop()
    assert not (tmp_path / "w.db").exists()


def test_a_wrong_certificate_is_refused_before_anything_is_created(small_bundle, tmp_path):
    (tmp_path / "cert.pem").write_text("no certificate")
    settings = ServerSettings(
        bundle=small_bundle, store=str(tmp_path / "w.db"), tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "cert.pem"
    )
    with pytest.raises(ConfigError, match="must be a PEM certificate and its key"):
        serve(settings)
    assert not (tmp_path / "w.db").exists()


def test_serve_refuses_invalid_options(small_bundle, tmp_path):
    with pytest.raises(ConfigError, match="--host must be a loopback address without TLS"):
        serve_command(small_bundle, host="0.0.0.0")
    with pytest.raises(ConfigError, match="give either a bundle folder or --demo"):
        serve_command()
    command = [sys.executable, "-m", "nosology", "serve", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert "is no bundle" in run.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["BUNDLE", "--release", "1850"], "release must be one of 2015"),
        (["BUNDLE", "--store", "folder"], "folder is a folder"),
        (["BUNDLE", "--store", "new/"], "got 'new/', a folder"),
        (["BUNDLE", "--store", ""], "--store must not be empty"),
        (["BUNDLE", "--store", "/dev/null"], "/dev/null is no file"),
        (["BUNDLE", "--store", "~nobody-of-that-name/w.db"], "a home folder that does not exist"),
        (["BUNDLE", "--store", "other.db/w.db"], "other.db is no folder"),
        (["BUNDLE", "--oidc-role", "coder"], "--oidc-role has no effect without --oidc-issuer"),
        (["BUNDLE", "--oidc-issuer", ""], "--oidc-issuer must not be empty"),
        (["--demo", "--new-admin-password"], "--new-admin-password has no effect with --demo"),
        (["--demo", "--store", "other.db"], "is a database of another program"),
        (["--demo", "--store", "ours.db"], "--demo needs a new store"),
        (["--demo", "--release", "1850"], "release must be one of 2015"),
    ],
)
def test_serve_checks_its_options_before_anything_is_written(small_bundle, tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOSOLOGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("nosology.workbench.app._check_port", lambda host, port: None)  # others may listen there
    (tmp_path / "folder").mkdir()
    with closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE theirs (name TEXT)")
    fill_people("ours.db")
    before = {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    words = [str(small_bundle) if word == "BUNDLE" else word for word in options]
    result = CliRunner().invoke(app, ["serve", *words])
    assert isinstance(result.exception, NosologyError) and sentence in str(result.exception)
    assert {path.name: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_damaged_bundle_creates_no_store(small_bundle, tmp_path):
    bundle = shutil.copytree(small_bundle, tmp_path / "bundle")
    (bundle / "model.safetensors").write_bytes(b"damaged")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NosologyError):
        serve(ServerSettings(bundle=bundle, store=str(tmp_path / "w.db"), port=port))
    assert not (tmp_path / "w.db").exists()


def test_a_used_port_is_refused_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"must be free to listen at; got 127.0.0.1:{port}"):
            serve(ServerSettings(bundle=tmp_path / "none", store=str(tmp_path / "w.db"), port=port))
    assert not (tmp_path / "w.db").exists()
