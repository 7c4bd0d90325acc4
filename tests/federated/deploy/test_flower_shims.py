"""Tests of the changes to Flower's SuperNode."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from nosology.federated.deploy.flower_shims import reply_before_next_message


def message(name: str) -> SimpleNamespace:
    return SimpleNamespace(metadata=SimpleNamespace(message_id=name))


def node(sent: list[str]) -> SimpleNamespace:
    """The two steps of Flower's SuperNode: take a message; send the ready replies, at least one."""

    def pull(*, receive, state):
        result, _ = receive()
        state.store_message(result)

    def push(*, state):
        replies = [name for name in state.msg_store if name in state.answered] or state.late[:1]
        del state.late[: len(replies) if replies == state.late[:1] else 0]
        sent.extend(replies)
        state.delete_messages(message_ids=replies)

    return SimpleNamespace(_pull_and_store_message=pull, _push_messages=push)


@pytest.mark.parametrize("patched", [False, True])
def test_reply_is_sent_before_the_next_message(patched):
    sent: list[str] = []
    program, state = node(sent), InMemoryNodeState.__new__(InMemoryNodeState)
    state.__init__(*[None] * (InMemoryNodeState.__init__.__code__.co_argcount - 1))
    state.answered, state.late = {"stopped"}, ["next"]
    state.store_message(message("stopped"))  # its run was stopped while it arrived
    if patched:
        reply_before_next_message(program)
    program._pull_and_store_message(receive=lambda: (message("next"), None), state=state)
    program._push_messages(state=state)
    # without the patch the server waits for the other reply
    assert sent == (["stopped", "next"] if patched else ["stopped"])
