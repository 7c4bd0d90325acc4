"""A Flower strategy that validates replies and passes the valid ones to one of Flower's own strategies.

Added here: invalid replies are refused with a reason. Replies are sorted by site name, so the order of arrival has no
effect. Rows of a label are averaged over the sites that use the label. Sites are sampled by seed and round. The running
statistics of batch normalization are averaged, not passed to the server optimizer. Weights keep their dtype.

For privacy, `reduce` replaces the valid updates of a round by one, for example their noisy mean (`CentralNoise`).
Secure aggregation computes that one update itself. Neither is possible with strategies
that compare sites (`ROBUST`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedProx, FedTrimmedAvg, FedYogi
from flwr.serverapp.strategy.fedopt import FedOpt

from nosology.federated.federation_settings import FederationSettings
from nosology.federated.rounds import messages
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.learner import HEAD_ROWS, LabelRows
from nosology.federated.rounds.robust_updates import (
    KRUM,
    ROBUST,
    Shares,
    bound_norms,
    choose_updates,
    cut_shares,
    merge_shares,
    trimmed_sites,
)
from nosology.federated.rounds.site_results import SiteUpdate
from nosology.training.batch_plan import derive_seed

# tau of FedAdam and FedYogi is added to the root of the second moment, so it damps small updates. Sites with AdamW move
# every weight by about the learning rate, noise included. With FedSGD a rare code has a tiny gradient.
_TAU = {"adamw": 1e-3, "fedsgd": 1e-8}
_BETA_1, _BETA_2 = 0.9, 0.99

Reduce = Callable[[int, Arrays, list[SiteUpdate]], SiteUpdate]  # round, weights at its start, updates


def flower_strategy(settings: FederationSettings) -> FedAvg:
    """The Flower strategy of the settings; of krum and multi_krum, the mean of the chosen updates."""
    if settings.strategy in ("fedadam", "fedyogi"):
        optimizer = FedAdam if settings.strategy == "fedadam" else FedYogi
        return optimizer(
            eta=settings.server_learning_rate, beta_1=_BETA_1, beta_2=_BETA_2, tau=_TAU[settings.optimizer]
        )
    if settings.strategy == "fedprox":
        return FedProx(proximal_mu=settings.mu)
    if settings.strategy == "trimmed_mean":
        return FedTrimmedAvg(beta=settings.trim)
    return FedMedian() if settings.strategy == "median" else FedAvg()


class ValidatingStrategy:
    """One of Flower's strategies, with validation of replies.

    The caller sets `notes` (reported number of notes by site) and, with `start`, the weights with one row per label.
    `configure_train` sets `sites` (names by node id), `validate` sets `accepted` and `refused`.
    """

    def __init__(self, settings: FederationSettings, seed: int = 0, reduce: Reduce | None = None):
        self.settings, self.seed, self.reduce = settings, seed, reduce
        self.inner = flower_strategy(settings)
        self.sites: dict[int, str] = {}
        self.notes: dict[str, int] = {}
        self.rows: LabelRows = HEAD_ROWS
        self.initial: Arrays = {}  # weights at the start of the round
        self.accepted: list[str] = []
        self.refused: dict[str, str] = {}
        self.cut: Shares = {}  # of the last round: how much of the update of a site was cut off

    @property
    def min_replies(self) -> int:
        """The number of replies that the strategy needs, whatever the quorum."""
        if self.settings.strategy in KRUM:
            return 2 * self.settings.malicious + 3
        if self.settings.strategy == "trimmed_mean" and self.settings.trim:
            return next(n for n in range(1, 10**6) if trimmed_sites(self.settings, n))  # with fewer nothing is trimmed
        return 3 if self.settings.norm_multiple else 1  # the median norm of two is not that of an honest site

    def start(self, rows: LabelRows) -> None:
        """Starts with other weights, of which `rows` have one row per label; the server's optimizer has no state."""
        self.rows, self.inner = rows, flower_strategy(self.settings)

    def sample_sites(self, purpose: str, number: int, fraction: float, online: Iterable[str]) -> list[str]:
        """The sorted sites of a round: a fraction of those online, at least one, sampled by seed and round."""
        names = sorted(online)
        size = min(len(names), max(1, math.ceil(fraction * len(names) - 1e-9))) if fraction else 0
        rng = np.random.default_rng(derive_seed("sites", purpose, self.seed, number))
        return sorted(names[i] for i in rng.permutation(len(names))[:size])

    def configure_train(
        self, server_round: int, weights: Arrays, config: ConfigRecord, online: Mapping[int, str]
    ) -> list[Message]:
        """The training messages of a round. online: site of each node."""
        self.initial, self.sites = weights, dict(online)
        nodes = {site: node for node, site in online.items()}
        record = RecordDict({messages.ARRAYS: messages.to_record(weights), messages.CONFIG: config})
        sites = self.sample_sites("train", server_round, self.settings.fraction_train, nodes)
        return [Message(record, nodes[site], messages.TRAIN, ttl=self.settings.timeout) for site in sites]

    def validate(self, replies: Iterable[tuple[str, Message]]) -> list[SiteUpdate]:
        """The valid updates of (site, reply) pairs, by site name; sets `accepted` and `refused`."""
        updates: dict[str, SiteUpdate] = {}
        self.refused = {}
        for site, reply in sorted(replies, key=lambda item: (item[0], item[1].metadata.src_node_id)):
            reported, settings = self.notes.get(site), self.settings
            update = messages.read_update(site, reply, self.initial, reported, rows=self.rows, settings=settings)
            if site in updates:
                self.refused[site] = "it has replied twice"
            elif isinstance(update, str):
                self.refused[site] = update
            else:
                updates[site] = update
        self.accepted = sorted(updates)
        return [updates[site] for site in self.accepted]

    def aggregate(self, server_round: int, updates: list[SiteUpdate]) -> tuple[Arrays, float]:
        """New weights and mean loss of one or more updates; AggregationError if they are not finite or too large."""
        if self.reduce is not None:
            updates = [self.reduce(server_round, self.initial, updates)]
        notes = sum(update.notes for update in updates)
        loss = sum(update.notes * update.loss for update in updates) / notes if notes else math.nan
        if not math.isfinite(loss):
            raise AggregationError("the loss of the round is not finite")
        bounded, shortened = bound_norms(updates, self.initial, self.settings)
        filled = fill_unused_labels(bounded, self.initial, self.settings, self.rows)
        chosen = choose_updates(filled, self.initial, self.settings)
        new = self._apply(server_round, chosen)
        self.cut = merge_shares(shortened, cut_shares(filled, chosen, self.settings))
        unused = ~np.any([update.label_mask for update in updates], axis=0)
        for name, first in self.initial.items():
            new[name] = new[name].astype(first.dtype)  # FedAdam returns float64
            if name in self.rows.names:
                new[name][unused] = first[unused]  # the momentum of the server would still move them
        if not all((np.abs(array) <= messages.MAX_VALUE).all() for array in new.values()):
            raise AggregationError(f"the weights of the round are not finite, or beyond {messages.MAX_VALUE:g}")
        if any(messages.has_negative_variance(name, array) for name, array in new.items()):
            raise AggregationError("a variance of the round is negative")
        return new, loss

    def _apply(self, server_round: int, updates: list[SiteUpdate]) -> Arrays:
        """The weights that Flower's strategy returns, in the order of the initial weights."""
        names = list(self.initial)
        if isinstance(self.inner, FedOpt):
            names = [name for name in names if not name.endswith(("running_mean", "running_var"))]
            self.inner.current_arrays = {name: self.initial[name] for name in names}
        new = _aggregate(self.inner, server_round, updates, names)
        if rest := [name for name in self.initial if name not in new]:
            new |= _aggregate(FedAvg(), server_round, updates, rest)
        return {name: new[name] for name in self.initial}

    def optimizer_state(self) -> Arrays:
        """The server's first and second moments (m_t, v_t)."""
        parts = {"m": getattr(self.inner, "m_t", None), "v": getattr(self.inner, "v_t", None)}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in (arrays or {}).items()}

    def load_optimizer_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues with the state of `optimizer_state`."""
        for part, attribute in (("m", "m_t"), ("v", "v_t")):
            arrays = {name[2:]: array for name, array in state.items() if name.startswith(f"{part}.")}
            if arrays:
                setattr(self.inner, attribute, arrays)


def fill_unused_labels(
    updates: list[SiteUpdate], initial: Arrays, settings: FederationSettings, rows_of: LabelRows
) -> list[SiteUpdate]:
    """The updates, with rows of labels that a site does not use replaced by the aggregate of the sites that use them.

    The mean over all sites is then the mean over the sites that use the label; median and trimmed mean likewise. If
    Krum chooses a site that does not use a label, its row is the median of the sites that use it. Rows that no site
    uses stay as they are.
    """
    masks = np.stack([update.label_mask for update in updates])  # (sites, L)
    partial = np.flatnonzero(~masks.all(0))
    if not len(partial):
        return updates
    weights = np.array([update.notes for update in updates])
    filled = [dict(update.arrays) for update in updates]
    for name in rows_of.names:
        rows = np.stack([update.arrays[name][partial] for update in updates])  # (sites, labels, ...)
        aggregate = _aggregate_rows(rows, masks[:, partial], weights, initial[name][partial], settings)
        for arrays, mask in zip(filled, masks[:, partial]):
            arrays[name] = arrays[name].copy()
            arrays[name][partial[~mask]] = aggregate[~mask]
    return [replace(update, arrays=arrays) for update, arrays in zip(updates, filled)]


def _aggregate_rows(
    rows: np.ndarray, masks: np.ndarray, weights: np.ndarray, initial: np.ndarray, settings: FederationSettings
) -> np.ndarray:
    """The aggregated rows (labels, ...) over the sites that use each label; masks: (sites, labels)."""
    if settings.strategy in ROBUST:
        result = initial.copy()
        # as many sites are cut off as of all sites: those that send false updates may all use the label
        cut = trimmed_sites(settings, len(rows)) if settings.strategy == "trimmed_mean" else len(rows)
        for label in np.flatnonzero(masks.any(0)):
            used = np.sort(rows[masks[:, label], label], axis=0)
            ends = min(cut, (len(used) - 1) // 2)
            result[label] = used[ends : len(used) - ends].mean(0)
        return result
    label_weights = masks * weights[:, None]
    total = label_weights.sum(0)
    mean = np.einsum("sc,sc...->c...", label_weights / np.maximum(total, np.finfo(float).tiny), rows)
    return np.where((total > 0).reshape(-1, *[1] * (rows.ndim - 2)), mean, initial).astype(initial.dtype)


def _aggregate(strategy: FedAvg, server_round: int, updates: list[SiteUpdate], names: list[str]) -> Arrays:
    """The result of one of Flower's strategies for some arrays of the updates."""
    replies = []
    for update in updates:
        arrays = messages.to_record({name: update.arrays[name] for name in names})
        content = RecordDict({messages.ARRAYS: arrays, messages.METRICS: MetricRecord({messages.NOTES: update.notes})})
        replies.append(make_message(Metadata(0, "", 0, 0, "", "", 0.0, 1.0, messages.TRAIN), content))
    with _quiet(), np.errstate(over="ignore", invalid="ignore"):  # the caller checks whether all values are finite
        record, _ = strategy.aggregate_train(server_round, replies)
    if record is None:
        raise AggregationError("the strategy returned no weights")
    return messages.from_record(record)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides Flower's log lines about aggregation."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
