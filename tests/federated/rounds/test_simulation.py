"""Tests of the in-process Flower grid."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from nosology.federated.rounds.simulation import SITE_NAME, InProcessGrid


def counting() -> ClientApp:
    """An app that counts its messages in its node's state, and fails if the message says so."""
    app = ClientApp()

    @app.query("count")
    def count(message: Message, context: Context) -> Message:
        if "fail" in message.content:
            raise ValueError("failed on request")
        seen = context.state.get("seen", ConfigRecord({"n": 0}))["n"] + 1
        context.state["seen"] = ConfigRecord({"n": seen})
        reply = ConfigRecord({"n": seen, "site": context.node_config[SITE_NAME]})
        return Message(RecordDict({"reply": reply}), reply_to=message)

    return app


def ask(grid: InProcessGrid, nodes, *, fail=()) -> list[Message]:
    def make_content(node):
        return RecordDict({"fail": ConfigRecord()} if node in fail else {})

    return grid.send_and_receive([Message(make_content(node), node, "query.count") for node in nodes], timeout=1.0)


def test_each_node_keeps_its_own_state():
    grid = InProcessGrid(counting(), ["north", "south"])
    north, south = grid.get_node_ids()
    ask(grid, [north])
    replies = [reply.content["reply"] for reply in ask(grid, [south, north])]
    assert [(item["site"], item["n"]) for item in replies] == [("south", 1), ("north", 2)]


def test_exception_of_an_app_is_an_error_reply():
    grid = InProcessGrid(counting(), ["north", "south"])
    north, south = grid.get_node_ids()
    failed, fine = ask(grid, [north, south], fail=[north])
    assert failed.error.code == 2 and failed.error.reason == "<class 'ValueError'>:<'failed on request'>"  # as Flower's
    assert failed.metadata.src_node_id == north and fine.has_content()


def test_unhandled_message_type_is_an_error_reply():
    grid = InProcessGrid(ClientApp(), ["north"])
    (reply,) = ask(grid, grid.get_node_ids())
    assert reply.has_error()


def test_removed_node_is_unreachable_and_a_new_one_has_no_state():
    grid = InProcessGrid(counting(), ["north"])
    (node,) = grid.get_node_ids()
    ask(grid, [node])
    grid.remove("north")
    (reply,) = ask(grid, [node])
    assert reply.error.code == 5 and grid.get_node_ids() == []
    again = grid.add("north")
    assert again != node and ask(grid, [again])[0].content["reply"]["n"] == 1


def test_message_that_cannot_be_delivered_is_not_waited_for():
    class RefusingGrid(InProcessGrid):
        def push_messages(self, messages):
            return ["", *super().push_messages(list(messages)[1:])]

        def wait(self, deadline):
            raise AssertionError("it waits")

    grid = RefusingGrid(counting(), ["north", "south"])
    north, south = grid.get_node_ids()
    assert [reply.metadata.src_node_id for reply in ask(grid, [north, south])] == [south]


def test_ids_are_deterministic():
    seen = []
    for _ in range(2):
        grid = InProcessGrid(counting(), ["a", "b", "c"])
        replies = ask(grid, grid.get_node_ids())
        seen.append([(r.metadata.src_node_id, r.metadata.message_id, r.metadata.reply_to_message_id) for r in replies])
    assert seen[0] == seen[1]


def test_reply_can_be_pulled_once():
    grid = InProcessGrid(counting(), ["north"])
    ids = grid.push_messages([Message(RecordDict(), grid.get_node_ids()[0], "query.count")])
    assert len(grid.pull_messages(ids)) == 1 and grid.pull_messages(ids) == []
