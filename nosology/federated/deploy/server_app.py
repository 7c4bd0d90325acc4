"""The ServerApp of a deployed federation. Its run config has the recipe (JSON), the bundle folder and site names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from logging import INFO

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from pydantic import ValidationError

from nosology.core import ConfigError
from nosology.federated.deploy.flower_process import end_with_parent
from nosology.federated.deploy.flower_shims import log
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.messages import pack_message, unpack_message
from nosology.federated.rounds.participants import SiteGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the federation. An exception tells Flower that the run has failed.

    If the SuperLink is killed, this process ends at once: every round is saved, and another process may continue.
    """
    end_with_parent(grace=0)
    recipe, out = (str(context.run_config.get(key) or "") for key in ("recipe", "out"))
    if not recipe or not out:
        raise ConfigError("the run config must have recipe (JSON) and out (the bundle folder)")
    try:
        checked = FederatedHeadsRecipe.model_validate_json(recipe)
    except ValidationError as error:
        raise ConfigError(f"the recipe of the run must be of kind heads: {error.errors()[0]['msg']}") from error
    names = {int(node): name for node, name in json.loads(str(context.run_config["sites"])).items()}
    bundle = FlowerFederation(DeployedGrid(grid, names), checked, lambda line: log(INFO, "%s", line)).run(out).bundle
    labels = len(bundle.model.labels)
    log(INFO, "%s: heads coder, %d codes, threshold %.3f", out, labels, bundle.decision.threshold)


class DeployedGrid(SiteGrid):
    """The grid of a SuperLink, with packed messages. Lists of messages may be empty, which Flower's grid refuses.

    names: site name of each node, by its key.
    """

    def __init__(self, grid: Grid, names: dict[int, str]):
        self._grid, self.names = grid, names

    def get_node_ids(self) -> list[int]:
        """The ids of the nodes that are online."""
        return list(self._grid.get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The ids of the messages."""
        messages = list(messages)
        contents = {id(message.content): message.content for message in messages}  # many sites get the same content
        packed = {key: pack_message(content) for key, content in contents.items()}
        sent = []
        for message in messages:
            meta, content = message.metadata, packed[id(message.content)]
            sent.append(Message(content, meta.dst_node_id, meta.message_type, ttl=meta.ttl, group_id=meta.group_id))
        return list(self._grid.push_messages(sent)) if sent else []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have come."""
        replies = list(self._grid.pull_messages(list(message_ids)))
        for reply in replies:
            if reply.has_content():
                reply.content = unpack_message(reply.content)
        return replies
