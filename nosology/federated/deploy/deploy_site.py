"""A hospital's machine: a SuperNode over TLS with the key of the site, and the executor that runs its tasks.

Flower's own executor starts a process for every message, which costs seconds of imports per round and loses the loaded
vectors, and it runs the program that a run brings. The executor here stays, and runs only the app that is installed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode, SubStatus
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
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

from nosology.core import FederationError
from nosology.core.files import atomic_file, exclusive_output
from nosology.federated.deploy.credentials import key_fingerprint, public_bytes, read_certificate, read_site_key
from nosology.federated.deploy.flower_process import FlowerProcess, free_port
from nosology.federated.deploy.superlink import check_address, connection_error
from nosology.federated.rounds.messages import pack_message, unpack_message

POLL_SECONDS = 0.25  # between requests for tasks
RETRY_SECONDS = 5.0  # until a server that did not answer is tried again
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

Report = Callable[[str], None]
log = logging.getLogger(__name__)


@dataclass
class SiteCredentials:
    """The key of a site and the certificate of its server; both files are read at once."""

    name: str
    server: str  # HOST:PORT
    root: Path  # certificate of the authority
    key: Path  # private key of the site

    def __post_init__(self) -> None:
        check_address(self.server)
        self._private, self._certificate = read_site_key(self.key), read_certificate(self.root)

    def activate(self) -> int:
        """The node id of the site, if the server accepts its key: activates its node and deactivates it again.

        A site that was killed is still active at the server, which refuses a second node with its key. So the last node
        is deactivated first. Its id is in a file next to the key.
        """
        public, node_file = public_bytes(self._private.public_key()), self.key.with_suffix(".node")
        version = RuntimeVersionHttpInterceptor(component_name="nosology")
        signature = NodeAuthHttpInterceptor(self._private, self._private.public_key())
        interceptors = [version, signature]
        with FleetHttpClient.from_server_address(self.server, False, self._certificate, interceptors) as client:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, httpx.HTTPStatusError):
                last = int(json.loads(node_file.read_text(encoding="utf-8"))["node"])
                client.DeactivateNode(DeactivateNodeRequest(node_id=last))
            request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            try:
                node = client.ActivateNode(request).node_id
            except httpx.HTTPStatusError as error:
                raise self._refusal(error.response.status_code, public) from error
            with atomic_file(node_file) as path:
                path.write_text(json.dumps({"node": node}), encoding="utf-8")
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
            return node

    def _refusal(self, status: int, public: bytes) -> FederationError:
        if status not in (httpx.codes.UNAUTHORIZED, httpx.codes.PRECONDITION_FAILED):
            return FederationError(f"{self.server} answered with HTTP status {status}")
        return FederationError(
            f"{self.server} refuses the key of {self.name} (fingerprint {key_fingerprint(public)}): it is not"
            " registered there, or another process uses it, or the clocks differ"
        )


def serve_site(
    credentials: SiteCredentials, app: ClientApp, node_config: dict[str, str], log_file: Path, report: Report = print
) -> None:
    """Takes part in every run of the server until it is interrupted; reconnects when the server is back.

    node_config: the config in the Context of the app. log_file: of the SuperNode.
    """
    name, server = credentials.name, credentials.server
    lock = exclusive_output(credentials.key, f"another process uses {credentials.key}")
    with lock, tempfile.TemporaryDirectory(prefix="nosology-site-") as folder:
        while True:
            node = _wait_for_server(credentials, report)
            report(f"{name}: connected to {server} as node {node}")
            _serve(credentials, app, node_config, Path(folder), log_file)
            report(f"{name}: the connection to {server} has ended; trying again")
            time.sleep(RETRY_SECONDS)


def _wait_for_server(credentials: SiteCredentials, report: Report) -> int:
    """The node of the site, once the server answers."""
    reported = False
    while True:
        try:
            return credentials.activate()
        except httpx.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise FederationError(f"{credentials.server}: {connection_error(error)}") from error
            if not reported:
                report(f"{credentials.name}: waiting for {credentials.server} ({connection_error(error)})")
            reported = True
            time.sleep(RETRY_SECONDS)


def _serve(credentials: SiteCredentials, app: ClientApp, node_config: dict[str, str], home: Path, log: Path) -> None:
    """Runs tasks until the SuperNode ends."""
    port, secret = free_port(), secrets.token_bytes(32)
    secret_file, config_file = home / "secret", home / "node.toml"
    secret_file.write_bytes(secret)
    # a JSON string is a TOML string
    config_file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in node_config.items()))
    arguments = ["--superlink", credentials.server, "--root-certificates", str(credentials.root.resolve())]
    arguments += ["--auth-supernode-private-key", str(credentials.key.resolve()), "--node-config", str(config_file)]
    arguments += ["--isolation", "process", "--superexec-auth-secret-file", str(secret_file)]
    arguments += ["--host", "127.0.0.1", "--port", str(port)]
    process = FlowerProcess("supernode", arguments, home=home, log=log)
    try:
        with TaskExecutor(app, f"127.0.0.1:{port}", secret) as executor:
            while not process.ended:
                if not executor.run_next():
                    time.sleep(POLL_SECONDS)
    finally:
        process.stop()


class TaskExecutor:
    """Runs the tasks of a SuperNode in this process, with one app."""

    def __init__(self, app: ClientApp, address: str, secret: bytes):
        self.app, self.address = app, address
        self._app_lock = threading.Lock()
        self._queue = self._client(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE]))

    def __enter__(self) -> TaskExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()

    def run_next(self) -> bool:
        """Whether there was a task, which is now running in a thread."""
        try:
            reply = self._queue.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except httpx.HTTPError:  # the SuperNode is starting, or has ended
            return False
        if not (reply.HasField("task") and reply.token):
            return False
        threading.Thread(target=self._run_task, args=(reply.token,), daemon=True).start()
        return True

    def _run_task(self, token: str) -> None:
        """Runs a task.

        It has its own thread because a SuperNode may never deliver the message of a task whose run was stopped. Such a
        task waits while others run.
        """
        with contextlib.closing(self._client(RuntimeTokenHttpInterceptor(token))) as client, _heartbeat(client):
            try:
                message, context, _, _ = pull_task_input(client)
                message.content = unpack_message(message.content)
                reply, failure = self._reply(message, context)
                if reply.has_content():
                    reply.content = pack_message(reply.content)
                push_message(client, reply, context)
                push_task_output(client, context, SubStatus.FAILED if failure else SubStatus.COMPLETED, failure)
            except Exception as error:  # the run was stopped, or the SuperNode has ended
                log.warning("a task was abandoned: %s", type(error).__name__)

    def _reply(self, message: Message, context: Context) -> tuple[Message, str]:
        """The reply of the app, and its failure: the class of an exception, without its text."""
        try:
            with self._app_lock:
                return self.app(message, context), ""
        except Exception as error:
            log.error("the app failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
            reason = f"{type(error)}:<''>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message), reason

    def _client(self, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="nosology")
        return RuntimeHttpClient.from_server_address(self.address, True, None, [version, interceptor])


@contextlib.contextmanager
def _heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Sends heartbeats of a task to the SuperNode."""

    def beat() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True  # for a task that is not wanted any more, sending the reply fails

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
