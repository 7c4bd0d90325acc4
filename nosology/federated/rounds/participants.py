"""The sites of a federation: who is there, who was refused and why, and how they are asked. All waiting is bounded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from nosology.core import FederationError
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.rounds.agreement import Facts, refusals
from nosology.federated.rounds.records import FACTS, PREPARE, REFUSED, UNPREPARED, content, reason_of, value
from nosology.federated.rounds.saved_rounds import Agreement

_PAUSE = 0.5  # seconds between looks for sites


class Roster:
    """Sites by name. Once there is an agreement, those that come later are held against it."""

    def __init__(self, grid: Grid, recipe: FederatedHeadsRecipe):
        self.grid, self.recipe, self.settings = grid, recipe, recipe.federation
        self.patience: float = getattr(grid, "patience", self.settings.wait)  # seconds that it waits for sites to come
        self.names: Mapping[int, str] = getattr(grid, "names", {})  # of nodes whose key says who they are
        self.agreement: Agreement | None = None
        self.facts: dict[str, Facts] = {}  # of sites that take part, be they there or not
        self.refused: dict[str, str] = {}  # of others
        self._node: dict[str, int] = {}  # where a site was last seen
        self._asked: dict[str, int] = {}  # message id -> node: facts that have not come yet
        self._answered: set[int] = set()  # nodes that have told facts

    def present(self) -> dict[int, str]:
        """The sites that take part and are there now, by node id."""
        online = set(self.grid.get_node_ids())
        return {node: site for site, node in self._node.items() if site in self.facts and node in online}

    def look(self) -> None:
        """Asks new nodes who they are and takes in those that have answered; waits for nobody."""
        new = sorted(set(self.grid.get_node_ids()) - self._answered - set(self._asked.values()))
        asked = content(recipe=self._recipe())
        ids = self.grid.push_messages([self.message(asked, node, FACTS) for node in new]) if new else []
        self._asked |= {message_id: node for message_id, node in zip(ids, new) if message_id}
        told = self.grid.pull_messages(list(self._asked)) if self._asked else []
        for reply in sorted(told, key=lambda reply: reply.metadata.src_node_id):
            node = self._asked.pop(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            self._take_in(node, reply)

    def _take_in(self, node: int, reply: Message) -> None:
        if reply.has_error():
            self.refused[f"node {node}"] = reason_of(reply.error)
            if reply.error.code == REFUSED:  # it says no; anything else may be better next time
                self._answered.add(node)
            return
        self._answered.add(node)
        self.refused.pop(f"node {node}", None)
        try:
            site, facts = str(value(reply.content, "site")), Facts.from_json(value(reply.content, "facts"))
        except (KeyError, TypeError, ValueError):
            self.refused[f"node {node}"] = "its facts cannot be read"
            return
        if self.names.get(node, site) != site:
            self.refused[f"node {node}"] = f"it does not call itself {self.names[node]}, whose key it has"
            return
        if site in self.present().values() and self._node[site] != node:
            # A site that was killed and came back is seen twice for a while; the newer one is the one that lives.
            self.refused[f"node {self._node[site]}"] = f"another node has come for {site}"
        self._node[site] = node
        self._judge(site, facts)

    def _judge(self, site: str, facts: Facts) -> None:
        """Takes a site in, or refuses it."""
        self.facts.pop(site, None)
        self.refused.pop(site, None)
        fewest = self.settings.min_site_notes
        if facts.notes < fewest:
            self.refused[site] = f"it has {facts.notes} train notes; {fewest} are needed (federation.min_site_notes)"
        elif self.agreement and (why := self._against_agreement(facts)):
            self.refused[site] = why
        else:
            self.facts[site] = facts

    def _against_agreement(self, facts: Facts) -> str | None:
        first = min(self.agreement.facts)
        return refusals({"": self.agreement.facts[first], "new": facts}).get("new")  # "" is first by name: it decides

    def gather(self) -> None:
        """Waits until all nodes that are there have told who they are, and sites enough are among them.

        FederationError names who was refused if that does not come about in time.
        """
        until = time.monotonic() + self.patience
        while True:
            self.look()
            enough = len(self._agreeing()) >= self.settings.min_sites
            if enough and not set(self._asked.values()) & set(self.grid.get_node_ids()):
                break
            if time.monotonic() >= until:
                if enough:
                    break
                raise FederationError(
                    f"{len(self._agreeing())} sites were there after {self.patience:g} s; "
                    f"federation.min_sites = {self.settings.min_sites}{listed(self.refused)}"
                )
            time.sleep(min(_PAUSE, self.patience / 10))
        for site in set(self.facts) - self._agreeing():
            self.leave_out(site, refusals(self.facts)[site])

    def _agreeing(self) -> set[str]:
        return set(self.facts) if self.agreement else set(self.facts) - set(refusals(self.facts))

    def leave_out(self, site: str, reason: str) -> None:
        """Takes no more notice of a site."""
        self.facts.pop(site, None)
        self.refused[site] = reason

    def ask(self, kind: str, contents: Mapping[str, RecordDict]) -> dict[str, Message]:
        """The replies of sites, by name; a site that does not answer in time has none."""
        nodes = {site: node for node, site in self.present().items()}
        asked = [site for site in sorted(contents) if site in nodes]
        return self.exchange(self.message(contents[site], nodes[site], kind) for site in asked)

    def message(self, asked: RecordDict, node: int, kind: str) -> Message:
        """A message that nobody needs to answer once the server does not wait for it any more."""
        return Message(asked, node, kind, ttl=self.settings.wait)

    def exchange(self, messages: Iterable[Message]) -> dict[str, Message]:
        """The same for messages that are written already.

        A site that has lost what it was told is told again, and then gets its message once more.
        """
        messages = list(messages)
        names = self.present()
        replies = self._sent(messages, names)
        lost = [site for site, reply in replies.items() if reply.has_error() and reply.error.code == UNPREPARED]
        if not lost or self.agreement is None:
            return replies
        told = self.ask(PREPARE, dict.fromkeys(lost, self.told()))
        taken = {site for site, reply in told.items() if not reply.has_error()}
        replies |= {site: reply for site, reply in told.items() if site not in taken}
        again = [
            self.message(message.content, message.metadata.dst_node_id, message.metadata.message_type)
            for message in messages
            if names.get(message.metadata.dst_node_id) in taken
        ]
        return {site: reply for site, reply in replies.items() if site not in taken} | self._sent(again, names)

    def _sent(self, messages: list[Message], names: dict[int, str]) -> dict[str, Message]:
        replies = self.grid.send_and_receive(messages, timeout=self.settings.wait) if messages else []
        return {names[reply.metadata.src_node_id]: reply for reply in replies if reply.metadata.src_node_id in names}

    def told(self) -> RecordDict:
        """What sites are told before they train."""
        agreed = self.agreement
        arrays = {"mean": agreed.scaler.mean, "scale": agreed.scaler.scale}
        basis = agreed.facts[min(agreed.facts)].basis
        return content(arrays, recipe=self._recipe(), agreed=agreed.hash, labels=agreed.labels.to_json(), basis=basis)

    def _recipe(self) -> dict:
        return self.recipe.model_dump(mode="json")


def listed(reasons: Mapping[str, str]) -> str:
    """Sites and reasons as the end of a sentence."""
    return "".join(f"; {site}: {reason}" for site, reason in sorted(reasons.items()))
