"""All that a deployment takes from Flower's modules outside its public API (`flwr.app`, `clientapp`, `serverapp`).

Flower has no public client for its three HTTP APIs, so the clients that its own programs use are imported here. Nor has
it settings for the following, so attributes of its modules are replaced in the child process:

- middleware: the APIs that start runs and register keys have no authentication; they answer only this machine.
- pauses: a SuperNode waits three seconds between requests, longer than a round; here half a second.
- heartbeats: a SuperLink notices a lost site after 60 seconds; here after 20.
- reply order: a SuperNode may hold back a reply until the next message; here it replies before it takes the next one.
- uploads: whoever receives a message waits up to two hours for parts that a killed sender has not uploaded, and does
  nothing else; here until no part has come for a minute.

Each has a test of Flower without it (tests/federated/deploy/test_flower_shims.py), which fails once it is not needed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode, SubStatus
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto import control_pb2 as control
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.run_pb2 import RunStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore import log
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from nosology.core import ConfigError
from nosology.federated.deploy.localhost_middleware import LocalhostMiddleware, run_uvicorn

__all__ = [
    "ActivateNodeRequest",
    "DeactivateNodeRequest",
    "ErrorCode",
    "Fab",
    "FlowerError",
    "NodeStatus",
    "RunStatus",
    "SubStatus",
    "TaskType",
    "build_fab_from_disk",
    "control",
    "fab_to_proto",
    "log",
    "pull_task_input",
    "push_message",
    "push_task_output",
    "user_config_to_proto",
]

TESTED = ("1.40", "1.41")  # releases of Flower; the range in pyproject.toml is the same
PAUSE = 0.5  # seconds between polls
HEARTBEAT = 10  # seconds, the shortest interval that a SuperLink accepts
UPLOAD_SECONDS = 60.0  # without a further part of an upload, which has at most 5 MB
NODE_HEARTBEAT = HEARTBEAT_DEFAULT_INTERVAL  # until the SuperNode of a site has started
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def check_flower_version(version: str = "") -> None:
    """ConfigError if the installed Flower is not a release that these shims were tested with."""
    version = version or importlib.metadata.version("flwr")
    if version.rpartition(".")[0] not in TESTED:
        raise ConfigError(f"flwr must be {' or '.join(TESTED)} for a deployment; {version} is installed")


def control_client(address: str, root: bytes) -> ControlHttpClient:
    """A client of the API that starts runs and registers keys. root: a certificate as PEM."""
    return ControlHttpClient.from_server_address(address, False, root, [_version()])


def fleet_client(address: str, root: bytes, key: ec.EllipticCurvePrivateKey) -> FleetHttpClient:
    """A client of the API of the sites, which signs every call with the key of a site."""
    signature = NodeAuthHttpInterceptor(key, key.public_key())
    return FleetHttpClient.from_server_address(address, False, root, [_version(), signature])


def _version() -> RuntimeVersionHttpInterceptor:
    return RuntimeVersionHttpInterceptor(component_name="nosology")


class TaskQueue:
    """The tasks of a SuperLink or a SuperNode. secret: in the file of `--superexec-auth-secret-file` of its program."""

    def __init__(self, address: str, secret: bytes, root: bytes | None = None):
        self.address, self.root = address, root
        self._client = self._connect(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[_ACQUIRE]))

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def acquire(self, task_type: TaskType) -> str:
        """The token of a new task; empty if there is none, or if the program is starting or has ended."""
        try:
            reply = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[task_type]))
        except httpx.HTTPError:
            return ""
        return reply.token if reply.HasField("task") else ""

    @contextlib.contextmanager
    def task(self, token: str) -> Iterator[RuntimeHttpClient]:
        """A client for one task, which sends heartbeats."""
        client = self._connect(RuntimeTokenHttpInterceptor(token))

        def beat() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            return True  # for a task that is not wanted any more, sending the reply fails

        sender = HeartbeatSender(beat)
        sender.start()
        try:
            yield client
        finally:
            sender.stop()
            client.close()

    def _connect(self, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
        insecure = self.root is None  # within one machine
        return RuntimeHttpClient.from_server_address(self.address, insecure, self.root, [_version(), interceptor])


def server_app_command(address: str, root: Path, token_file: Path, parent: int) -> list[str]:
    """The command that runs the ServerApp of a task. The token is in a file: a command line is visible to all users."""
    command = ["flwr-serverapp", "--runtime-api-address", address, "--root-certificates", str(root)]
    return [*command, "--token-file", str(token_file), "--parent-pid", str(parent)]


def run_superlink() -> None:
    """Runs Flower's SuperLink with `LocalhostMiddleware`."""
    import uvicorn
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    check_flower_version()
    # by import_module: the package has a function of the same name
    program: Any = import_module("flwr.superlink.cli.flower_superlink")
    extensions.get_middleware = lambda: (Middleware(LocalhostMiddleware),)
    program.uvicorn = SimpleNamespace(run=functools.partial(run_uvicorn, uvicorn.run))
    program.flower_superlink()


def run_supernode() -> None:
    """Runs Flower's SuperNode with shorter pauses."""
    from flwr.supernode.cli import flower_supernode

    check_flower_version()
    for name in ("flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"):
        module: Any = import_module(name)
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    client: Any = import_module("flwr.supernode.start_client_internal")
    shorten_sleep(client)
    reply_before_next_message(client)
    give_up_stalled_uploads(client)
    flower_supernode()


def change_server_app() -> None:
    """Changes Flower in the process of a ServerApp."""
    give_up_stalled_uploads(import_module("flwr.superlink.grid.http_grid"))


def give_up_stalled_uploads(module: Any, seconds: float = UPLOAD_SECONDS) -> None:
    """Makes one of Flower's modules give up a message of which no part has come for some seconds."""
    pull = module.pull_objects

    def pull_while_parts_come(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
        last = time.monotonic()

        def pull_part(object_id: str) -> bytes:
            nonlocal last
            try:
                part = pull_object_fn(object_id)
            except ObjectUnavailableError:
                if time.monotonic() - last < seconds:
                    raise  # Flower tries again
                raise ObjectPullError(object_id, f"no part came for {seconds:g} s") from None
            last = time.monotonic()
            return part

        return pull(object_ids, pull_part)

    module.pull_objects = pull_while_parts_come


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
