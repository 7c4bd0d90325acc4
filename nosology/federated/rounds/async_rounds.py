"""Asynchronous rounds (FedBuff, Nguyen et al. 2022): no site waits for a slower one.

A site that is free gets the present weights at once. The server keeps the updates that come in a buffer. When it holds
updates of `buffer_size` sites, they are aggregated: that is a round. The update of a slow site belongs to older
weights: its change counts 1 / (1 + s)^staleness_exponent if there were s rounds since. A site gets the weights of a
round once, so a buffer has at most one update of a site, and no fast site decides alone.

Buffer and open requests are not saved. After a restart of the server all sites get the weights of the last round.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Message
from flwr.serverapp.exception import AggregationError

from nosology.core import FederationError
from nosology.federated.rounds import messages
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup
from nosology.federated.rounds.outcome import HistoryRow
from nosology.federated.rounds.participants import format_reasons
from nosology.federated.rounds.site_results import SiteUpdate

RUNNING = ("running_mean", "running_var")  # statistics of batch normalization


@dataclass(frozen=True, eq=False)
class OpenRequest:
    """A request to train without a reply yet."""

    site: str
    node: int
    version: int  # rounds done when it was sent
    weights: Arrays  # that it was sent with
    deadline: float


class AsyncFederation(FlowerFederation):
    """A federation whose rounds are buffers of updates."""

    def start_phase(self, setup: FederationSetup) -> None:
        """As of `FlowerFederation`; no request is open: late updates of an earlier phase are of no use."""
        super().start_phase(setup)
        self._requests: dict[str, OpenRequest] = {}  # by message id
        self._asked: dict[str, int] = {}  # by site: the version that it got last
        self._buffer: dict[str, tuple[SiteUpdate, OpenRequest]] = {}  # by site
        self._failed: set[str] = set()  # sites whose reply in this round was not valid
        self._prepared: set[str] = set()  # sites that got the setup again in this round

    def _needed(self) -> int:
        """The number of sites with an update in the buffer that a round needs."""
        return max(self.strategy.min_replies, min(self.settings.buffer_size, self._sampled()))

    def train(self, number: int) -> tuple[Arrays, HistoryRow]:
        """New weights and history of a round: the updates of the buffer."""
        reason = ""
        for _ in range(self.settings.max_retries + 1):
            self._failed, self._prepared, self.strategy.refused = set(), set(), {}
            self._fill_buffer(number)
            buffered = [self._buffer.pop(site) for site in sorted(self._buffer)]
            staleness = [number - 1 - request.version for _, request in buffered]
            updates = [self._discounted(*item, age) for item, age in zip(buffered, staleness)]
            self.strategy.initial = self.checkpoint.weights
            try:
                weights, loss = self.strategy.aggregate(number, updates)
            except AggregationError as error:
                reason = str(error)
                self._asked.clear()
                continue
            finally:
                self._save_privacy()
            row: HistoryRow = {"loss": loss, "sites": len(updates), "refused": len(self.strategy.refused)}
            row |= {"staleness": float(np.mean(staleness))} | ({"cut": self.strategy.cut} if self.strategy.cut else {})
            return self._step(weights), row | self.privacy.epsilons()
        raise self._failure(number, reason)

    def _failure(self, number: int, reason: str) -> FederationError:
        return FederationError(
            f"round {number} failed and the run stops; {number - 1} rounds are saved in {self.folder}: "
            f"{reason}{format_reasons(self.strategy.refused)}"
        )

    def _discounted(self, update: SiteUpdate, request: OpenRequest, staleness: int) -> SiteUpdate:
        """The update as if it had been computed from the present weights, shortened by its staleness."""
        if not staleness:
            return update
        factor = (1 + staleness) ** -self.settings.staleness_exponent
        arrays = {}
        for name, now in self.checkpoint.weights.items():
            # running statistics are averaged: a change of an older variance could make the present one negative
            before = now if name.endswith(RUNNING) else request.weights[name]
            arrays[name] = (now + factor * (update.arrays[name].astype(np.float64) - before)).astype(now.dtype)
        return replace(update, arrays=arrays)

    def _step(self, weights: Arrays) -> Arrays:
        """The weights after a step of `buffer_learning_rate` towards the aggregate."""
        rate, before = self.settings.buffer_learning_rate, self.checkpoint.weights
        if rate == 1:
            return weights
        return {
            name: array
            if name.endswith(RUNNING)
            else (before[name] + rate * (array.astype(np.float64) - before[name])).astype(array.dtype)
            for name, array in weights.items()
        }

    def _fill_buffer(self, number: int) -> None:
        """Sends and receives until the buffer has enough sites; FederationError if no update comes for too long."""
        grid, repeats = self.participants.grid, 0
        deadline = grid.now() + self.settings.timeout
        while True:
            self.participants.poll()
            online = self.participants.online()
            if self._receive():
                deadline = grid.now() + self.settings.timeout
            if len(self._buffer) >= self._needed():
                return
            self._drop_lost(online)
            if self._send(number, online):
                continue  # an error comes at once
            reason = f"{len(self._buffer)} sites have sent an update, {self._needed()} are needed"
            if not self._requests and self._failed:
                if (repeats := repeats + 1) > self.settings.max_retries:
                    raise self._failure(number, reason)
                self.report(f"round {number} is repeated: {reason}{format_reasons(self.strategy.refused)}")
                for site in self._failed:
                    self._asked.pop(site, None)
                self._failed.clear()
            elif grid.now() >= deadline:
                raise self._failure(number, f"{reason}; no update came within {self.settings.timeout:g} s")
            else:
                grid.wait(min([deadline, *(request.deadline for request in self._requests.values())]))

    def _drop_lost(self, online: Collection[int]) -> None:
        """Gives up requests to sites that are offline, which are asked again when they return, or too slow."""
        for name, request in list(self._requests.items()):
            late = self.participants.grid.now() >= request.deadline
            if late or request.node not in online:
                del self._requests[name]
                self._refuse(request.site, f"no reply within {self.settings.timeout:g} s" if late else "it is offline")
                if not late:
                    self._asked.pop(request.site, None)
                    self._failed.discard(request.site)

    def _refuse(self, site: str, reason: str) -> None:
        self.strategy.refused[site] = reason
        self._failed.add(site)

    def _send(self, number: int, online: dict[int, str]) -> bool:
        """Whether the present weights were sent to sites: those that are free and do not have them."""
        busy, version = {request.site for request in self._requests.values()}, number - 1
        free = {node: site for node, site in online.items() if site not in busy and self._asked.get(site, -1) < version}
        if not free:
            return False
        self.privacy.record_training({site: self.participants.metadata[site].notes for site in free.values()})
        self._save_privacy()
        content = messages.make_content(recipe=self.recipe.model_dump(mode="json"), round=number, setup=self.setup.hash)
        config, weights = content.config_records[messages.CONFIG], self.checkpoint.weights
        requests = self.strategy.configure_train(number, weights, config, free)
        deadline, sent = self.participants.grid.now() + self.settings.timeout, False
        for name, request in zip(self.participants.push(requests), requests):
            site = free[request.metadata.dst_node_id]
            if name:  # Flower gives no id to a message that it cannot deliver
                self._requests[name] = OpenRequest(site, request.metadata.dst_node_id, version, weights, deadline)
                self._asked[site] = version
                sent = True
        return sent

    def _receive(self) -> bool:
        """Whether a reply has come; puts valid updates into the buffer."""
        replies = self.participants.pull(list(self._requests))
        for name, reply in replies.items():
            request = self._requests.pop(name)
            site = request.site
            if reply.has_error() and reply.error.code == messages.UNPREPARED and site not in self._prepared:
                self._prepare_again(site)
                continue
            update = self._read(site, reply, request)
            if isinstance(update, str):
                self._refuse(site, update)
            else:
                self.strategy.refused.pop(site, None)
                self._buffer[site] = (update, request)
        return bool(replies)

    def _read(self, site: str, reply: Message, request: OpenRequest) -> SiteUpdate | str:
        metadata = self.participants.metadata.get(site)
        notes = metadata.notes if metadata else None
        rows, settings = self.strategy.rows, self.settings
        return messages.read_update(site, reply, request.weights, notes, rows=rows, settings=settings)

    def _prepare_again(self, site: str) -> None:
        """Sends the setup to a site that has lost it; it then gets the weights again."""
        self._prepared.add(site)
        content = self.participants.setup_content(self.setup)
        reply = self.participants.request(messages.PREPARE, {site: content}).get(site)
        if reply is None or reply.has_error():
            self._refuse(site, messages.error_reason(reply.error) if reply else "it did not take the setup")
        else:
            self._asked.pop(site, None)

    def evaluated_sites(self, number: int) -> Collection[str]:
        """The sites that are online; before the last round only those that are not training."""
        online = super().evaluated_sites(number)
        if number >= self.rounds:
            self._requests.clear()  # their updates come too late
            return online
        busy = {request.site for request in self._requests.values()}
        return [site for site in online if site not in busy]
