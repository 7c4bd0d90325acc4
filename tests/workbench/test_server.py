"""The server process: SIGKILL loses no decision, SIGTERM finishes running requests, the first start."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException

import pytest

from nosology.cli.serve import serve as serve_command
from nosology.core import ConfigError, Note
from nosology.workbench.app import serve
from nosology.workbench.cases import add_notes, decision_history
from nosology.workbench.database import open_database, read_transaction, write_transaction
from nosology.workbench.services import ServerSettings
from tests.workbench.conftest import fill_people
from tests.workbench.processes import Server


def call(server: Server, token: str, path: str, value=None):
    """(status, body) of a request to the API."""
    body = None if value is None else json.dumps(value).encode()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    request = urllib.request.Request(f"{server.address}/api/v1{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, None


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
            kept = [row["version"] for row in rows]
            assert status == 200 and kept == list(range(1, len(kept) + 1))
            assert {version for number, version in acknowledged if number == note} <= set(kept)
        with read_transaction(engine) as connection:
            assert sum(len(decision_history(connection, note)) for note in range(1, 9)) >= len(acknowledged) >= 60
        # And it ends in peace: what is in flight is answered, the exit is clean.
        responses = []
        texts = {"text": "type 2 diabetes " * 3000}
        asking = threading.Thread(target=lambda: responses.append(call(again, tokens["ann"], "/code", texts)[0]))
        asking.start()
        time.sleep(0.15)
        assert again.stop() in (0, -15)
        asking.join()
        assert responses == [200]
    finally:
        engine.dispose()


def test_the_first_start_prints_only_the_one_time_password_and_the_address(small_bundle, tmp_path):
    log = tmp_path / "log"
    server = Server(small_bundle, str(tmp_path / "w.db"), log=log).start()
    server.stop()
    lines = log.read_text().splitlines()
    assert re.fullmatch(r"First start: sign in as admin with the one-time password \S{20} .*", lines[0])
    assert lines[1:] == [f"Workbench at {server.address}"]


def test_serve_refuses_invalid_options(small_bundle, tmp_path):
    with pytest.raises(ConfigError, match="--host must be a loopback address without TLS"):
        serve_command(small_bundle, host="0.0.0.0")
    with pytest.raises(ConfigError, match="give either a bundle folder or --demo"):
        serve_command()
    command = [sys.executable, "-m", "nosology", "serve", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    assert "is no bundle" in run.stderr


def test_a_used_port_is_refused_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"must be free to listen at; got 127.0.0.1:{port}"):
            serve(ServerSettings(bundle=tmp_path / "none", store=str(tmp_path / "w.db"), port=port))
    assert not (tmp_path / "w.db").exists()
