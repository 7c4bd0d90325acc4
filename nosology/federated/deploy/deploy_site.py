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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from nosology.core import FederationError
from nosology.core.files import exclusive_output, read_json, write_json
from nosology.federated.deploy.credentials import (
    key_fingerprint,
    public_bytes,
    read_certificate,
    read_site_key,
    write_private,
)
from nosology.federated.deploy.flower_process import FlowerProcess, free_port
from nosology.federated.deploy.flower_shims import (
    NODE_HEARTBEAT,
    ActivateNodeRequest,
    DeactivateNodeRequest,
    ErrorCode,
    SubStatus,
    TaskQueue,
    TaskType,
    fleet_client,
    pull_task_input,
    push_message,
    push_task_output,
)
from nosology.federated.deploy.server_address import check_address
from nosology.federated.deploy.superlink import connection_error
from nosology.federated.rounds.messages import pack_message, unpack_message

POLL_SECONDS = 0.25  # between requests for tasks
RETRY_SECONDS = 5.0  # until a server that did not answer is tried again

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
        with fleet_client(self.server, self._certificate, self._private) as client:
            with contextlib.suppress(httpx.HTTPStatusError):
                if last := read_node(node_file):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=last))
            request = ActivateNodeRequest(public_key=public, heartbeat_interval=NODE_HEARTBEAT)
            try:
                node = client.ActivateNode(request).node_id
            except httpx.HTTPStatusError as error:
                raise self._refusal(error.response.status_code, public) from error
            write_json(node_file, {"node": node})
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
            return node

    def _refusal(self, status: int, public: bytes) -> FederationError:
        if status not in (httpx.codes.UNAUTHORIZED, httpx.codes.PRECONDITION_FAILED):
            return FederationError(f"{self.server} answered with HTTP status {status}")
        return FederationError(
            f"{self.server} refuses the key of {self.name} (fingerprint {key_fingerprint(public)}): it is not"
            " registered there, or another process uses it, or the clocks differ"
        )


def read_node(path: Path) -> int:
    """The node id in a file; 0 if there is none."""
    try:
        node = read_json(path)["node"]
    except (OSError, ValueError, LookupError, TypeError):
        return 0
    return node if type(node) is int and 0 < node < 2**64 else 0


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
    """The node of the site, once the server answers.

    A server that has just started may not know the keys of its sites yet: after a wait, a site tries twice.
    """
    reported = is_new_server = False
    while True:
        try:
            return credentials.activate()
        except FederationError:
            if not is_new_server:
                raise
            is_new_server = False
            time.sleep(RETRY_SECONDS)
        except httpx.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error) and "expired" not in str(error):  # it may be renewed
                raise FederationError(f"{credentials.server}: {connection_error(error)}") from error
            if not reported:
                report(f"{credentials.name}: waiting for {credentials.server} ({connection_error(error)})")
            reported = is_new_server = True
            time.sleep(RETRY_SECONDS)


def _serve(credentials: SiteCredentials, app: ClientApp, node_config: dict[str, str], home: Path, log: Path) -> None:
    """Runs tasks until the SuperNode ends."""
    port, secret = free_port(), secrets.token_bytes(32)
    secret_file, config_file = home / "secret", home / "node.toml"
    secret_file.unlink(missing_ok=True)
    write_private(secret_file, secret)
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
        self.app = app
        self._app_lock = threading.Lock()
        self._queue = TaskQueue(address, secret)

    def __enter__(self) -> TaskExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()

    def run_next(self) -> bool:
        """Whether there was a task, which is now running in a thread."""
        if token := self._queue.acquire(TaskType.CLIENT_APP):
            threading.Thread(target=self._run_task, args=(token,), daemon=True).start()
        return bool(token)

    def _run_task(self, token: str) -> None:
        """Runs a task.

        It has its own thread because a SuperNode may never deliver the message of a task whose run was stopped. Such a
        task waits while others run.
        """
        with self._queue.task(token) as client:
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
