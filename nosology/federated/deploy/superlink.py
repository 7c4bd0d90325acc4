"""The server's machine: a SuperLink over TLS that accepts only known keys, and a client to control its runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from nosology.core import ConfigError, FederationError
from nosology.federated.deploy.credentials import ServerCredentials, key_fingerprint, read_certificate, write_private
from nosology.federated.deploy.flower_process import FlowerProcess, wait_until
from nosology.federated.deploy.flower_shims import (
    Fab,
    FlowerError,
    NodeStatus,
    RunStatus,
    build_fab_from_disk,
    control,
    control_client,
    fab_to_proto,
    user_config_to_proto,
)
from nosology.federated.deploy.server_address import check_address, local_address
from nosology.federated.deploy.server_tasks import ServerAppExecutor

APP = Path(__file__).parent / "flower_app"
START_TIMEOUT = 60.0  # seconds for the SuperLink to start
RECONNECT_TIMEOUT = 5.0  # seconds for a server to answer again
ANSI = re.compile(r"\x1b\[[0-9;]*m")
HIDDEN_LINES = ("Start `flwr-serverapp` process", "Successfully installed ", "SSL/TLS handshake error")  # of no use

Report = Callable[[str], None]


class ControlClient:
    """A client of the control API of a SuperLink."""

    def __init__(self, address: str, root: Path):
        self.address = check_address(address)
        self._client = control_client(address, read_certificate(root))

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def is_up(self) -> bool:
        """Whether the SuperLink answers."""
        try:
            self._client.ListRuns(control.ListRunsRequest(limit=1))
        except (httpx.TransportError, httpx.HTTPStatusError):
            return False
        return True

    def register(self, sites: dict[str, bytes]) -> dict[str, int]:
        """The node of each site; registers these public keys and unregisters all others."""
        with self._errors("register the sites"):
            known = {
                bytes(node.public_key): node for node in self._client.ListNodes(control.ListNodesRequest()).nodes_info
            }
            nodes = {}
            for site, key in sites.items():
                node = known.pop(key, None)
                if node is None:
                    nodes[site] = self._client.RegisterNode(
                        control.RegisterNodeRequest(public_key=key, name=site)
                    ).node_id
                elif node.status == NodeStatus.UNREGISTERED:  # Flower registers a key only once
                    raise FederationError(f"the key of {site} was removed before: the site needs a new one")
                elif node.name != site:
                    raise FederationError(f"the key of {site} is registered for {node.name}: a key keeps its name")
                else:
                    nodes[site] = node.node_id
            for node in known.values():
                if node.status != NodeStatus.UNREGISTERED:
                    self._client.UnregisterNode(control.UnregisterNodeRequest(node_id=node.node_id))
            return nodes

    def names(self) -> dict[int, str]:
        """The site of each registered node."""
        with self._errors("list its sites"):
            nodes = self._client.ListNodes(control.ListNodesRequest()).nodes_info
            return {node.node_id: node.name for node in nodes if node.status != NodeStatus.UNREGISTERED}

    def start(self, config: Mapping[str, str], app: Path = APP) -> int:
        """The id of a new run of an app folder."""
        packed = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(packed).hexdigest(), packed, {})
        request = control.StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto({**config}))
        with self._errors("start a run"):
            return self._client.StartRun(request).run_id

    def status(self, run: int) -> RunStatus:
        """The status of a run."""
        with self._errors("return the status of the run"):
            return self._client.ListRuns(control.ListRunsRequest(run_id=run)).run_dict[run].status

    def has_finished(self, run: int) -> bool:
        """Whether a run has ended, with or without success."""
        return self.status(run).status == "finished"

    def logs(self, run: int) -> Iterator[str]:
        """The lines of the log of a run, until it ends; reconnects if the connection breaks."""
        rest, seen = "", 0.0
        while True:
            try:
                for part in self._client.StreamLogs(control.StreamLogsRequest(run_id=run, after_timestamp=seen)):
                    *lines, rest = (rest + part.log_output).split("\n")
                    seen = max(seen, part.latest_timestamp)
                    yield from lines
                break
            except (httpx.HTTPError, ValueError) as error:  # ValueError: the stream broke within a message
                if not wait_until(lambda: self.is_up, RECONNECT_TIMEOUT, pause=1.0):
                    raise FederationError(
                        f"the connection to {self.address} was lost in run {run}: start the run again when the server"
                        " is back, and it continues after its last saved round"
                    ) from error
                if self.has_finished(run):
                    break
        if rest:
            yield rest

    def stop(self, run: int) -> None:
        """Stops a run."""
        with self._errors("stop the run"):
            self._client.StopRun(control.StopRunRequest(run_id=run))

    def stop_unfinished(self) -> int:
        """The number of unfinished runs, all of which are stopped."""
        with self._errors("list its runs"):
            runs = self._client.ListRuns(control.ListRunsRequest()).run_dict
        unfinished = [run for run, info in runs.items() if info.status.status != "finished"]
        for run in unfinished:
            self.stop(run)
        return len(unfinished)

    @contextlib.contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Turns HTTP errors into a FederationError of one sentence."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND and not error.response.content:
                raise FederationError(
                    f"{self.address} does not {action} over the network: run the command on the server's machine, with"
                    " --server localhost:PORT"
                ) from error
            flower_error = FlowerError.from_json(error.response.text)
            reason = flower_error.message if flower_error else f"HTTP status {error.response.status_code}"
            raise FederationError(f"{self.address} did not {action}: {reason}") from error
        except httpx.HTTPError as error:
            raise FederationError(f"{self.address} did not {action}: {connection_error(error)}") from error


def connection_error(error: httpx.HTTPError) -> str:
    """Why a connection failed, in a few words."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = text.split("certificate verify failed:")[-1].split("(_ssl")[0].strip()
        if "expired" in reason:
            return "its certificate has expired: renew it with `nosology federate keys --host` and restart the server"
        return f"its certificate is not signed by the root certificate ({reason})"
    return "nothing answers at this address" if isinstance(error, httpx.ConnectError) else type(error).__name__


@dataclass
class SuperLinkServer:
    """A SuperLink in a child process. Its state is in a folder and survives restarts. `run_next` starts its runs."""

    credentials: ServerCredentials
    state: Path
    port: int
    listen: str = "0.0.0.0"

    def __enter__(self) -> SuperLinkServer:
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)  # the database has the messages of sites
        files = self.credentials.check()
        host = self.local_address.rpartition(":")[0].strip("[]")
        if not files.is_valid_for(host):
            raise ConfigError(
                f"--listen must be 0.0.0.0 or an address of the certificate of the server; got {host}: create one with"
                f" `nosology federate keys --host {host}` and all other hosts"
            )
        arguments = ["--ssl-ca-certfile", str(files.root.resolve()), "--ssl-keyfile", str(files.key.resolve())]
        arguments += ["--ssl-certfile", str(files.certificate.resolve()), "--enable-supernode-auth"]
        arguments += ["--host", self.listen, "--port", str(self.port), "--isolation", "process"]
        arguments += ["--database", str((self.state / "superlink.db").resolve())]
        arguments += ["--disable-runtime-dependency-installation"]
        home, log = self.state.resolve() / "flower", self.state / "superlink.log"
        self._private = tempfile.TemporaryDirectory(prefix="nosology-server-")
        folder, secret = Path(self._private.name), secrets.token_bytes(32)
        write_private(folder / "secret", secret)
        arguments += ["--superexec-auth-secret-file", str(folder / "secret")]
        self._process = FlowerProcess("superlink", arguments, home=home, log=log)
        self._executor = ServerAppExecutor(self.local_address, files.root, secret, folder, home, log)
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.close()
        self._process.stop()
        self._private.cleanup()

    def run_next(self) -> bool:
        """Whether there was a run to start; call it several times a second."""
        return self._executor.run_next()

    @property
    def ended(self) -> bool:
        """Whether the SuperLink has ended by itself."""
        return self._process.ended

    @property
    def local_address(self) -> str:
        """The address of the SuperLink on this machine."""
        return local_address(self.listen, self.port)

    def register_sites(self, sites: dict[str, bytes], report: Report) -> None:
        """Accepts the sites with these public keys (PEM, by name) and no others, once the SuperLink is up."""
        with ControlClient(self.local_address, self.credentials.root) as client:
            wait_until(lambda: client.is_up or self.ended, START_TIMEOUT)
            if self.ended or not client.is_up:
                raise FederationError(
                    f"the SuperLink did not start on port {self.port}; its log, {self._process.log}, ends with:"
                    f" {self._process.log_tail()}"
                )
            if stopped := client.stop_unfinished():
                report(f"{stopped} run(s) were active when the server ended: start them again to continue")
            client.register(sites)
        for site, key in sites.items():
            report(f"site {site}: key {key_fingerprint(key)}")


def follow_run(server: str, root: Path, config: Mapping[str, str], report: Report) -> None:
    """Starts a run on a server, reports its log, and returns when it has completed; Ctrl-C stops the run.

    config: the run config of the ServerApp. Flower also calls a failed run finished, so the end is checked.
    """
    with ControlClient(server, root) as client:
        run = client.start({**config, "sites": json.dumps(client.names())})
        report(f"run {run} on {server}")
        try:
            for line in _clean_log(client.logs(run)):
                report(line)
            wait_until(lambda: client.has_finished(run), 30.0, pause=0.5)
        except KeyboardInterrupt:
            client.stop(run)
            raise
        status = client.status(run)
        if (status.status, status.sub_status) != ("finished", "completed"):
            details = " ".join(status.details.removeprefix("ServerApp failed with exception: ").split())
            end = status.sub_status or status.status
            raise FederationError(f"run {run} did not complete ({end}): {details or 'no reason was given'}")


def _clean_log(lines: Iterable[str]) -> Iterator[str]:
    """The log without Flower's colors, prefixes and tracebacks."""
    for line in lines:
        text = re.sub(r"^\s*(INFO|WARNING|ERROR|DEBUG)\s*:\s*", "", ANSI.sub("", line)).rstrip()
        if text == "ServerApp raised an exception":  # a traceback follows; the status of the run has the reason
            break
        if text and not text.startswith(HIDDEN_LINES):
            yield text
