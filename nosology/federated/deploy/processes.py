"""Flower's programs as children of ours: what they may see, where they write, and that none is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

GRACE = 10.0  # seconds for a program to end by itself


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: a home of its own, no telemetry, nothing asked or installed from outside.

    Flower starts some of its programs by name; they stand beside this Python.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return os.environ | {
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Child:
    """One of Flower's programs; it ends when this process does, even if this process is killed."""

    def __init__(self, program: str, arguments: list[str], *, home: Path, log: Path):
        self.program, self.log = program, log
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "nosology.federated.deploy.flower_process", program, *arguments]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, env=environment(home), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def ended(self) -> bool:
        """Whether the program has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ends the program, and waits until it has ended."""
        if not self.ended:
            self._process.terminate()
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def last_words(self, lines: int = 5) -> str:
        """The end of the program's log, in one line."""
        text = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip() for line in text if line.strip())[-80 * lines :]


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP unwind the program as Ctrl-C does, so that what it started is ended."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_until(condition, seconds: float, pause: float = 0.1) -> bool:
    """Whether a condition came true within some seconds."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return bool(met)
