"""A Flower grid whose nodes are in this process: a simulation without Ray, threads or waiting.

The nodes work one after the other, in the order of the messages, when messages are pushed. Each has its own Context,
which lives as long as the grid, as at a SuperNode.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

SITE_NAME = "site-name"  # in a node's config
_FIRST = 100  # node id; the server's own is 1


class InProcessGrid(Grid):
    """A grid of nodes that all run one ClientApp; ids are counted, so that two runs are alike."""

    patience = 0.0  # seconds to wait for more nodes: they are all here from the beginning

    def __init__(self, app: ClientApp, sites: Iterable[str], run_id: int = 1):
        self.app, self._run = app, Run.create_empty(run_id)
        self._contexts: dict[int, Context] = {}
        self._replies: dict[str, Message] = {}
        self._ids, self._nodes = count(1), count(_FIRST)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SUPERLINK_NODE_ID, 0
        for site in sites:
            self.add(site)

    def add(self, site: str) -> int:
        """The id of a new node of a site; what a node of that site knew before is gone."""
        self.remove(site)
        node_id = next(self._nodes)
        self._contexts[node_id] = Context(self._run.run_id, node_id, {SITE_NAME: site}, RecordDict(), {})
        return node_id

    def remove(self, site: str) -> None:
        """Takes a site's node away, as if it were switched off."""
        self._contexts = {i: known for i, known in self._contexts.items() if known.node_config[SITE_NAME] != site}

    def set_run(self, run: Run) -> None:
        """Sets the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The ids of the nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The ids of the messages, each of which is answered when this returns."""
        return [self._pushed(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to messages, in their order; each can be had once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies to messages, in their order."""
        return self.pull_messages(self.push_messages(messages))

    def _pushed(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = name = f"message-{next(self._ids)}"
        reply = self._answer(message)
        reply.metadata.__dict__["_message_id"] = f"reply-{name}"
        self._replies[name] = reply
        return name

    def _answer(self, message: Message) -> Message:
        context = self._contexts.get(message.metadata.dst_node_id)
        if context is None:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "no such node"), reply_to=message)
        try:
            return self.app(message, context)
        except Exception as error:  # whatever an app raises is its node's failure, not the run's
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
