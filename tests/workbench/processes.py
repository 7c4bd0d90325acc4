"""The workbench as a separate process, for tests and load benchmarks that kill it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPConnection
from pathlib import Path

from tests.core.process_family import is_running


class Server:
    """A process of `nosology serve`."""

    def __init__(self, bundle: Path | str, store: str, *options: str, log: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._command = [sys.executable, "-m", "nosology", "serve", str(bundle), "--store", store]
        self._command += ["--port", str(self.port), *options]

    def start(self, seconds: float = 90) -> Server:
        """Starts it and waits until it is ready."""
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=out, start_new_session=True, env=alone)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
            try:
                with urllib.request.urlopen(f"{self.address}/health/ready", timeout=2):
                    return self
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the server did not get ready")

    def wait_for_status(self, path: str, status: int, seconds: float = 30) -> None:
        """Returns when a path has this status; the result of a health check is used for some seconds."""
        end, got = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.address}{path}", timeout=10) as response:
                    got = response.status
            except urllib.error.HTTPError as error:
                got = error.code
            if got == status:
                return
            time.sleep(0.1)
        raise RuntimeError(f"{path} has the status {got}, not {status}")

    def children(self) -> list[int]:
        """The ids of its worker processes."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]

    def cpu_seconds(self) -> float:
        """The CPU time that the server has used, without its workers."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kills the server and its workers with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """The exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            if self.process.poll() is None:
                self.kill()


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


def open_request(server: Server, token: str, path: str, value) -> HTTPConnection:
    """A connection with a request that the server has begun to process: it has asked for the body, which is sent."""
    body, address = json.dumps(value).encode(), urllib.parse.urlsplit(server.address)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=60)
    connection.putrequest("POST", f"/api/v1{path}")
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json", "expect": "100-continue"}
    for name, text in (headers | {"content-length": str(len(body))}).items():
        connection.putheader(name, text)
    connection.endheaders()
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        received += connection.sock.recv(1)
    assert b" 100 " in received
    connection.send(body)
    return connection


def wait_for_end(processes: list[int], seconds: float = 60) -> None:
    """Returns when none of these processes runs; AssertionError if one goes on."""
    end = time.monotonic() + seconds
    while any(map(is_running, processes)):
        assert time.monotonic() < end, "a worker outlived the server"
        time.sleep(0.05)
