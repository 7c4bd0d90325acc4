"""The ServerApp of a deployed federation. Its run config has the recipe (JSON), the bundle folder and site names."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from logging import INFO
from pathlib import Path

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from pydantic import ValidationError

from nosology.core import ConfigError, FederationError, OutputError
from nosology.federated.deploy import flower_shims
from nosology.federated.deploy.federation_status import ENVIRONMENT, Traffic, make_status, write_status
from nosology.federated.deploy.flower_process import end_with_parent
from nosology.federated.deploy.flower_shims import log
from nosology.federated.federation_settings import read_federated_recipe
from nosology.federated.rounds.federation_modes import make_federation
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import pack_message, unpack_message
from nosology.federated.rounds.participants import SiteGrid

EXPIRED = "; the certificate of the server has expired: renew it, restart the server, and start the run again"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation. An exception tells Flower that the run has failed.

    If the SuperLink is killed, this process ends at once: every round is saved, and another process may continue.
    """
    end_with_parent(grace=0)
    flower_shims.change_server_app()
    recipe, out = (str(context.run_config.get(key) or "") for key in ("recipe", "out"))
    if not recipe or not out:
        raise ConfigError("the run config must have recipe (JSON) and out (the bundle folder)")
    try:
        checked = read_federated_recipe(json.loads(recipe))
    except ValidationError as error:
        raise ConfigError(f"the recipe of the run is invalid: {error.errors()[0]['msg']}") from error
    names = {int(node): name for node, name in json.loads(str(context.run_config["sites"])).items()}
    sites = DeployedGrid(grid, names, float(str(context.run_config.get("certificate-end") or 0)))
    federation = make_federation(sites, checked, lambda line: report(line, federation, sites))
    try:
        bundle = federation.run(out).bundle
    except FederationError as error:
        report(f"the run has failed: {error}", federation, sites)
        raise FederationError(f"{error}{EXPIRED if sites.has_expired() else ''}") from error
    labels = len(bundle.model.labels)
    kind, threshold = bundle.model.kind, bundle.decision.threshold
    report(f"{out}: {kind} coder, {labels} codes, threshold {threshold:.3f}", federation, sites)


def report(line: str, federation: FlowerFederation, grid: DeployedGrid) -> None:
    """Logs a line of a run, and writes the status of the run if the server has said where."""
    log(INFO, "%s", line)
    if folder := os.environ.get(ENVIRONMENT):
        history = federation.checkpoint.history if hasattr(federation, "checkpoint") else []
        online, rounds = federation.participants.online().values(), federation.rounds
        by_node = {f"node {node}": name for node, name in grid.names.items()}
        refused = {by_node.get(site, site): reason for site, reason in federation.refused.items()}
        status = make_status(
            line, rounds, history, grid.names.values(), online, refused, federation.strategy.refused, grid.traffic
        )
        with contextlib.suppress(OSError, OutputError):  # of no use to the run
            write_status(status, Path(folder))


class DeployedGrid(SiteGrid):
    """The grid of a SuperLink, with packed messages. Lists of messages may be empty, which Flower's grid refuses.

    names: site name of each node, by its key. certificate_end: of the server, in seconds since 1970; 0: not known.
    When the certificate has expired and the SuperLink cannot be reached, no site is online and no reply comes.
    """

    def __init__(self, grid: Grid, names: dict[int, str], certificate_end: float = 0.0):
        self._grid, self.names, self.certificate_end = grid, names, certificate_end
        self.traffic = Traffic()

    def has_expired(self) -> bool:
        """Whether the certificate of the server has expired."""
        return 0 < self.certificate_end <= time.time()

    @contextlib.contextmanager
    def _unless_expired(self) -> Iterator[None]:
        """Ignores a lost connection to the SuperLink if the certificate has expired."""
        try:
            yield
        except httpx.TransportError:
            if not self.has_expired():
                raise

    def get_node_ids(self) -> list[int]:
        """The ids of the nodes that are online."""
        with self._unless_expired():
            return list(self._grid.get_node_ids())
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The ids of the messages."""
        messages = list(messages)
        contents = {id(message.content): message.content for message in messages}  # many sites get the same content
        packed = {key: pack_message(content) for key, content in contents.items()}
        sent = []
        for message in messages:
            meta, content = message.metadata, packed[id(message.content)]
            self.traffic.record(self.names.get(meta.dst_node_id, "?"), sent=content_size(content))
            sent.append(Message(content, meta.dst_node_id, meta.message_type, ttl=meta.ttl, group_id=meta.group_id))
        with self._unless_expired():
            return list(self._grid.push_messages(sent)) if sent else []
        return []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have come."""
        replies: list[Message] = []
        with self._unless_expired():
            replies = list(self._grid.pull_messages(list(message_ids)))
        for reply in replies:
            if reply.has_content():
                size = content_size(reply.content)
                self.traffic.record(self.names.get(reply.metadata.src_node_id, "?"), received=size)
                reply.content = unpack_message(reply.content)
        return replies


def content_size(content: RecordDict) -> int:
    """The bytes of the arrays of a packed message."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())
