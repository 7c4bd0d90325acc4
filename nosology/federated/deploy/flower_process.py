"""Flower's programs as child processes, with the additions that a federation of hospitals needs.

    python -m nosology.federated.deploy.flower_process superlink|supernode ARGUMENTS...

A child ends with its parent. The SuperLink gets a middleware: over the network only the API of the sites is reachable,
which requires a node key for every call. The APIs that start runs, register keys and distribute tasks have no
authentication, so they answer only this machine. The SuperNode gets shorter pauses (so that a round of two seconds does
not wait for three), a shorter heartbeat interval (so that the server notices a lost site in 20 instead of 60 seconds),
and it sends the reply to each message before it takes the next one.

Flower has no settings for these, so attributes of its modules are replaced in the child process.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

PAUSE = 0.5  # seconds between polls
GRACE = 10.0  # seconds that a program has to end
HEARTBEAT = 10  # seconds, the shortest interval that a SuperLink accepts
PUBLIC_PATHS = ("/v1/fleet/", "/health")  # the API of the sites


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
        if not self.ended:
            self._process.terminate()
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def log_tail(self, lines: int = 5) -> str:
        """The end of the log of the program, in one line."""
        text = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip() for line in text if line.strip())[-80 * lines :]


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


class LocalhostMiddleware:
    """ASGI middleware: requests over the network reach only `PUBLIC_PATHS`."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        """Passes a request on, or answers 404."""
        if scope["type"] == "lifespan" or scope.get("path", "").startswith(PUBLIC_PATHS) or _is_local(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})


def _is_local(scope: dict[str, Any]) -> bool:
    client = scope.get("client")
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def superlink() -> None:
    """Runs Flower's SuperLink with `LocalhostMiddleware`."""
    import uvicorn
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    # by import_module: the package has a function of the same name
    program: Any = import_module("flwr.superlink.cli.flower_superlink")
    extensions.get_middleware = lambda: (Middleware(LocalhostMiddleware),)
    program.uvicorn = SimpleNamespace(run=functools.partial(_run_uvicorn, uvicorn.run))
    program.flower_superlink()


def _run_uvicorn(run: Callable[..., None], **settings: Any) -> None:
    """Runs uvicorn without an access log (several requests per second) and without proxy headers.

    A header must not change the client address, which `LocalhostMiddleware` relies on.
    """
    run(**settings | {"access_log": False, "proxy_headers": False})


def supernode() -> None:
    """Runs Flower's SuperNode with shorter pauses."""
    from flwr.supernode.cli import flower_supernode

    for name in ("flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"):
        module: Any = import_module(name)
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    client: Any = import_module("flwr.supernode.start_client_internal")
    shorten_sleep(client)
    reply_before_next_message(client)
    flower_supernode()


def shorten_sleep(module: Any) -> None:
    """Limits `time.sleep` of one of Flower's modules to PAUSE seconds."""
    shorter = SimpleNamespace(**vars(time))
    shorter.sleep = lambda seconds: time.sleep(min(seconds, PAUSE))
    module.time = shorter


def reply_before_next_message(program: Any) -> None:
    """Makes a SuperNode send the reply to a message before it takes the next one.

    Flower sends ready replies once per message. If a run is stopped while one of its messages arrives, the late reply
    is sent in place of the reply to the next message. That reply then waits for yet another message, which the server
    does not send, because it waits for the reply.
    """
    pull, push, awaited = program._pull_and_store_message, program._push_messages, ""

    def pull_one(*, receive: Callable[[], Any], **arguments: Any) -> int | None:
        def receive_and_record() -> Any:
            nonlocal awaited
            if (received := receive()) is not None:
                awaited = received[0].metadata.message_id
            return received

        return pull(receive=receive_and_record, **arguments)

    def push_until_replied(*, state: Any, **arguments: Any) -> None:
        push(state=state, **arguments)
        while awaited in state.msg_store:  # Flower deletes a message together with its reply
            push(state=state, **arguments)

    program._pull_and_store_message, program._push_messages = pull_one, push_until_replied


PROGRAMS = {"superlink": superlink, "supernode": supernode}

if __name__ == "__main__":
    end_with_parent(GRACE)
    name = sys.argv[1]
    sys.argv = [f"flower-{name}", *sys.argv[2:]]
    PROGRAMS[name]()
