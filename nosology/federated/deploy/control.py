"""What an operator asks of a SuperLink: which keys it knows, which runs it has; start one, follow it, stop it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from nosology.core import ConfigError, DataError, FederationError
from nosology.federated.deploy.processes import wait_until

APP = Path(__file__).parent / "flower_app"
PATIENCE = 5.0  # seconds for a server to answer again


@dataclass(frozen=True)
class RunStatus:
    """How a run stands."""

    status: str  # pending, starting, running, finished
    end: str  # of a finished run: completed, failed, stopped
    details: str  # why it failed

    @property
    def finished(self) -> bool:
        """Whether the run has ended, in whatever way."""
        return self.status == "finished"

    @property
    def completed(self) -> bool:
        """Whether the run did what it was to do."""
        return self.finished and self.end == "completed"


def check_address(address: str) -> str:
    """The address, if it is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
        raise ConfigError(f"--server must be HOST:PORT; got {address!r}")
    return address


def read_root(path: Path) -> bytes:
    """The authority's certificate."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the root certificate {path}: {error.strerror}") from error


class Control:
    """A SuperLink, seen by its operator."""

    def __init__(self, address: str, root: Path):
        self.address = check_address(address)
        try:
            self._client = ControlHttpClient.from_server_address(
                address, False, read_root(root), [RuntimeVersionHttpInterceptor("nosology")]
            )
        except (OSError, ValueError) as error:
            raise DataError(f"{root} is not a certificate") from error

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def answers(self) -> bool:
        """Whether the SuperLink is up."""
        try:
            self._client.ListRuns(ListRunsRequest(limit=1))
        except (httpx.TransportError, httpx.HTTPStatusError):
            return False
        return True

    def register(self, sites: dict[str, bytes]) -> dict[str, int]:
        """The node of each site, by its public key; the SuperLink then knows these keys and no others."""
        with self._asking("register the sites"):
            known = {bytes(node.public_key): node for node in self._client.ListNodes(ListNodesRequest()).nodes_info}
            nodes = {}
            for site, key in sites.items():
                node = known.pop(key, None)
                if node is None:
                    nodes[site] = self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=site)).node_id
                elif node.status == NodeStatus.UNREGISTERED:  # Flower takes a key once
                    raise FederationError(f"the key of {site} was taken out before: it needs a new one")
                elif node.name != site:
                    raise FederationError(f"the key of {site} is registered as {node.name}'s: a key keeps its name")
                else:
                    nodes[site] = node.node_id
            for node in known.values():
                if node.status == NodeStatus.UNREGISTERED:
                    continue
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
            return nodes

    def names(self) -> dict[int, str]:
        """The site of each node: the one whose key it has."""
        with self._asking("name its sites"):
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
            return {node.node_id: node.name for node in nodes if node.status != NodeStatus.UNREGISTERED}

    def start(self, config: dict[str, str], app: Path = APP) -> int:
        """The id of a new run of an app's folder."""
        packed = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(packed).hexdigest(), packed, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(config))
        with self._asking("start a run"):
            return self._client.StartRun(request).run_id

    def status(self, run: int) -> RunStatus:
        """How a run stands."""
        with self._asking("tell how the run stands"):
            found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
            return RunStatus(found.status, found.sub_status, found.details)

    def logs(self, run: int) -> Iterator[str]:
        """The lines of a run's log, until it ends; a connection that breaks is made anew."""
        rest, seen = "", 0.0
        while True:
            try:
                for part in self._client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=seen)):
                    *lines, rest = (rest + part.log_output).split("\n")
                    seen = max(seen, part.latest_timestamp)
                    yield from lines
                break
            except (httpx.HTTPError, ValueError) as error:  # ValueError: the stream broke within a message
                if not wait_until(lambda: self.answers, PATIENCE, pause=1.0):
                    raise FederationError(
                        f"the connection to {self.address} was lost in run {run}: start the run again when the server"
                        " is back, and it goes on from its last saved round"
                    ) from error
                if self.status(run).finished:
                    break
        if rest:
            yield rest

    def stop(self, run: int) -> None:
        """Stops a run."""
        with self._asking("stop the run"):
            self._client.StopRun(StopRunRequest(run_id=run))

    def stop_unfinished(self) -> int:
        """How many runs were under way; none is any more."""
        with self._asking("list its runs"):
            runs = self._client.ListRuns(ListRunsRequest()).run_dict
        unfinished = [run for run, found in runs.items() if found.status.status != "finished"]
        for run in unfinished:
            self.stop(run)
        return len(unfinished)

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turns what can go wrong on the way into one sentence."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND and not error.response.content:
                raise FederationError(
                    f"{self.address} does not {what} for a stranger: do it on the server's machine, by localhost"
                ) from error
            told = FlowerError.from_json(error.response.text)
            reason = told.message if told else f"HTTP status {error.response.status_code}"
            raise FederationError(f"{self.address} did not {what}: {reason}") from error
        except httpx.HTTPError as error:
            raise FederationError(f"{self.address} did not {what}: {reason_of(error)}") from error


def reason_of(error: httpx.HTTPError) -> str:
    """Why a connection failed, in a few words."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = text.split("certificate verify failed:")[-1].split("(_ssl")[0].strip()
        return f"its certificate is not one that the root certificate vouches for ({reason})"
    return "nobody answers there" if isinstance(error, httpx.ConnectError) else type(error).__name__
