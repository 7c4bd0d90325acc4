"""The child process of `processes.Child`: one of Flower's own programs, with what a federation of hospitals adds.

    python -m nosology.federated.deploy.flower_process superlink|supernode ARGUMENTS...

Both end with the process that started them. Added is, to the SuperLink, a door: from outside only the API of the sites
can be reached, which asks for a node key at every call. The API that starts runs and registers keys, and the one that
hands work to executors, ask nobody for anything, so they answer this machine alone. To the SuperNode: shorter pauses,
so that a round of two seconds does not wait for three, a quicker pulse, so that the server sees in 20 instead of 60
seconds that a site is gone, and a reply to each message before the next one is asked for.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

PAUSE = 0.5  # seconds between two looks for work
GRACE = 10.0  # seconds to end in
PULSE = 10  # seconds, the shortest that a SuperLink accepts
FOR_SITES = ("/v1/fleet/", "/health")


class Door:
    """ASGI middleware that answers strangers only on the paths that sites need."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        """Passes a request on, or answers 404 as if there were nothing here."""
        if scope["type"] == "lifespan" or scope.get("path", "").startswith(FOR_SITES) or _is_here(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})


def _is_here(scope: dict[str, Any]) -> bool:
    client = scope.get("client")
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def shorter_pauses(module: Any) -> None:
    """Makes the `time.sleep` of one of Flower's modules last PAUSE at most."""
    shorter = SimpleNamespace(**vars(time))
    shorter.sleep = lambda seconds: time.sleep(min(seconds, PAUSE))
    module.time = shorter


def end_with_parent(grace: float) -> None:
    """From now on this process ends with its parent, by SIGINT, and if that is of no use in `grace` seconds, at once.

    Flower has a watch of its own, but the signal that it raises wakes nobody who waits for a server that is gone.
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


def superlink() -> None:
    """Runs Flower's SuperLink behind the door."""
    import uvicorn
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    program = import_module("flwr.superlink.cli.flower_superlink")  # the package hides it behind its function
    extensions.get_middleware = lambda: (Middleware(Door),)
    program.uvicorn = SimpleNamespace(run=functools.partial(_run_quietly, uvicorn.run))
    program.flower_superlink()


def _run_quietly(run: Callable[..., None], **settings: Any) -> None:
    """Runs the web server without a line in the log for each request: there are several a second.

    Nor does it believe what a header says of where a request comes from: the door goes by that.
    """
    run(**settings | {"access_log": False, "proxy_headers": False})


def supernode() -> None:
    """Runs Flower's SuperNode with shorter pauses."""
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli import flower_supernode

    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = PULSE
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = PULSE
    shorter_pauses(start_client_internal)
    answer_each_message(start_client_internal)
    flower_supernode()


def answer_each_message(program: Any) -> None:
    """Makes a SuperNode send the reply to a message before it asks for the next one, as it means to.

    Flower sends the replies that are there once for each message. If a run is stopped while a message of it comes in,
    that one's late reply is sent in the turn of the next message, whose own reply then lies there until yet another
    message comes; and the server, which waits for it, sends none.
    """
    pull, push, awaited = program._pull_and_store_message, program._push_messages, ""

    def pull_one(*, receive: Callable[[], Any], **rest: Any) -> int | None:
        def noted() -> Any:
            nonlocal awaited
            if (found := receive()) is not None:
                awaited = found[0].metadata.message_id
            return found

        return pull(receive=noted, **rest)

    def push_until_answered(*, state: Any, **rest: Any) -> None:
        push(state=state, **rest)
        while awaited in state.msg_store:  # Flower takes a message out together with its reply
            push(state=state, **rest)

    program._pull_and_store_message, program._push_messages = pull_one, push_until_answered


PROGRAMS = {"superlink": superlink, "supernode": supernode}

if __name__ == "__main__":
    end_with_parent(GRACE)
    name = sys.argv[1]
    sys.argv = [f"flower-{name}", *sys.argv[2:]]
    PROGRAMS[name]()
