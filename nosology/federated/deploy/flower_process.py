"""Flower's programs as child processes, which end with their parent.

    python -m nosology.federated.deploy.flower_process superlink|supernode ARGUMENTS...

`flower_shims` changes both programs as a federation of hospitals needs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

GRACE = 10.0  # seconds that a program has to end


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: its own home folder, no telemetry, no installation of packages.

    Flower starts some of its programs by name, so the folder of this Python is on the PATH.
    """
    return os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class FlowerProcess:
    """One of Flower's programs as a child; it ends with this process, even if this process is killed."""

    def __init__(self, program: str, arguments: list[str], *, home: Path, log: Path):
        self.log = log
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
        """Stops the program and waits for its end."""
        stop_process(self._process)

    def log_tail(self, lines: int = 5) -> str:
        """The end of the log of the program, in one line."""
        text = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip() for line in text if line.strip())[-80 * lines :]


def stop_process(process: subprocess.Popen) -> None:
    """Terminates a process, kills it after GRACE seconds, and waits for its end."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt, so that child processes are stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.1) -> bool:
    """Whether a condition became true within some seconds."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return bool(met)


def end_with_parent(grace: float) -> None:
    """Starts a thread that ends this process when its parent ends: by SIGINT and, after `grace` seconds, at once.

    Flower does the same, but its signal does not wake a thread that waits for a server that is gone.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        if grace:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent(GRACE)
    from nosology.federated.deploy import flower_shims

    name = sys.argv[1]
    sys.argv = [f"flower-{name}", *sys.argv[2:]]
    {"superlink": flower_shims.run_superlink, "supernode": flower_shims.run_supernode}[name]()
