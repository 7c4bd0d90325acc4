"""The rounds of a federation: the loop with checkpoints, and the server that runs it on a Flower grid.

Privacy is added in two places. Central noise is the `reduce` of the strategy. Secure aggregation (`SecureRounds`)
replaces the exchange of training messages in `_updates`. `PrivacyBudget` accounts for both and is saved with every
round.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp.exception import AggregationError

from nosology.core import FederationError
from nosology.corpora.corpus import Corpus
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.privacy.secure_round import SecureRounds, describe_threshold
from nosology.federated.privacy.site_noise import PrivacyBudget, check_privacy
from nosology.federated.rounds import messages, outcome
from nosology.federated.rounds.federated_site import SiteCounts, SiteUpdate
from nosology.federated.rounds.federation_setup import (
    Arrays,
    FederationSetup,
    RoundCheckpoint,
    clear,
    shared_labels,
)
from nosology.federated.rounds.learner import learner_of
from nosology.federated.rounds.outcome import HistoryRow
from nosology.federated.rounds.participants import PAUSE, Participants, SiteGrid, format_reasons
from nosology.federated.rounds.robust_updates import select_counts
from nosology.federated.rounds.strategy import ValidatingStrategy
from nosology.models.bundle import Bundle, check_bundle_folder
from nosology.training.run_folder import open_run_folder, run_folder

Report = Callable[[str], None]  # is called with one line per round


@dataclass(frozen=True)
class FederationResult:
    """A completed federation."""

    bundle: Bundle
    history: list[HistoryRow]
    refused: dict[str, str]  # sites that were excluded, and why


@contextmanager
def federation_output(out: str | Path) -> Iterator[Path]:
    """The run folder of a federation, as `open_run_folder`, after a check of its bundle folder."""
    check_bundle_folder(out)
    with open_run_folder(out, f"another federation is running in {run_folder(out)}") as folder:
        yield folder


class FederationLoop(ABC):
    """Setup, rounds, evaluation and bundle of a federation; subclasses communicate with the sites.

    A run that was killed continues after its last checkpoint.
    """

    setup: FederationSetup
    checkpoint: RoundCheckpoint

    def __init__(self, recipe: FederatedRecipe, report: Report):
        self.check(recipe)
        self.recipe = outcome.with_resolved_precision(recipe)
        self.settings, self.report = recipe.federation, report
        self.learner = learner_of(self.recipe)
        self.rounds = self.learner.rounds
        self.refused: dict[str, str] = {}  # sites that do not take part, and why
        self._dev: SiteCounts | None = None  # of all sites, after the last round

    @classmethod
    def check(cls, recipe: FederatedRecipe) -> None:
        """ConfigError for settings that this federation does not support."""
        outcome.check_recipe(recipe)
        check_privacy(recipe)

    @abstractmethod
    def make_setup(self, resumed: FederationSetup | None, notes: str) -> FederationSetup:
        """The setup, made with the sites unless the run is resumed."""

    @abstractmethod
    def prepare(self) -> int:
        """The number of sites; prepares the training from `setup` and `checkpoint`."""

    def start_phase(self, setup: FederationSetup) -> None:
        """Continues with the setup of a phase: what its rounds train, and what sites need for it."""
        self.setup = setup

    @abstractmethod
    def train(self, number: int) -> tuple[Arrays, HistoryRow]:
        """The new weights of a round, and loss, sites and refused sites for its history."""

    @abstractmethod
    def evaluate(
        self, number: int, weights: Arrays, split: str, fraction: float, tuned: Bundle | None = None
    ) -> SiteCounts | None:
        """The summed counts of a fraction of the sites; None without any. tuned: gives calibration and threshold."""

    @property
    def cut_off(self) -> bool:
        """Whether no site can connect any more: what is finished is then written."""
        return False

    def state(self) -> dict[str, Any]:
        """Further values of the checkpoint."""
        return {}

    def traffic(self) -> HistoryRow:
        """The bytes of the messages of a round, for its history; empty without messages."""
        return {}

    def run(self, out: str | Path, corpora: Sequence[Corpus] = (), notes: str = "") -> FederationResult:
        """The result of all rounds; writes the bundle to `out`.

        corpora: for the provenance of the bundle, if the server knows them. notes: hash of the notes of the sites, if
        it is known; a run with other notes is not continued.
        """
        with federation_output(out) as folder:
            return self.run_in(folder, out, corpora, notes)

    def run_in(self, folder: Path, out: str | Path, corpora: Sequence[Corpus], notes: str) -> FederationResult:
        """As `run`, within `federation_output`, whose folder is given."""
        self.folder = folder
        self._start(notes)
        while self.checkpoint.number < self.rounds:
            self._run_round(self.checkpoint.number + 1)
        bundle, history = self.finish(corpora), self.checkpoint.history
        bundle.save(out, also=outcome.write_history(history, self.folder))
        clear(self.folder)
        return FederationResult(bundle, history, self.refused)

    def _start(self, notes: str) -> None:
        resumed = FederationSetup.resume(self.folder, self.recipe, notes)
        self.setup = self.make_setup(resumed, notes)
        self.setup.check_personal()
        if resumed is None:
            self.setup.save(self.folder)
        saved = RoundCheckpoint.load(self.folder, self.setup.hash)
        self.checkpoint = saved or RoundCheckpoint(self.setup.hash, 0, self.setup.initial_weights())
        self.start_phase(self.setup.with_learned(self.checkpoint.learned))
        sites = self.prepare()
        for site, reason in sorted(self.refused.items()):
            self.report(f"{site} is excluded: {reason}")
        continued = f", continues after round {saved.number}" if saved else ""
        self.report(f"{sites} sites, {len(self.setup.labels)} codes{continued}")

    def _run_round(self, number: int) -> None:
        """Trains, evaluates if it is due, and saves the checkpoint."""
        started = time.monotonic()
        weights, row = self.train(number)
        row = {"round": number, "phase": self.learner.phase_name(number), "micro_f1": None, "epsilon": None} | row
        last, net_round = number == self.rounds, number - self.learner.pretraining_rounds
        if last or (net_round > 0 and net_round % self.settings.evaluate_every == 0):
            counts = self.evaluate(number, weights, "dev", 1.0 if last else self.settings.fraction_evaluate)
            self._dev = counts if last else None
            row["micro_f1"] = counts.best_f1 if counts is not None else None
        row |= self.traffic()
        row["seconds"] = round(time.monotonic() - started, 3)
        history, state = [*self.checkpoint.history, row], self.state()
        learned = self.learner.finish_phase(self.setup, number, weights)
        if learned is not None:
            sites, known = int(row["sites"] or 0), len(self.setup.metadata)
            if sites < known:
                self.report(f"caution: the last round of {row['phase']} has {sites} of {known} sites")
            self.start_phase(self.setup.with_learned(learned))
            weights, state = self.setup.initial_weights(), self.state() | {"learned": learned}
        self.checkpoint = replace(self.checkpoint, number=number, weights=weights, history=history, **state)
        self.checkpoint.save(self.folder)
        self.report(outcome.format_round(row, self.rounds) + format_reasons(self.checkpoint.refused))

    def finish(self, corpora: Sequence[Corpus]) -> Bundle:
        """The bundle: calibration and threshold from the dev notes of all sites, metrics from their test notes."""
        number, weights = self.checkpoint.number, self.checkpoint.weights
        bundle = outcome.build_bundle(self.setup, self.checkpoint, self._dev_counts(), corpora, self.refused)
        outcome.add_test_metrics(bundle, self.evaluate(number, weights, "test", 1.0, bundle))
        return bundle

    def _dev_counts(self, needed: bool = True) -> SiteCounts | None:
        """The counts of the dev notes of all sites; FederationError if they are needed and no site replies."""
        number = self.checkpoint.number
        dev = self._dev or self.evaluate(number, self.checkpoint.weights, "dev", 1.0)
        if dev is None and self.cut_off:
            self.report("caution: the certificate of the server has expired: the bundle is not tuned on dev notes")
        elif dev is None and needed:
            raise FederationError(
                f"no site has replied to the evaluation after round {number}; the rounds are saved in {self.folder}: "
                f"start the run again to continue{format_reasons(self.refused)}"
            )
        return dev


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
    def cut_off(self) -> bool:
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
        if self._dev is None and not self.cut_off:
            self._wait_for_sites(self.checkpoint.number)
        return super().finish(corpora)
