"""The server of federations that are made of sums (linear, lexicon): each round is a stage of the learner.

Checkpoints, retries, quorum, traffic and evaluation are those of `FlowerFederation`. What is different is the exchange
of a round: sites send a vector, of which the server needs the sum, or arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp.exception import AggregationError

from nosology.core import DataError, FederationError
from nosology.corpora.corpus import Corpus
from nosology.evaluation.decision import Decision
from nosology.federated.federation_settings import FederatedRecipe
from nosology.federated.privacy.masking import from_fixed_point
from nosology.federated.privacy.secure_aggregation import SecureSession
from nosology.federated.privacy.secure_round import MASK, SecureRounds, request_digest
from nosology.federated.privacy.secure_server import SecureServer
from nosology.federated.rounds import messages, outcome
from nosology.federated.rounds.federation_loop import Report
from nosology.federated.rounds.federation_server import FlowerFederation
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.hashed_counts import sparse_sum
from nosology.federated.rounds.outcome import HistoryRow
from nosology.federated.rounds.participants import SiteGrid, format_reasons
from nosology.federated.rounds.site_results import SiteCounts
from nosology.federated.rounds.statistics_learner import StatisticsLearner
from nosology.models.bundle import Bundle
from nosology.training.calibration import PlattScaling

STAGE, SECURE_STAGE = "query.stage", "train.stage"  # message types: a part in the clear, a masked vector
INDEX, VALUE = "index", "value"  # arrays of a vector in the clear: its numbers that are not 0


class SecureSums(SecureRounds):
    """Secure sums of the vectors of a stage."""

    def sum(self, number: int, sites: list[str], content: RecordDict, size: int, needed: int) -> np.ndarray:
        """The sum (size,), float64; `accepted` of the strategy has the sites that are in it."""
        self.attempts[number] += 1
        needed = max(needed, self.privacy.settings.min_secure_sites)
        session = SecureSession(self.run, number, self.attempts[number])
        server = SecureServer(session, needed, request_digest(content))
        try:
            total = self._sum(server, sites, content, size)
        except (FederationError, DataError) as error:
            raise AggregationError(str(error)) from error
        finally:
            self.strategy.refused |= server.refused
        self.strategy.accepted = server.sent
        return from_fixed_point(total)

    def _replies(self, kind: str, contents: Any) -> dict[str, Message]:
        return super()._replies(SECURE_STAGE if kind == MASK else kind, contents)


class _FinalCounts(SiteCounts):
    """Counts of logits that are calibrated already."""

    @cached_property
    def calibration(self) -> PlattScaling:
        """The identity."""
        return PlattScaling()


class StatisticsFederation(FlowerFederation):
    """A federation whose rounds are the stages of a `StatisticsLearner`."""

    def __init__(self, grid: SiteGrid, recipe: FederatedRecipe, report: Report = lambda line: None):
        super().__init__(grid, recipe, report)
        assert isinstance(self.learner, StatisticsLearner)
        self.statistics, self.stages = self.learner, self.learner.stages()

    def prepare(self) -> int:
        """The number of sites; makes the sums secure if the recipe says so."""
        sites = super().prepare()
        if self.secure:
            self.secure = SecureSums(self.participants, self.strategy, self.privacy)
        return sites

    def train(self, number: int) -> tuple[Arrays, HistoryRow]:
        """The state after a stage. A stage with too few valid replies is repeated; then the run stops."""
        stage, state, reason = self.stages[number - 1], self.checkpoint.weights, ""
        for attempt in range(self.settings.max_retries + 1):
            needed = max(self._wait_for_sites(number), self._needed())
            self.strategy.accepted, self.strategy.refused = [], {}
            try:
                new = self._run_stage(stage, number, state, needed)
                loss = float(new["loss"][0]) if "loss" in new else 0.0
                sites, refused = len(self.strategy.accepted), len(self.strategy.refused)
                return new, {"loss": loss, "sites": sites, "refused": refused}
            except AggregationError as error:
                reason = str(error)
            except DataError as error:
                raise FederationError(str(error)) from error
            if attempt < self.settings.max_retries:
                self.report(f"stage {stage} is repeated: {reason}{format_reasons(self.strategy.refused)}")
        raise FederationError(
            f"stage {stage} failed {self.settings.max_retries + 1} times and the run stops; {number - 1} rounds are "
            f"saved in {self.folder}: {reason}{format_reasons(self.strategy.refused)}"
        )

    def _run_stage(self, stage: str, number: int, state: Arrays, needed: int) -> Arrays:
        learner, setup = self.statistics, self.setup
        content = messages.make_content(
            learner.request(stage, state),
            recipe=self.recipe.model_dump(mode="json"),
            round=number,
            setup=setup.hash,
            stage=stage,
        )
        sites = sorted(self.participants.online().values())
        if stage in learner.collected:
            return learner.merge_collected(stage, state, self._collect(stage, content, state, needed), setup)
        size = learner.size(stage, state, setup)
        if isinstance(self.secure, SecureSums):
            total = self.secure.sum(number, sites, content, size, needed)
            if reason := self._false_sum(stage, state, total, self.strategy.accepted):
                raise AggregationError(f"{reason}; a site has sent a false vector, or sites have different tasks")
        else:
            vectors = self._vectors(sites, content, size, stage, state)
            self._check_enough(needed)
            total = sparse_sum(vectors, size)
        return learner.add(stage, state, total, setup)

    def _false_sum(self, stage: str, state: Arrays, total: np.ndarray, sites: Sequence[str]) -> str:
        """Why the notes that sites have reported cannot have this sum; empty if they can."""
        notes = sum(self.participants.metadata[site].notes for site in sites)
        return self.statistics.false_sum(stage, state, total, notes, len(sites))

    def _replies(self, sites: Sequence[str], content: RecordDict) -> dict[str, Arrays]:
        """The arrays of the sites, by name; `refused` of the strategy has the others."""
        replies, arrays = self.participants.request(STAGE, dict.fromkeys(sites, content)), {}
        for site in sites:
            if site not in replies:
                self.strategy.refused[site] = self.participants.missing_reason(site)
            elif replies[site].has_error():
                self.strategy.refused[site] = messages.error_reason(replies[site].error)
            else:
                try:
                    arrays[site] = messages.get_arrays(replies[site].content)
                except Exception:  # a damaged reply raises various exceptions
                    self.strategy.refused[site] = "its reply cannot be read"
        return arrays

    def _vectors(
        self, sites: Sequence[str], content: RecordDict, size: int, stage: str, state: Arrays
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The valid vectors, as positions and values."""
        vectors = []
        for site, arrays in self._replies(sites, content).items():
            index, value = arrays.get(INDEX), arrays.get(VALUE)
            if index is None or value is None or index.shape != value.shape or index.ndim != 1:
                self.strategy.refused[site] = "its vector cannot be read"
            elif index.dtype != np.int64 or (len(index) and (index.min() < 0 or index.max() >= size)):
                self.strategy.refused[site] = f"its vector must have {size} numbers"
            elif value.dtype != np.float64 or not np.isfinite(value).all() or (np.abs(value) > 1e9).any():
                self.strategy.refused[site] = "its vector contains values that cannot come from notes"
            elif reason := self._false_sum(stage, state, sparse_sum([(index, value)], size), [site]):
                self.strategy.refused[site] = f"its vector cannot come from notes: {reason}"
            else:
                vectors.append((index, value))
                self.strategy.accepted.append(site)
        return vectors

    def _collect(self, stage: str, content: RecordDict, state: Arrays, needed: int) -> dict[str, Any]:
        """What the sites have sent and is valid, by name."""
        valid: dict[str, Any] = {}
        for site, arrays in self._replies(sorted(self.participants.online().values()), content).items():
            read = self.statistics.read_collected(stage, arrays, state)
            if isinstance(read, str):
                self.strategy.refused[site] = read
            else:
                valid[site] = read
        self.strategy.accepted = sorted(valid)
        self._check_enough(needed)
        return valid

    def _check_enough(self, needed: int) -> None:
        if (valid := len(self.strategy.accepted)) < needed:
            raise AggregationError(f"{valid} replies were valid, {needed} are needed")

    def evaluate(
        self, number: int, weights: Arrays, split: str, fraction: float, tuned: Bundle | None = None
    ) -> SiteCounts | None:
        """As `FlowerFederation.evaluate`; only the last stage gives a coder, and its logits are calibrated."""
        if number < self.rounds:
            return None
        counts = super().evaluate(number, weights, split, fraction, tuned)
        return _FinalCounts(**counts.arrays()) if counts is not None else None

    def finish(self, corpora: Sequence[Corpus]) -> Bundle:
        """The bundle; a threshold that was found on held-out train notes has priority over that of dev notes."""
        number, weights = self.checkpoint.number, self.checkpoint.weights
        if self._dev is None and not self.has_expired:
            self._wait_for_sites(number)
        is_tuned = "threshold" in weights or isinstance(self.recipe.decision.threshold, float)
        dev = self._dev_counts(needed=not is_tuned)
        bundle = outcome.build_bundle(self.setup, self.checkpoint, dev, corpora, self.refused)
        if "threshold" in weights and not isinstance(self.recipe.decision.threshold, float):
            bundle = replace(bundle, decision=Decision(float(weights["threshold"][0])))
            bundle.provenance["tuned_on"] = "held-out train notes of the sites"
        outcome.add_test_metrics(bundle, self.evaluate(number, weights, "test", 1.0, bundle))
        return bundle
