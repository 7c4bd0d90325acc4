"""Tests of what a deployment changes in Flower. Each shows Flower without the change: it fails once that is mended."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto import control_pb2
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.superexec.executor import ExecutionSpec, SubprocessExecutor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink import extensions
from flwr.superlink.main import create_app
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from starlette.middleware import Middleware

import nosology
from nosology.core import ConfigError
from nosology.federated.deploy import flower_shims
from nosology.federated.deploy.flower_shims import (
    HEARTBEAT,
    PAUSE,
    TaskType,
    check_flower_version,
    give_up_stalled_uploads,
    reply_before_next_message,
    server_app_command,
    shorten_sleep,
)
from nosology.federated.deploy.localhost_middleware import LocalhostMiddleware
from nosology.federated.rounds import messages, simulation

ROOT = Path(nosology.__file__).parent
PUBLIC = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.exception", "flwr.serverapp.strategy"}
# Outside of deployments: the sender of a simulated message, and parts of Flower's strategies (docs/federation.md).
OTHER_IMPORTS = {
    "federated/rounds/simulation.py": {"flwr.supercore.task_identity"},
    "federated/rounds/strategy.py": {
        "flwr.app.message.message",
        "flwr.app.metadata",
        "flwr.serverapp.strategy.fedopt",
    },
}


def flower_imports(path: Path) -> set[str]:
    """The modules of Flower that a file imports and that are not its public API."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
    return {name for name in modules if name.split(".")[0] == "flwr"} - PUBLIC


def test_private_modules_of_flower_are_imported_in_one_file():
    found = {str(path.relative_to(ROOT)): names for path in ROOT.rglob("*.py") if (names := flower_imports(path))}
    assert found.pop("federated/deploy/flower_shims.py")
    assert found == OTHER_IMPORTS


def test_numbers_of_a_simulation_are_those_of_flower():
    assert messages.UNREACHABLE == ErrorCode.NODE_UNAVAILABLE
    assert messages.APP_RAISED == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert simulation._SERVER_NODE == SUPERLINK_NODE_ID


def test_version_guard_is_the_range_of_the_package():
    check_flower_version()
    for version in (f"{release}.3" for release in flower_shims.TESTED):
        check_flower_version(version)
    for version in ("1.39.0", "1.42.0", "2.0.0"):
        with pytest.raises(ConfigError, match=f"for a deployment; {version} is installed"):
            check_flower_version(version)
    extras = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (required,) = [name for name in extras["federated"] if name.startswith("flwr")]
    lowest, above = (tuple(map(int, part.split("."))) for part in re.findall(r"[\d.]+", required))
    allowed = [f"{lowest[0]}.{minor}" for minor in range(lowest[1], above[1])]
    assert allowed == list(flower_shims.TESTED)


async def _list_runs(app, client: str) -> int:
    """The HTTP status of a call that lists all runs, from an address."""
    transport = httpx.ASGITransport(app=app, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as caller:
        headers = {"content-type": "application/protobuf", "flwr-package-name": "flwr"}
        headers |= {"flwr-package-version": import_module("importlib.metadata").version("flwr")}
        headers |= {"flwr-component-name": "nosology"}
        content = control_pb2.ListRunsRequest().SerializeToString()
        return (await caller.post("/v1/control/list-runs", content=content, headers=headers)).status_code


@pytest.mark.parametrize("changed", [False, True])
def test_flower_lists_runs_for_everybody(monkeypatch, tmp_path, changed):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert extensions.get_middleware() == ()
    if changed:
        monkeypatch.setattr(extensions, "get_middleware", lambda: (Middleware(LocalhostMiddleware),))
    app = create_app()
    assert asyncio.run(_list_runs(app, "10.0.0.5")) == (404 if changed else 200)
    assert asyncio.run(_list_runs(app, "127.0.0.1")) == 200


@pytest.mark.parametrize("changed", [False, True])
def test_flower_puts_the_token_on_the_command_line(monkeypatch, changed):
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: started.append(command))
    token = "secret of a run"
    if changed:
        started.append(server_app_command("127.0.0.1:1", Path("root.pem"), Path("token"), os.getpid()))
    else:
        spec = ExecutionSpec(
            **dict.fromkeys(ExecutionSpec.__dataclass_fields__)
            | {"task_type": TaskType.SERVER_APP, "token": token, "runtime_api_address": "127.0.0.1:1", "task_id": 1}
        )
        SubprocessExecutor().launch(spec)
    assert (token in started[0]) == (not changed) and started[0][0] == "flwr-serverapp"


class Stop(Exception):
    """Ends the loop of a SuperNode."""


@pytest.mark.parametrize("changed", [False, True])
def test_flower_waits_three_seconds_between_requests(monkeypatch, changed):
    program = import_module("flwr.supernode.start_client_internal")
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        raise Stop

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr(program, "time", program.time)  # restored at the end
    if changed:
        shorten_sleep(program)
    monkeypatch.setattr(program, "register_signal_handlers", lambda **_: None)
    connection = contextlib.nullcontext((1, lambda: None, *[None] * 6))
    monkeypatch.setattr(program, "_init_connection", lambda **_: connection)
    state = InMemoryNodeState(store := ObjectStoreFactory().store())
    factory = SimpleNamespace(state=lambda: state, objectstore_factory=SimpleNamespace(store=lambda: store))
    with pytest.raises(Stop):
        program.start_client_internal(
            state_factory=factory, server_address="", node_config={}, insecure=True, isolation="process"
        )
    assert waited == [PAUSE if changed else 3]


def test_flower_has_no_option_for_pauses_and_heartbeats():
    assert not re.search("heartbeat|interval|poll", _parse_args_run_supernode().format_help())
    for name in ("flwr.supercore.heartbeat", "flwr.supernode.fleet_http_connection"):
        assert import_module(name).HEARTBEAT_DEFAULT_INTERVAL == 30 > HEARTBEAT


@pytest.mark.parametrize("changed", [False, True])
def test_flower_sends_a_late_reply_in_place_of_the_next(monkeypatch, changed):
    """With the change the SuperNode waits for the reply to the message that it has just taken."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    program = import_module("flwr.supernode.start_client_internal")
    state, sent = InMemoryNodeState(store := ObjectStoreFactory().store()), []
    late, taken = (numbered(Message(RecordDict(), 1, "train"), name) for name in ("late", "taken"))
    state.store_message(late)  # its run was stopped while it arrived
    state.store_message(numbered(Message(RecordDict(), reply_to=late), "reply to late"))
    monkeypatch.setattr(program, "_pull_and_store_message", lambda receive, state: state.store_message(receive()[0]))
    monkeypatch.setattr(program, "_push_messages", program._push_messages)

    def sleep(_):  # meanwhile the app replies
        state.store_message(numbered(Message(RecordDict(), reply_to=taken), "reply to taken"))

    monkeypatch.setattr(program, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(store, "get_object_tree", lambda name: None)
    monkeypatch.setattr(program, "push_object_contents_from_iterable", lambda *_, **__: None)
    if changed:
        reply_before_next_message(program)
    program._pull_and_store_message(receive=lambda: (taken, None), state=state)
    send = lambda message, tree, seconds: sent.append(message.metadata.message_id) or (set(), "")  # noqa: E731
    program._push_messages(state=state, object_store=store, send=send, push_object=None)
    assert sent == (["reply to late", "reply to taken"] if changed else ["reply to late"])


def numbered(message: Message, name: str) -> Message:
    """The message with an id."""
    message.metadata.__dict__["_message_id"] = name
    return message


@pytest.mark.parametrize("name", ["flwr.superlink.grid.http_grid", "flwr.supernode.start_client_internal"])
def test_flower_waits_two_hours_for_the_parts_of_a_message(monkeypatch, name):
    """A site that is killed while it uploads its reply leaves some out. With the change a run goes on after a while."""
    program = import_module(name)
    assert inspect.signature(program.pull_objects).parameters["max_time"].default == 7200
    monkeypatch.setattr(program, "pull_objects", program.pull_objects)  # restored at the end
    give_up_stalled_uploads(program, seconds=0.5)
    tries = {"here": 0, "late": 0, "lost": 0}

    def pull(part):
        tries[part] += 1
        if part == "lost" or (part == "late" and tries[part] == 1):
            raise ObjectUnavailableError(part)
        return part.encode()

    with pytest.raises(ObjectPullError, match=r"lost.*no part came for 0\.5 s"):
        program.pull_objects(object_ids=["here", "lost"], pull_object_fn=pull)
    assert tries["lost"] == 2
    monkeypatch.setattr(flower_shims, "time", SimpleNamespace(monotonic=lambda: 0.0))
    assert program.pull_objects(object_ids=["here", "late"], pull_object_fn=pull) == {"here": b"here", "late": b"late"}
