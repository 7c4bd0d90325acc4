"""What works at a site: takes the SuperNode's tasks one by one and does them in this process.

Flower's own executor starts a new process for every message, which costs seconds of imports a round and forgets the
vectors that were loaded; and it runs whatever program the run brings. This one stays, and runs the app that is
installed here, whatever a run brings.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Iterator

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
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
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from nosology.federated.deploy.wire import packed, unpacked

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

log = logging.getLogger(__name__)


class Executor:
    """Does the tasks of one SuperNode with one app."""

    def __init__(self, app: ClientApp, address: str, secret: bytes):
        self.app, self.address = app, address
        self._one_at_a_time = threading.Lock()
        self._queue = self._client(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE]))

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.close()

    def work(self) -> bool:
        """Whether there was a task; it is being done then."""
        try:
            found = self._queue.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except httpx.HTTPError:  # the SuperNode is starting, or has ended
            return False
        if not (found.HasField("task") and found.token):
            return False
        threading.Thread(target=self._task, args=(found.token,), daemon=True).start()
        return True

    def _task(self, token: str) -> None:
        """Does a task, in a thread of its own.

        When a run is stopped, a SuperNode may never hand out the message that it has announced. Such a task waits,
        while others are done.
        """
        with contextlib.closing(self._client(RuntimeTokenHttpInterceptor(token))) as client, _pulse(client):
            try:
                self._do(client)
            except Exception as error:  # the run was stopped, or the SuperNode has ended
                log.warning("a task was given up: %s", type(error).__name__)

    def _do(self, client: RuntimeHttpClient) -> None:
        message, context, _, _ = pull_task_input(client)
        message.content = unpacked(message.content)
        reply, failure = self._reply(message, context)
        if reply.has_content():
            reply.content = packed(reply.content)
        push_message(client, reply, context)
        push_task_output(client, context, SubStatus.FAILED if failure else SubStatus.COMPLETED, failure)

    def _reply(self, message: Message, context: Context) -> tuple[Message, str]:
        """The app's reply, and what went wrong, if anything did: only the kind of an exception, not its words."""
        try:
            with self._one_at_a_time:
                return self.app(message, context), ""
        except Exception as error:
            log.error("the app failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
            reason = f"{type(error)}:<''>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message), reason

    def _client(self, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
        known = RuntimeVersionHttpInterceptor(component_name="nosology")
        return RuntimeHttpClient.from_server_address(self.address, True, None, [known, interceptor])


@contextlib.contextmanager
def _pulse(client: RuntimeHttpClient) -> Iterator[None]:
    """Within it the SuperNode is told that the task is being worked on."""

    def beat() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True  # a task that is not wanted any more is found out when its reply is not taken

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
