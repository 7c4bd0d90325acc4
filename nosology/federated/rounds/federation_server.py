"""The rounds of a federation, on any of Flower's grids: in this process, or a SuperLink's.

Privacy comes in at two places. Central noise is the strategy's `reduce` (`privacy.CentralNoise`). A secure round
(`SecureRounds`) stands in for `_Federation._updates`: it gets the messages of the round (all have the same content:
weights, recipe, round, agreed), asks the sites itself, sets the strategy's `accepted` and `refused`, and gives the one
update that it could see. What privacy has cost is booked by `Privacy` and saved with every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from nosology.core import FederationError
from nosology.core.files import check_output_folder
from nosology.federated.federation_settings import FederatedHeadsRecipe
from nosology.federated.privacy.secure_round import SecureRounds
from nosology.federated.privacy.site_noise import Privacy, check_privacy
from nosology.federated.rounds import saved_rounds as saved
from nosology.federated.rounds.agreement import agreed_labels
from nosology.federated.rounds.outcome import Row, add_test, bundle_of, check_recipe, line_of, write_history
from nosology.federated.rounds.participants import Roster, listed
from nosology.federated.rounds.records import (
    CONFIG,
    EVALUATE,
    PREPARE,
    STATISTICS,
    Arrays,
    content,
    from_record,
    reason_of,
    to_record,
)
from nosology.federated.rounds.replies import LOSS, SiteUpdate, read_counts, read_moments
from nosology.federated.rounds.saved_rounds import Agreement, SavedRound
from nosology.federated.rounds.site_counts import SiteCounts
from nosology.federated.rounds.strategy import GuardedStrategy
from nosology.models.bundle import MANIFEST, Bundle
from nosology.models.heads.feature_statistics import Moments
from nosology.training.calibration import PlattScaling
from nosology.training.run_folder import run_folder

Say = Callable[[str], None]


@dataclass(frozen=True)
class Federated:
    """A federation that has ended well."""

    bundle: Bundle
    history: list[Row]
    refused: dict[str, str]  # sites that were left out, and why


def run_federation(
    grid: Grid,
    recipe: FederatedHeadsRecipe,
    out: str | Path,
    *,
    corpora: list[dict[str, Any]] | None = None,
    notes: str = "",
    say: Say = lambda line: None,
) -> Federated:
    """The coder that the sites of a grid train, saved in `out`; FederationError if it cannot be had.

    Started again with the same recipe, a run that was killed goes on after its last round. corpora: for the bundle's
    provenance, where the server knows them. notes: a hash of the sites' notes, where it is known; a run with others
    does not go on. say: is given a line a round.
    """
    _check(recipe)
    check_output_folder(out, marker=MANIFEST)
    folder = run_folder(out)
    with saved.locked(folder):
        federation = _Federation(grid, recipe, folder, say, notes)
        federation.begin()
        while federation.state.number < recipe.federation.rounds:
            federation.round(federation.state.number + 1)
        bundle, state = federation.end(corpora or []), federation.state
        bundle.save(out, also=write_history(state.history, folder))
        saved.clear(folder)
    return Federated(bundle, state.history, federation.roster.refused)


def _check(recipe: FederatedHeadsRecipe) -> None:
    check_recipe(recipe)
    check_privacy(recipe)


class _Federation:
    """A federation under way."""

    def __init__(self, grid: Grid, recipe: FederatedHeadsRecipe, folder: Path, say: Say, notes: str):
        self.recipe, self.settings, self.folder, self.say = recipe, recipe.federation, folder, say
        self.grid, self.roster, self.notes = grid, Roster(grid, recipe), notes
        self.strategy = GuardedStrategy(self.settings, recipe.seed)
        self.state: SavedRound
        self._dev: SiteCounts | None = None  # of all sites, after the last round

    def begin(self) -> None:
        """Agrees with the sites, or goes on where a run of the same recipe ended."""
        agreement = Agreement.of_run(self.folder, self.recipe, self.notes)
        self.roster.agreement = agreement
        self.roster.gather()
        if agreement is None:
            agreement = self.roster.agreement = self._agree()
            self.roster.refused |= self._prepare()
            agreement.save(self.folder)
        found = SavedRound.load(self.folder, agreement.hash)
        self.state = found or SavedRound(agreement.hash, 0, agreement.first_weights())
        self.strategy.put_moments(self.state.moments)
        self.privacy = Privacy(self.recipe, self.state.privacy)
        self.strategy.reduce = self.privacy.reduce
        self.secure = SecureRounds(self.roster, self.strategy, self.privacy) if self.settings.privacy.secure else None
        for site, why in sorted(self.roster.refused.items()):
            self.say(f"{site} is left out: {why}")
        where = f", goes on after round {found.number}" if found else ""
        self.say(f"{len(self.roster.facts)} sites, {len(agreement.labels)} codes{where}")

    def _agree(self) -> Agreement:
        """Codes and scaler of the sites that can tell their statistics; the others are left out."""
        roster = self.roster
        asked = content(recipe=self.recipe.model_dump(mode="json"))
        replies = roster.ask(STATISTICS, dict.fromkeys(roster.facts, asked))
        total: Moments | None = None
        for site in sorted(roster.facts):
            found = read_moments(replies.get(site), roster.facts[site].dim)
            if isinstance(found, str):
                roster.leave_out(site, found)
            else:
                total = found if total is None else total + found
        if total is None or len(roster.facts) < self.settings.min_sites:
            raise FederationError(
                f"{len(roster.facts)} sites told their statistics; federation.min_sites = {self.settings.min_sites}"
                f"{listed(roster.refused)}"
            )
        asked = len(self.strategy.sampled("train", 0, self.settings.fraction_train, roster.facts))
        if asked < self.strategy.least:
            raise FederationError(
                f"federation.strategy = {self.settings.strategy} needs {self.strategy.least} sites in a round; there "
                f"are {asked}{listed(roster.refused)}"
            )
        facts = dict(sorted(roster.facts.items()))
        return Agreement(self.recipe, agreed_labels(facts, self.settings), total.scaler(), facts, self.notes)

    def _prepare(self) -> dict[str, str]:
        """Tells all sites what was agreed; why some have not taken it (they are told again when they train)."""
        replies = self.roster.ask(PREPARE, dict.fromkeys(self.roster.facts, self.roster.told()))
        return {site: reason_of(reply.error) for site, reply in replies.items() if reply.has_error()}

    def round(self, number: int) -> None:
        """One round: training, evaluation where it is due, and both on disk."""
        started = time.monotonic()
        weights, loss = self._train(number)
        row: Row = {"round": number, "loss": loss, "sites": len(self.strategy.accepted)}
        row |= {"refused": len(self.strategy.refused), "micro_f1": None} | self.privacy.row()
        last = number == self.settings.rounds
        if last or number % self.settings.evaluate_every == 0:
            counts = self._evaluate(number, weights, "dev", 1.0 if last else self.settings.fraction_evaluate)
            self._dev = counts if last else None
            row["micro_f1"] = counts.best[1] if counts is not None and counts.true.any() else None
        row["seconds"] = round(time.monotonic() - started, 3)
        self.state = replace(
            self.state,
            number=number,
            weights=weights,
            moments=self.strategy.moments(),
            history=[*self.state.history, row],
            refused=self.strategy.refused,
            privacy=self.privacy.to_json(),
        )
        self.state.save(self.folder)
        self.say(line_of(row, self.settings.rounds) + listed(self.strategy.refused))

    def _train(self, number: int) -> tuple[Arrays, float]:
        """New weights and the mean loss; a round with too few sound replies is repeated, and then the run stops."""
        record = to_record(self.state.weights)
        config = content(recipe=self.recipe.model_dump(mode="json"), round=number, agreed=self.state.agreed)[CONFIG]
        for attempt in range(self.settings.repeats + 1):
            needed = self._wait_for_sites(number)
            messages = list(self.strategy.configure_train(number, record, config, self.grid))
            made, failure = self._asked(number, messages)
            self._book()
            sound = len(self.strategy.accepted)
            if made is not None and sound >= needed:
                weights, metrics = made
                return from_record(weights), float(metrics[LOSS])
            why = failure or f"{sound} of {len(messages)} replies were sound, {needed} are needed"
            if attempt < self.settings.repeats:
                self.say(f"round {number} is repeated: {why}{listed(self.strategy.refused)}")
        raise FederationError(
            f"round {number} failed {self.settings.repeats + 1} times and the run stops; its {number - 1} rounds are "
            f"kept in {self.folder}: {why}{listed(self.strategy.refused)}"
        )

    def _asked(self, number: int, messages: list[Message]) -> tuple[tuple[ArrayRecord, dict] | None, str]:
        """What the strategy makes of the sites' replies, or why it makes nothing of them."""
        try:
            updates = self._updates(messages)
            if len(self.strategy.accepted) < self._needed():
                return None, ""
            return self.strategy.applied(number, updates), ""
        except AggregationError as error:
            return None, str(error)

    def _updates(self, messages: list[Message]) -> list[SiteUpdate]:
        """The sound updates of the sites that were sent messages; all others are named in the strategy's `refused`."""
        sites = [self.strategy.sites[message.metadata.dst_node_id] for message in messages]
        self.strategy.notes = {site: self.roster.facts[site].notes for site in sites}
        self.privacy.asked(self.strategy.notes)
        self._book()
        if self.secure:
            return self.secure(messages, self._needed()) if messages else []
        replies = self.roster.exchange(messages)
        updates = self.strategy.judged(replies.items())
        for site in sites:
            if site not in replies:
                self.strategy.refused[site] = f"no answer in {self.settings.wait:g} s"
        return updates

    def _book(self) -> None:
        """Writes the accounts down before what was paid for is seen: a server that is killed forgets nothing."""
        if self.privacy.noisy:
            self.state = replace(self.state, privacy=self.privacy.to_json())
            self.state.save(self.folder)

    def _needed(self) -> int:
        """Sound replies that a round needs: the quorum, but never more than would be asked of all sites.

        Those that have agreed count, be they back or not: a run that goes on with few of them needs no fewer.
        """
        names = self.roster.facts.keys() | (self.roster.agreement.facts.keys() - self.roster.refused.keys())
        every = len(self.strategy.sampled("train", 0, self.settings.fraction_train, names))
        return max(self.strategy.least, min(self.settings.quorum, every))

    def _wait_for_sites(self, number: int) -> int:
        """Waits, not for ever, until a round can have the replies that it needs, and says how many that are."""
        until = time.monotonic() + self.roster.patience
        while True:
            self.roster.look()
            present, needed = self.roster.present(), self._needed()
            asked = self.strategy.sampled("train", number, self.settings.fraction_train, present.values())
            if len(asked) >= needed or time.monotonic() >= until:
                self.strategy.sites = present
                return needed
            time.sleep(min(0.5, self.roster.patience / 10))

    def _evaluate(
        self,
        number: int,
        weights: Arrays,
        split: str,
        fraction: float,
        calibration: PlattScaling | None = None,
        threshold: float | None = None,
    ) -> SiteCounts | None:
        """The summed counts of a sample of the sites, None if none has told any."""
        sites = self.strategy.sampled(EVALUATE, number, fraction, self.roster.present().values())
        asked = content(
            weights,
            recipe=self.recipe.model_dump(mode="json"),
            agreed=self.state.agreed,
            split=split,
            threshold=threshold,
            calibration=calibration.to_json() if calibration else None,
        )
        total: SiteCounts | None = None
        for site, reply in sorted(self.roster.ask(EVALUATE, dict.fromkeys(sites, asked)).items()):
            counts = read_counts(reply, self.roster.agreement.labels)
            if isinstance(counts, str):
                self.say(f"{site} is not counted: {counts}")
            else:
                total = counts if total is None else total + counts
        return total

    def end(self, corpora: list[dict[str, Any]]) -> Bundle:
        """The bundle: calibration and threshold from all sites' dev notes, scores from their test notes."""
        number, weights = self.state.number, self.state.weights
        if self._dev is None:
            self._wait_for_sites(number)
            self._dev = self._evaluate(number, weights, "dev", 1.0)
        if (dev := self._dev) is None:
            raise FederationError(
                f"no site has answered the evaluation after round {number}; all rounds are kept in {self.folder}: "
                f"started again, the run goes on from there{listed(self.roster.refused)}"
            )
        bundle = bundle_of(self.roster.agreement, self.state, dev, corpora, self.roster.refused)
        model, threshold = bundle.model, bundle.decision.threshold
        test = self._evaluate(number, weights, "test", 1.0, model.calibration, threshold)
        add_test(bundle, test)
        return bundle
