"""The ServerApp as a SuperLink starts it: the one of the simulation, on a grid that takes what the simulation's takes.

Flower's HTTP grid says that it takes any iterable of messages, but walks through it twice, and a SuperLink answers an
empty one with an error; and it looks for replies every three seconds only. When the SuperLink is killed, this process
must not wait for it: every round is on disk, and another process may go on with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from nosology.federated import server_app
from nosology.federated.flower_process import end_with_parent, shorter_pauses
from nosology.federated.wire import packed, unpacked

app = ServerApp()
http_grid = import_module("flwr.superlink.grid.http_grid")
_push, _pull = http_grid.HttpGrid.push_messages, http_grid.HttpGrid.pull_messages


def push_messages(grid: http_grid.HttpGrid, messages: Iterable[Message]) -> Iterable[str]:
    """The ids of messages, of none too, and of messages that can be walked through once; they go as parcels."""
    messages = list(messages)
    contents = {id(message.content): message.content for message in messages}  # several sites are often sent the same
    parcels = {key: packed(content) for key, content in contents.items()}
    sent = []
    for message in messages:
        about, parcel = message.metadata, parcels[id(message.content)]
        sent.append(Message(parcel, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id))
    return _push(grid, sent) if sent else []


def pull_messages(grid: http_grid.HttpGrid, message_ids: Iterable[str]) -> list[Message]:
    """The replies to messages that have come, unpacked."""
    replies = list(_pull(grid, message_ids))
    for reply in replies:
        if reply.has_content():
            reply.content = unpacked(reply.content)
    return replies


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation in the process that a SuperLink has made for it."""
    end_with_parent(grace=0)
    http_grid.HttpGrid.push_messages = push_messages
    http_grid.HttpGrid.pull_messages = pull_messages
    shorter_pauses(http_grid)
    server_app.main(grid, context)
