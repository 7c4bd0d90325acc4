"""What a SuperNode of ours does otherwise than Flower's."""

from types import SimpleNamespace

import pytest
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from nosology.federated.deploy.flower_process import answer_each_message


def message(name: str) -> SimpleNamespace:
    return SimpleNamespace(metadata=SimpleNamespace(message_id=name))


def node(sent: list[str]) -> SimpleNamespace:
    """A SuperNode's two steps as Flower has them: take a message in; send the replies that are there, one at least."""

    def pull(*, receive, state):
        found, _ = receive()
        state.store_message(found)

    def push(*, state):
        replies = [name for name in state.msg_store if name in state.answered] or state.late[:1]
        del state.late[: len(replies) if replies == state.late[:1] else 0]
        sent.extend(replies)
        state.delete_messages(message_ids=replies)

    return SimpleNamespace(_pull_and_store_message=pull, _push_messages=push)


@pytest.mark.parametrize("mended", [False, True])
def test_the_late_reply_to_a_stopped_run_does_not_take_the_turn_of_the_next_message(mended):
    sent: list[str] = []
    program, state = node(sent), InMemoryNodeState.__new__(InMemoryNodeState)
    state.__init__(*[None] * (InMemoryNodeState.__init__.__code__.co_argcount - 1))
    state.answered, state.late = {"stopped"}, ["next"]
    state.store_message(message("stopped"))  # its run ended while it came in, so nobody asked for its reply
    if mended:
        answer_each_message(program)
    program._pull_and_store_message(receive=lambda: (message("next"), None), state=state)
    program._push_messages(state=state)
    assert sent == (["stopped", "next"] if mended else ["stopped"])  # without, the server waits for the other
