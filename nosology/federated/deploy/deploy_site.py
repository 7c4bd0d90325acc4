"""A hospital's side of a deployed federation: a SuperNode over TLS with the site's key, and the executor beside it."""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from nosology.core import DataError, FederationError
from nosology.core.files import atomic_file
from nosology.federated.deploy.control import check_address, read_root, reason_of
from nosology.federated.deploy.credentials import key_fingerprint, public_bytes, read_site_key
from nosology.federated.deploy.executor import Executor
from nosology.federated.deploy.processes import Child, free_port
from nosology.federated.rounds.folder_lock import held

PAUSE = 0.25  # seconds between two looks for work
AGAIN = 5.0  # seconds until a server that did not answer is tried again

Say = Callable[[str], None]


@dataclass(frozen=True)
class SitePapers:
    """What a site needs to be let in."""

    name: str
    server: str  # HOST:PORT
    root: Path  # the authority's certificate
    key: Path  # the site's private key

    @property
    def node_file(self) -> Path:
        """Where the site remembers its number, beside its key."""
        return self.key.with_suffix(".node")


def serve_site(papers: SitePapers, app: ClientApp, node_config: dict[str, str], log: Path, say: Say = print) -> None:
    """Takes part in every run of the server until it is interrupted; comes back by itself when the server does.

    node_config: what the app finds in its Context. log: where the SuperNode writes.
    """
    entrance = Entrance(papers)
    alone = held(papers.key.with_suffix(".lock"), f"another process takes part with {papers.key}")
    with alone, tempfile.TemporaryDirectory(prefix="nosology-site-") as folder:
        home = Path(folder)
        while True:
            node = _admitted(entrance, say)
            say(f"{papers.name}: connected to {papers.server} as node {node}")
            _serve(papers, app, node_config, home, log)
            say(f"{papers.name}: the connection to {papers.server} has ended; trying again")
            time.sleep(AGAIN)


def _admitted(entrance: Entrance, say: Say) -> int:
    """The site's node, once the server answers."""
    told = False
    while True:
        try:
            return entrance.try_key()
        except httpx.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise FederationError(f"{entrance.papers.server}: {reason_of(error)}") from error
            if not told:
                say(f"{entrance.papers.name}: waiting for {entrance.papers.server} ({reason_of(error)})")
            told = True
            time.sleep(AGAIN)


def _serve(papers: SitePapers, app: ClientApp, node_config: dict[str, str], home: Path, log: Path) -> None:
    """Works until the SuperNode ends."""
    port, secret = free_port(), secrets.token_bytes(32)
    secret_file, config_file = home / "secret", home / "node.toml"
    secret_file.write_bytes(secret)
    # a JSON string is a TOML string
    config_file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in node_config.items()))
    arguments = ["--superlink", papers.server, "--root-certificates", str(papers.root.resolve())]
    arguments += ["--auth-supernode-private-key", str(papers.key.resolve()), "--node-config", str(config_file)]
    arguments += ["--isolation", "process", "--superexec-auth-secret-file", str(secret_file)]
    arguments += ["--host", "127.0.0.1", "--port", str(port)]
    child = Child("supernode", arguments, home=home, log=log)
    try:
        with Executor(app, f"127.0.0.1:{port}", secret) as executor:
            while not child.ended:
                if not executor.work():
                    time.sleep(PAUSE)
    finally:
        child.stop()


class Entrance:
    """The server's door for sites: whether it lets this one in."""

    def __init__(self, papers: SitePapers):
        check_address(papers.server)
        self.papers = papers
        self._private = read_site_key(papers.key)
        self._public = public_bytes(self._private.public_key())
        self._root = read_root(papers.root)

    def try_key(self) -> int:
        """The site's node; the server is asked once and told that the site is away again.

        A site that was killed is still there for the server, which lets no second one in under its key; so the node of
        the last time is signed off first.
        """
        known = [RuntimeVersionHttpInterceptor(component_name="nosology")]
        signing = NodeAuthHttpInterceptor(self._private, self._private.public_key())
        try:
            client = FleetHttpClient.from_server_address(self.papers.server, False, self._root, [*known, signing])
        except (OSError, ValueError) as error:
            raise DataError(f"{self.papers.root} is not a certificate") from error
        with client:
            last = self._last_node()
            if last is not None:
                with contextlib.suppress(httpx.HTTPStatusError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=last))
            request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            try:
                node = client.ActivateNode(request).node_id
            except httpx.HTTPStatusError as error:
                raise self._refused(error) from error
            with atomic_file(self.papers.node_file) as path:
                path.write_text(json.dumps({"node": node}), encoding="utf-8")
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
            return node

    def _refused(self, error: httpx.HTTPStatusError) -> FederationError:
        papers = self.papers
        if error.response.status_code not in (httpx.codes.UNAUTHORIZED, httpx.codes.PRECONDITION_FAILED):
            return FederationError(f"{papers.server} answered with HTTP status {error.response.status_code}")
        return FederationError(
            f"{papers.server} refuses the key of {papers.name} (fingerprint {key_fingerprint(self._public)}): it is not"
            " registered there, or another process uses it, or the clocks differ"
        )

    def _last_node(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(self.papers.node_file.read_text(encoding="utf-8"))["node"])
        return None
