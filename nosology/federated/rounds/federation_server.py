"""The server of a federation on a Flower grid.

Privacy is added in two places. Central noise is the `reduce` of the strategy. Secure aggregation (`SecureRounds`)
replaces the exchange of training messages in `_updates`. `PrivacyBudget` accounts for both and is saved with every
round.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

from flwr.app import Message
from flwr.serverapp.exception import AggregationError

from nosology.core import FederationError
from nosology.corpora.corpus import Corpus
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.privacy.secure_round import SecureRounds, describe_threshold
from nosology.federated.privacy.site_noise import PrivacyBudget
from nosology.federated.rounds import messages, outcome
from nosology.federated.rounds.federation_loop import FederationLoop, Report
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup, shared_labels
from nosology.federated.rounds.learner import learner_of
from nosology.federated.rounds.outcome import HistoryRow
from nosology.federated.rounds.participants import PAUSE, Participants, SiteGrid, format_reasons
from nosology.federated.rounds.robust_updates import select_counts
from nosology.federated.rounds.site_results import SiteCounts, SiteUpdate
from nosology.federated.rounds.strategy import ValidatingStrategy
from nosology.models.bundle import Bundle


class FlowerFederation(FederationLoop):
    """A federation of the sites of a grid. A run fails with a FederationError."""

    def __init__(self, grid: SiteGrid, recipe: FederatedRecipe, report: Report = lambda line: None):
        super().__init__(recipe, report)
        self.participants = Participants(grid, self.recipe)
        self.refused = self.participants.refused
        self.strategy = ValidatingStrategy(self.settings, recipe.seed)

    def make_setup(self, resumed: FederationSetup | None, notes: str) -> FederationSetup:
        """The setup with all sites that send valid statistics."""
        participants = self.participants
        participants.setup = resumed
        participants.wait_for_start()
        if resumed is not None:
            return resumed
        reports = self._reports()
        metadata = dict(sorted(participants.metadata.items()))
        labels = shared_labels(metadata, self.settings)
        inputs = learner_of(self.recipe).share_inputs(list(reports.values()), labels, metadata)
        setup = FederationSetup(self.recipe, labels, inputs, metadata, notes)
        self._send_setup(setup)
        return setup

    def _send_setup(self, setup: FederationSetup) -> None:
        """Sends labels and inputs to all sites. A site that is offline gets them when it trains."""
        participants = self.participants
        participants.setup = setup
        contents = dict.fromkeys(participants.metadata, participants.setup_content(setup))
        for site, reply in participants.request(messages.PREPARE, contents).items():
            if reply.has_error():
                self.refused[site] = messages.error_reason(reply.error)

    def _reports(self) -> dict[str, Any]:
        """The statistics of the sites, by site name; sites without valid statistics are excluded."""
        participants = self.participants
        content = messages.make_content(recipe=self.recipe.model_dump(mode="json"))
        replies = participants.request(messages.STATISTICS, dict.fromkeys(participants.metadata, content))
        learner, reports = learner_of(self.recipe), {}
        for site, metadata in sorted(participants.metadata.items()):
            report = learner.read_report(replies.get(site), metadata)
            if isinstance(report, str):
                participants.exclude(site, report)
            else:
                reports[site] = report
        count = len(reports)
        if count < max(1, self.settings.min_sites):
            raise FederationError(
                f"{count} sites sent statistics; federation.min_sites = {self.settings.min_sites}"
                f"{format_reasons(self.refused)}"
            )
        sampled = len(self.strategy.sample_sites("train", 0, self.settings.fraction_train, participants.metadata))
        if sampled < self.strategy.min_replies:
            raise FederationError(
                f"federation.strategy = {self.settings.strategy} needs {self.strategy.min_replies} sites in a round; "
                f"there are {sampled}{format_reasons(self.refused)}"
            )
        return reports

    def prepare(self) -> int:
        """The number of sites; loads the state of strategy and privacy budget."""
        self.strategy.load_optimizer_state(self.checkpoint.optimizer_state)
        self.privacy = PrivacyBudget(self.recipe, self.checkpoint.privacy)
        self.strategy.reduce = self.privacy.reduce
        secure = self.settings.privacy.secure
        self.secure = SecureRounds(self.participants, self.strategy, self.privacy) if secure else None
        self.participants.traffic()  # that of the setup is no part of a round
        if secure:
            self.report(describe_threshold(self._sampled(), self._needed(), self.settings.privacy))
        return len(self.participants.metadata)

    def start_phase(self, setup: FederationSetup) -> None:
        """As `FederationLoop.start_phase`; sends the setup to the sites if it has changed for them."""
        if setup.hash != self.setup.hash:
            self._send_setup(setup)
        super().start_phase(setup)
        self.strategy.start(setup.label_rows)

    @property
    def has_expired(self) -> bool:
        """Whether the certificate of the server has expired."""
        return self.participants.grid.has_expired()

    def traffic(self) -> HistoryRow:
        """The bytes of all messages since the last round."""
        sent, received = self.participants.traffic()
        return {"bytes_to_sites": sent, "bytes_from_sites": received}

    def state(self) -> dict[str, Any]:
        """Server optimizer, refused sites and privacy budget."""
        state = self.strategy.optimizer_state()
        return {"optimizer_state": state, "refused": self.strategy.refused, "privacy": self.privacy.to_json()}

    def train(self, number: int) -> tuple[Arrays, HistoryRow]:
        """New weights and history of a round. A round with too few valid replies is repeated; then the run stops."""
        strategy, reason = self.strategy, ""
        content = messages.make_content(recipe=self.recipe.model_dump(mode="json"), round=number, setup=self.setup.hash)
        config = content.config_records[messages.CONFIG]
        for attempt in range(self.settings.max_retries + 1):
            needed = self._wait_for_sites(number)
            online = self.participants.online()
            requests = strategy.configure_train(number, self.checkpoint.weights, config, online)
            try:
                updates = self._updates(requests)
                if (valid := len(strategy.accepted)) >= max(needed, self._needed()):
                    weights, loss = strategy.aggregate(number, updates)
                    row: HistoryRow = {"loss": loss, "sites": valid, "refused": len(strategy.refused)}
                    row |= {"cut": strategy.cut} if strategy.cut else {}
                    for site in strategy.accepted:  # it did not get a setup in time, and then did
                        self.refused.pop(site, None)
                    return weights, row | self.privacy.epsilons()
                reason = f"{valid} of {len(requests)} replies were valid, {needed} are needed"
            except AggregationError as error:
                reason = str(error)
            finally:
                self._save_privacy()
            if attempt < self.settings.max_retries:
                self.report(f"round {number} is repeated: {reason}{format_reasons(strategy.refused)}")
        raise FederationError(
            f"round {number} failed {self.settings.max_retries + 1} times and the run stops; {number - 1} rounds are "
            f"saved in {self.folder}: {reason}{format_reasons(strategy.refused)}"
        )

    def _updates(self, requests: list[Message]) -> list[SiteUpdate]:
        """The valid updates of a round; the strategy's `refused` names all other sites."""
        sites = [self.strategy.sites[message.metadata.dst_node_id] for message in requests]
        self.strategy.notes = {site: self.participants.metadata[site].notes for site in sites}
        self.privacy.record_training(self.strategy.notes)
        self._save_privacy()
        if self.secure:
            return self.secure(requests, self._needed()) if requests else []
        replies = self.participants.send(requests)
        updates = self.strategy.validate(replies.items())
        for site in sites:
            if site not in replies:
                self.strategy.refused[site] = self.participants.missing_reason(site)
        return updates

    def _save_privacy(self) -> None:
        """Saves the privacy budget before the server sees what was paid for, so that a kill does not lose it."""
        if self.privacy.has_noise:
            self.checkpoint = replace(self.checkpoint, privacy=self.privacy.to_json())
            self.checkpoint.save(self.folder)

    def _needed(self) -> int:
        """The number of valid replies that a round needs: the quorum, but not more than the sites of a round.

        All sites of the setup count, also those that are offline: a resumed run does not need fewer.
        """
        return max(self.strategy.min_replies, min(self.settings.quorum, self._sampled()))

    def _sampled(self) -> int:
        """The number of sites of a round."""
        names = self.participants.metadata.keys() | (self.setup.metadata.keys() - self.refused.keys())
        return len(self.strategy.sample_sites("train", 0, self.settings.fraction_train, names))

    def _wait_for_sites(self, number: int) -> int:
        """The number of replies that a round needs; waits, with a timeout, until this many sites are online."""
        participants, fraction = self.participants, self.settings.fraction_train
        deadline = time.monotonic() + participants.timeout
        while True:
            participants.poll()
            needed, online = self._needed(), participants.online().values()
            sampled = self.strategy.sample_sites("train", number, fraction, online)
            if len(sampled) >= needed or time.monotonic() >= deadline:
                return needed
            time.sleep(min(PAUSE, participants.timeout / 10))

    def evaluate(
        self, number: int, weights: Arrays, split: str, fraction: float, tuned: Bundle | None = None
    ) -> SiteCounts | None:
        """The summed counts of a sample of the online sites; None without any."""
        sites = self.strategy.sample_sites(messages.EVALUATE, number, fraction, self.evaluated_sites(number))
        content = messages.make_content(
            weights,
            recipe=self.recipe.model_dump(mode="json"),
            setup=self.setup.hash,
            round=number,
            split=split,
            threshold=tuned.decision.threshold if tuned else None,
            calibration=asdict(outcome.calibration(tuned)) if tuned else None,
        )
        valid: list[SiteCounts] = []
        for site, reply in sorted(self.participants.request(messages.EVALUATE, dict.fromkeys(sites, content)).items()):
            counts = messages.read_counts(reply, self.setup.labels)
            if isinstance(counts, str):
                self.report(f"{site} is not counted: {counts}")
            else:
                valid.append(counts)
        if split == "dev":  # test counts are only reported
            valid = select_counts(valid, self.settings)
        return sum(valid[1:], valid[0]) if valid else None

    def evaluated_sites(self, number: int) -> Collection[str]:
        """The sites that may be asked to evaluate the weights of a round: all that are online."""
        return self.participants.online().values()

    def finish(self, corpora: Sequence[Corpus]) -> Bundle:
        """The bundle, see `FederationLoop.finish`; waits for the sites of a resumed run."""
        if self._dev is None and not self.has_expired:
            self._wait_for_sites(self.checkpoint.number)
        return super().finish(corpora)
