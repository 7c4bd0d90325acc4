"""A strategy that guards its round: it lets only sound replies through to one of Flower's own strategies.

What is done here and not there: bad replies are refused and named; replies are taken in the order of the sites' names,
so that the order in which they come never matters; a site that does not know a code does not dilute it; sites are
sampled by seed and round; batch normalisation's running statistics stay out of the server's moments; weights stay
float32.

For privacy, `reduce` may stand between the guard and the strategy: it is given the round, the weights that the round
began with and the guarded updates, and gives back one update (their clipped mean with noise, for example), which the
strategy then takes as if it were the only one. Rows of codes that a site does not know are then as the site sent them,
`known` says which. A secure round makes that one update itself and hands it to `aggregate`. Neither goes with a
strategy that compares sites (`ROBUST`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    Strategy,
)
from flwr.serverapp.strategy.fedopt import FedOpt
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean

from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds.records import ARRAYS, CONFIG, METRICS, TRAIN, Arrays, from_record, to_record
from nosology.federated.rounds.replies import LARGEST, LOSS, NOTES, SiteUpdate, possible, read_update
from nosology.training.batch_plan import derive_seed

ROBUST = ("trimmed_mean", "median", "krum")  # strategies that compare sites
# Of FedAdam and FedYogi: is added to the root of the second moment, so smaller updates are damped. Sites with AdamW
# move every weight by about their rate, noise included; with plain descent by its slope, tiny for a rare code.
_TAU = {"adamw": 1e-3, "sgd": 1e-8}

STRATEGIES: dict[str, Callable[[FederationSettings], FedAvg]] = {
    "fedavg": lambda settings: FedAvg(),
    "fedprox": lambda settings: FedProx(proximal_mu=settings.mu),
    "fedadam": lambda settings: FedAdam(**_server(settings)),
    "fedyogi": lambda settings: FedYogi(**_server(settings)),
    "trimmed_mean": lambda settings: FedTrimmedAvg(beta=settings.trim),
    "median": lambda settings: FedMedian(),
    "krum": lambda settings: Krum(num_malicious_nodes=settings.malicious),
}


def _server(settings: FederationSettings) -> dict[str, float]:
    return {"eta": settings.server_rate, "beta_1": 0.9, "beta_2": 0.99, "tau": _TAU[settings.optimizer]}


Reduce = Callable[[int, Arrays, list[SiteUpdate]], SiteUpdate]


class GuardedStrategy(Strategy):
    """One of Flower's strategies behind a guard.

    sites: names by node id; notes: how many each site has said it has; whoever runs the rounds keeps both. After
    `aggregate_train`, `accepted` and `refused` say whose replies were taken and why the others were not.
    """

    def __init__(self, settings: FederationSettings, seed: int = 0, reduce: Reduce | None = None):
        self.settings, self.seed, self.reduce = settings, seed, reduce
        self.inner = STRATEGIES[settings.strategy](settings)
        self.sites: dict[int, str] = {}
        self.notes: dict[str, int] = {}
        self.start: Arrays = {}
        self.accepted: list[str] = []
        self.refused: dict[str, str] = {}

    @property
    def least(self) -> int:
        """How many replies the strategy needs to do what it promises, whatever the quorum."""
        if self.settings.strategy == "krum":
            return 2 * self.settings.malicious + 3
        if self.settings.strategy == "trimmed_mean" and self.settings.trim:
            return next(n for n in range(1, 10**6) if int(self.settings.trim * n))  # fewer: nothing is cut off
        return 1

    def sampled(self, purpose: str, number: int, fraction: float, present: Iterable[str]) -> list[str]:
        """The sites of a round, sorted: a fraction of those present, one at least, decided by seed and round."""
        names = sorted(present)
        wanted = min(len(names), max(1, math.ceil(fraction * len(names) - 1e-9))) if fraction else 0
        rng = np.random.default_rng(derive_seed("sites", purpose, self.seed, number))
        return sorted(names[i] for i in rng.permutation(len(names))[:wanted])

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round to the sites sampled for it."""
        self.start = from_record(arrays)
        return self._messages("train", server_round, arrays, config, grid, self.settings.fraction_train)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The same for an evaluation."""
        return self._messages("evaluate", server_round, arrays, config, grid, self.settings.fraction_evaluate)

    def _messages(
        self, kind: str, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, fraction: float
    ) -> list[Message]:
        nodes = {self.sites[node]: node for node in grid.get_node_ids() if node in self.sites}
        record = RecordDict({ARRAYS: arrays, CONFIG: config})
        sampled, wait = self.sampled(kind, number, fraction, nodes), self.settings.wait
        return [Message(record, nodes[site], kind, ttl=wait) for site in sampled]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new weights and the mean loss, or nothing where no reply is sound."""
        return self.applied(server_round, self.guarded(replies))

    def applied(self, server_round: int, updates: list[SiteUpdate]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The same for updates that the guard has let through."""
        if self.reduce is not None and updates:
            updates = [self.reduce(server_round, self.start, updates)]
        return self.aggregate(server_round, updates)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing: evaluation is by summed counts, see `server.py`."""
        return None

    def summary(self) -> None:
        """Says what Flower's strategy is."""
        self.inner.summary()

    def guarded(self, replies: Iterable[Message]) -> list[SiteUpdate]:
        """The sound updates by the names of their sites; sets `accepted` and `refused`."""
        nodes = [(reply.metadata.src_node_id, reply) for reply in replies]
        return self.judged([(self.sites.get(node, f"node {node}"), reply) for node, reply in nodes])

    def judged(self, replies: Iterable[tuple[str, Message]]) -> list[SiteUpdate]:
        """The same for replies that come with the names of their sites."""
        found: dict[str, SiteUpdate] = {}
        self.refused = {}
        for site, reply in sorted(replies, key=lambda item: (item[0], item[1].metadata.src_node_id)):
            read = read_update(site, reply, self.start, self.notes.get(site))
            read = "it has answered twice" if site in found else read
            if isinstance(read, str):
                self.refused[site] = read
            else:
                found[site] = read
        self.accepted = sorted(found)
        return [found[site] for site in self.accepted]

    def aggregate(self, server_round: int, updates: list[SiteUpdate]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new weights and the mean loss of updates; AggregationError if they are not finite, or absurd."""
        if not updates:
            return None, None
        notes = sum(update.notes for update in updates)
        loss = sum(update.notes * update.loss for update in updates) / notes if notes else math.nan
        if not math.isfinite(loss):
            raise AggregationError("the loss of the round is not finite")
        new = self._applied(server_round, filled(updates, self.start, self.settings))
        nowhere = ~np.any([update.known for update in updates], axis=0)
        for name, first in self.start.items():
            new[name] = new[name].astype(first.dtype)  # FedAdam's are float64
            if name in _ROWS:
                new[name][nowhere] = first[nowhere]  # the server's momentum would go on moving them
        if not all((np.abs(array) <= LARGEST).all() for array in new.values()):
            raise AggregationError(f"the weights of the round are not finite, or beyond {LARGEST:g}")
        if not all(possible(name, array) for name, array in new.items()):
            raise AggregationError("a variance of the round is below 0")
        return to_record(new), MetricRecord({LOSS: loss, NOTES: notes})

    def _applied(self, server_round: int, updates: list[SiteUpdate]) -> Arrays:
        """What Flower's strategy makes of updates; all names of the start in their order."""
        names = list(self.start)
        if isinstance(self.inner, FedOpt):
            names = [name for name in names if not name.endswith(("running_mean", "running_var"))]
            self.inner.current_arrays = {name: self.start[name] for name in names}
        krum = isinstance(self.inner, Krum)
        if krum:  # its distances are differences of squared norms: in float32, of whole weights, they are noise
            updates = [
                replace(update, arrays={name: _wide(update.arrays[name]) - self.start[name] for name in names})
                for update in updates
            ]
        new = _aggregated(self.inner, server_round, updates, names)
        if krum:
            new = {name: self.start[name] + new[name] for name in names}
        if others := [name for name in self.start if name not in new]:
            new |= _aggregated(FedAvg(), server_round, updates, others)
        return {name: new[name] for name in self.start}

    def moments(self) -> Arrays:
        """The server's moments (m_t, v_t), for a run that is to go on later."""
        parts = {"m": getattr(self.inner, "m_t", None), "v": getattr(self.inner, "v_t", None)}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in (arrays or {}).items()}

    def put_moments(self, moments: Mapping[str, np.ndarray]) -> None:
        """Goes on with moments that `moments` gave."""
        for part, attribute in (("m", "m_t"), ("v", "v_t")):
            kept = {name[2:]: array for name, array in moments.items() if name.startswith(f"{part}.")}
            if kept:
                setattr(self.inner, attribute, kept)


_ROWS = ("out.weight", "out.bias")  # one row a code


def filled(updates: list[SiteUpdate], start: Arrays, settings: FederationSettings) -> list[SiteUpdate]:
    """The updates, in which rows of codes that a site does not know are what the sites that know them make of them.

    The mean over all sites is then the mean over those that know the code. Where no site knows it, the rows stay.
    """
    known = np.stack([update.known for update in updates])  # (sites, L)
    partly = np.flatnonzero(~known.all(0))
    if not len(partly):
        return updates
    weights = np.array([update.notes for update in updates])
    changed = [dict(update.arrays) for update in updates]
    for name in _ROWS:
        rows = np.stack([update.arrays[name][partly] for update in updates])  # (sites, codes, ...)
        theirs = _of_knowers(rows, known[:, partly], weights, start[name][partly], settings)
        for arrays, mine in zip(changed, known[:, partly]):
            arrays[name] = arrays[name].copy()
            arrays[name][partly[~mine]] = theirs[~mine]
    return [replace(update, arrays=arrays) for update, arrays in zip(updates, changed)]


def _of_knowers(
    rows: np.ndarray, known: np.ndarray, weights: np.ndarray, start: np.ndarray, settings: FederationSettings
) -> np.ndarray:
    """The rows (codes, ...) that the sites which know a code make of it; known: (sites, codes)."""
    if settings.strategy in ("median", "trimmed_mean"):
        made = start.copy()
        for code in np.flatnonzero(known.any(0)):
            theirs = rows[known[:, code], code]
            made[code] = np.median(theirs, 0) if settings.strategy == "median" else trim_mean(theirs, settings.trim)
        return made
    shares = known * weights[:, None]
    total = shares.sum(0)
    mean = np.einsum("sc,sc...->c...", shares / np.maximum(total, np.finfo(float).tiny), rows)
    return np.where((total > 0).reshape(-1, *[1] * (rows.ndim - 2)), mean, start).astype(start.dtype)


def _aggregated(strategy: FedAvg, server_round: int, updates: list[SiteUpdate], names: list[str]) -> Arrays:
    """What one of Flower's strategies makes of some arrays of updates."""
    with _quiet(), np.errstate(over="ignore", invalid="ignore"):  # whether all is finite is asked in the end
        record, _ = strategy.aggregate_train(server_round, [_message(update, names) for update in updates])
    return from_record(record)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Flower from telling what the rounds' own lines tell."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _message(update: SiteUpdate, names: list[str]) -> Message:
    """An update as the message that Flower's strategies take."""
    record = RecordDict(
        {
            ARRAYS: to_record({name: update.arrays[name] for name in names}),
            METRICS: MetricRecord({NOTES: update.notes}),
        }
    )
    metadata = Metadata(0, "", 0, 0, "", "", 0.0, 1.0, TRAIN)
    return Message(record, metadata=metadata)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)
