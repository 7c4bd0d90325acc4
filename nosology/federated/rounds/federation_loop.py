"""The loop of a federation: setup, rounds with checkpoints, evaluation and bundle, however the sites are reached."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nosology.core import FederationError
from nosology.corpora.corpus import Corpus
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.privacy.site_noise import check_privacy
from nosology.federated.rounds import outcome
from nosology.federated.rounds.federation_setup import Arrays, FederationSetup, RoundCheckpoint, clear
from nosology.federated.rounds.learner import learner_of
from nosology.federated.rounds.outcome import HistoryRow
from nosology.federated.rounds.participants import format_reasons
from nosology.federated.rounds.site_results import SiteCounts
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
    def has_expired(self) -> bool:
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
        if dev is None and self.has_expired:
            self.report("caution: the certificate of the server has expired: the bundle is not tuned on dev notes")
        elif dev is None and needed:
            raise FederationError(
                f"no site has replied to the evaluation after round {number}; the rounds are saved in {self.folder}: "
                f"start the run again to continue{format_reasons(self.refused)}"
            )
        return dev
