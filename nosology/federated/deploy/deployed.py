"""The ServerApp as a SuperLink starts it: the one of the simulation, on a grid that takes what the simulation's takes.

When the SuperLink is killed, this process must not wait for it: every round is on disk, and another process may go on
with them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run

from nosology.federated.deploy import server_app
from nosology.federated.deploy.flower_process import PAUSE, end_with_parent
from nosology.federated.deploy.wire import packed, unpacked

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation in the process that a SuperLink has made for it."""
    end_with_parent(grace=0)
    names = json.loads(str(context.run_config["sites"]))
    server_app.main(DeployedGrid(grid, {int(node): name for node, name in names.items()}), context)


class DeployedGrid(Grid):
    """A SuperLink's grid, with messages as parcels; it takes what the simulation's grid takes, no messages too.

    names: the site that each node's key belongs to.
    """

    def __init__(self, grid: Grid, names: dict[int, str]):
        self._grid, self.names = grid, names

    def set_run(self, run: Run) -> None:
        """Sets the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The ids of the nodes that are there."""
        return list(self._grid.get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The ids of messages, of none too."""
        messages = list(messages)
        contents = {id(message.content): message.content for message in messages}  # sites are often sent the same
        parcels = {key: packed(content) for key, content in contents.items()}
        sent = []
        for message in messages:
            about, parcel = message.metadata, parcels[id(message.content)]
            sent.append(Message(parcel, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id))
        return list(self._grid.push_messages(sent)) if sent else []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to messages that have come."""
        replies = list(self._grid.pull_messages(list(message_ids)))
        for reply in replies:
            if reply.has_content():
                reply.content = unpacked(reply.content)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies to messages that came in time."""
        until = None if timeout is None else time.monotonic() + timeout
        waiting, replies = set(self.push_messages(messages)), []
        while waiting:
            came = self.pull_messages(waiting)
            replies += came
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            if waiting and until is not None and time.monotonic() > until:
                break
            if waiting:
                time.sleep(PAUSE)
        return replies
