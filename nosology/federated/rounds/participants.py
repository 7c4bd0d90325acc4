"""The sites of a federation: which are online or refused, and requests to them. All waits have a timeout."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from flwr.app import Message, RecordDict

from nosology.core import FederationError
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.rounds import messages
from nosology.federated.rounds.federation_setup import FederationSetup, SiteMetadata, incompatible_sites, too_few_notes
from nosology.federated.rounds.learner import learner_of
from nosology.federated.rounds.personal_layers import mark

PAUSE = 0.5  # seconds between polls


class SiteGrid(ABC):
    """The nodes of the sites: the part of a Flower grid that a federation uses."""

    names: Mapping[int, str] = {}
    timeout: float | None = None  # seconds to wait for sites; None: federation.timeout

    @abstractmethod
    def get_node_ids(self) -> list[int]:
        """The ids of the nodes that are online."""

    @abstractmethod
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The ids of the messages, which are sent."""

    @abstractmethod
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that have come. Each is returned once."""

    def has_expired(self) -> bool:
        """Whether the certificate of the server has expired: no site can connect any more."""
        return False

    def now(self) -> float:
        """The time in seconds."""
        return time.monotonic()

    def wait(self, deadline: float) -> None:
        """Waits until a reply may have come, not longer than until a deadline."""
        time.sleep(max(0.0, min(PAUSE, deadline - self.now())))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float = math.inf) -> list[Message]:
        """The replies that come within the timeout, also errors of Flower for sites that have gone offline."""
        deadline = self.now() + timeout
        # Flower gives no id to a message that it cannot deliver
        waiting, replies = [name for name in self.push_messages(messages) if name], list[Message]()
        while True:
            replies += self.pull_messages(waiting)
            received = {reply.metadata.reply_to_message_id for reply in replies}
            waiting = [name for name in waiting if name not in received]
            if not waiting or self.now() >= deadline:
                return replies
            self.wait(deadline)


class Participants:
    """The sites by name. Sites that come after the setup must be compatible with it."""

    def __init__(self, grid: SiteGrid, recipe: FederatedRecipe):
        self.grid, self.recipe, self.settings = grid, recipe, recipe.federation
        self.timeout = self.settings.timeout if grid.timeout is None else grid.timeout  # seconds to wait for sites
        self.setup: FederationSetup | None = None
        self.metadata: dict[str, SiteMetadata] = {}  # of sites that take part, online or not
        self.refused: dict[str, str] = {}  # other sites, and why
        self._node: dict[str, int] = {}  # last known node of a site
        self._pending: dict[str, int] = {}  # message id -> node: metadata requests without a reply
        self._replied: set[int] = set()  # nodes that have sent metadata
        self._preprocessing = learner_of(recipe).preprocessing
        self._traffic = [0, 0]  # bytes to and from sites

    def online(self) -> dict[int, str]:
        """The sites that take part and are online now, by node id."""
        nodes = set(self.grid.get_node_ids())
        return {node: site for site, node in self._node.items() if site in self.metadata and node in nodes}

    def poll(self) -> None:
        """Requests metadata from new nodes and processes the replies that have come; does not wait."""
        new = sorted(set(self.grid.get_node_ids()) - self._replied - set(self._pending.values()))
        content = messages.make_content(recipe=self._recipe())
        ids = self.grid.push_messages([self._message(content, node, messages.METADATA) for node in new]) if new else []
        self._pending |= {message_id: node for message_id, node in zip(ids, new) if message_id}
        replies = self.grid.pull_messages(list(self._pending)) if self._pending else []
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            node = self._pending.pop(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            self._add_node(node, reply)

    def _add_node(self, node: int, reply: Message) -> None:
        if reply.has_error():
            is_final = reply.error.code == messages.REFUSED  # after other errors the request is repeated
            name = self.grid.names.get(node) if is_final else None
            self.refused.pop(f"node {node}", None)
            self.refused[name or f"node {node}"] = messages.error_reason(reply.error)
            if is_final:
                self._replied.add(node)
                self.metadata.pop(name or "", None)
            return
        self._replied.add(node)
        self.refused.pop(f"node {node}", None)
        try:
            site = str(messages.get_value(reply.content, "site"))
            metadata = SiteMetadata.from_json(messages.get_value(reply.content, "metadata"))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            self.refused[f"node {node}"] = "its metadata cannot be read"
            return
        if self.grid.names.get(node, site) != site:
            self.refused[f"node {node}"] = f"its name must be {self.grid.names[node]}, the name of its key"
            return
        if site in self.online().values() and self._node[site] != node:
            # A site that was killed and restarted is online twice for a while. The newer node is the right one.
            self.refused[f"node {self._node[site]}"] = f"a newer node has come for {site}"
        self._node[site] = node
        self._add_site(site, metadata)

    def _add_site(self, site: str, metadata: SiteMetadata) -> None:
        """Accepts or refuses a site."""
        self.metadata.pop(site, None)
        self.refused.pop(site, None)
        minimum = self.settings.min_site_notes
        if metadata.notes < minimum:
            self.refused[site] = too_few_notes(metadata.notes, minimum)
            return
        if self.setup:
            reference = self.setup.metadata[min(self.setup.metadata)]  # "" is first by name, so it is the reference
            if reason := incompatible_sites({"": reference, "new": metadata}, self._preprocessing).get("new"):
                self.refused[site] = reason
                return
        self.metadata[site] = metadata

    def wait_for_start(self) -> None:
        """Waits until all online nodes have replied and there are enough compatible sites.

        FederationError with the refused sites if this takes too long.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            self.poll()
            compatible = self._compatible()
            enough = len(compatible) >= self.settings.min_sites
            if enough and not set(self._pending.values()) & set(self.grid.get_node_ids()):
                break
            if time.monotonic() >= deadline:
                if enough:
                    break
                raise FederationError(
                    f"{len(compatible)} sites were online after {self.timeout:g} s; "
                    f"federation.min_sites = {self.settings.min_sites}{format_reasons(self.refused)}"
                )
            time.sleep(min(PAUSE, self.timeout / 10))
        for site in set(self.metadata) - self._compatible():
            self.exclude(site, self._incompatible()[site])

    def _compatible(self) -> set[str]:
        return set(self.metadata) if self.setup else set(self.metadata) - set(self._incompatible())

    def _incompatible(self) -> dict[str, str]:
        return incompatible_sites(self.metadata, self._preprocessing)

    def exclude(self, site: str, reason: str) -> None:
        """Excludes a site from the run."""
        self.metadata.pop(site, None)
        self.refused[site] = reason

    def request(self, kind: str, contents: Mapping[str, RecordDict]) -> dict[str, Message]:
        """The replies of sites, by name. Sites that are offline or too slow have none."""
        nodes = {site: node for node, site in self.online().items()}
        return self.send(self._message(contents[site], nodes[site], kind) for site in sorted(contents) if site in nodes)

    def _message(self, content: RecordDict, node: int, kind: str) -> Message:
        """A message that expires when the server stops waiting for the reply."""
        return Message(content, node, kind, ttl=self.settings.timeout)

    def send(self, requests: Iterable[Message]) -> dict[str, Message]:
        """The replies to messages, by site. A site that has lost the setup gets it again, and then its message."""
        requests = list(requests)
        names = self.online()
        replies = self._send(requests, names)
        failed = {site: reply.error.code for site, reply in replies.items() if reply.has_error()}
        lost = [site for site, code in failed.items() if code == messages.UNPREPARED]
        if not lost or self.setup is None:
            return replies
        prepared = self.request(messages.PREPARE, dict.fromkeys(lost, self.setup_content(self.setup)))
        ready = {site for site, reply in prepared.items() if not reply.has_error()}
        replies |= {site: reply for site, reply in prepared.items() if site not in ready}
        again = [
            self._message(message.content, message.metadata.dst_node_id, message.metadata.message_type)
            for message in requests
            if names.get(message.metadata.dst_node_id) in ready
        ]
        return {site: reply for site, reply in replies.items() if site not in ready} | self._send(again, names)

    def _send(self, requests: list[Message], names: dict[int, str]) -> dict[str, Message]:
        replies = self.grid.send_and_receive(requests, timeout=self.settings.timeout) if requests else []
        for way, sent in enumerate((requests, replies)):
            self._traffic[way] += sum(messages.content_bytes(each.content) for each in sent if each.has_content())
        return {names[reply.metadata.src_node_id]: reply for reply in replies if reply.metadata.src_node_id in names}

    def missing_reason(self, site: str) -> str:
        """Why a request to a site has no reply of this site."""
        return "no reply came" if site in self.online().values() else "it is offline"

    def push(self, requests: list[Message]) -> list[str]:
        """The ids of messages, which are sent; does not wait for the replies."""
        self._traffic[0] += sum(messages.content_bytes(request.content) for request in requests)
        return self.grid.push_messages(requests)

    def pull(self, message_ids: list[str]) -> dict[str, Message]:
        """The replies that have come, by the id of the message."""
        replies = self.grid.pull_messages(message_ids) if message_ids else []
        self._traffic[1] += sum(messages.content_bytes(reply.content) for reply in replies if reply.has_content())
        return {reply.metadata.reply_to_message_id: reply for reply in replies}

    def setup_content(self, setup: FederationSetup) -> RecordDict:
        """The content of `PREPARE`: labels, shared inputs and their hash."""
        arrays, inputs = setup.learner.pack_inputs(setup.inputs)
        values = {"labels": setup.labels.to_json()} | ({messages.INPUTS: inputs} if inputs else {})
        compatibility = setup.metadata[min(setup.metadata)].compatibility
        return messages.make_content(
            arrays | mark(setup.personal),
            recipe=self._recipe(),
            setup=setup.hash,
            compatibility=compatibility,
            **values,
        )

    def traffic(self) -> tuple[int, int]:
        """The bytes to and from sites since the last call."""
        (sent, received), self._traffic = self._traffic, [0, 0]
        return sent, received

    def _recipe(self) -> dict:
        return self.recipe.model_dump(mode="json")


def format_reasons(reasons: Mapping[str, str]) -> str:
    """Sites and reasons as the end of a sentence."""
    return "".join(f"; {site}: {reason}" for site, reason in sorted(reasons.items()))
