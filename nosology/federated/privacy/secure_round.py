"""A round with secure aggregation: update to vector at the site, sum of vectors to mean update at the server.

The vector of a site is its flattened update times its weight, then its weight for each label that it uses, then its
weight, its notes, and its notes x loss. So the sum gives the weighted mean per label and the mean loss, but not the
weight, loss or labels of a single site.

With `site_clip`, sites clip their own updates and have weight 1. With `site_noise`, each site adds its part of the
noise, so the server sees no sum without noise. `threshold` sites together add the required noise; more sites add more.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Mapping

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.exception import AggregationError

from nosology.core import DataError, FederationError
from nosology.federated.federation_settings import PrivacySettings
from nosology.federated.privacy.masking import from_fixed_point
from nosology.federated.privacy.secure_aggregation import (
    Json,
    SecureSession,
    min_threshold,
    site_noise_scale,
)
from nosology.federated.privacy.secure_server import SecureServer
from nosology.federated.privacy.site_noise import PrivacyBudget, clip_update, secure_normal, weight_difference
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.learner import HEAD_ROWS, LabelRows
from nosology.federated.rounds.messages import ARRAYS, CONFIG, error_reason, get_arrays, get_value, make_content
from nosology.federated.rounds.participants import Participants
from nosology.federated.rounds.site_results import SiteUpdate
from nosology.federated.rounds.strategy import ValidatingStrategy

KEYS, SHARES, MASK = "query.secure_keys", "query.secure_shares", "train.secure"
CONFIRM, UNMASK = "query.secure_confirm", "query.secure_unmask"
SECURE, MASKED = "secure", "masked"  # names in messages: the request or reply of the protocol; the masked vector


def request_digest(content: RecordDict) -> str:
    """A digest of all that a request to train contains, except for the message of the protocol.

    Masks are bound to it. A server that sends one site other weights, another recipe or other labels than the rest, so
    that the updates of the rest are known to it or zero, gets no sum.
    """
    digest = hashlib.sha256()
    for name, array in sorted(content.array_records[ARRAYS].items()):
        digest.update(json.dumps([name, array.dtype, list(array.shape), len(array.data)]).encode() + array.data)
    config = {name: str(value) for name, value in content.config_records[CONFIG].items() if name != SECURE}
    digest.update(json.dumps(sorted(config.items())).encode())
    return digest.hexdigest()


def vector_size(weights: Arrays, rows: LabelRows = HEAD_ROWS) -> int:
    """The length of the vector of a site."""
    return sum(array.size for array in weights.values()) + rows.count(weights) + 3


def to_vector(update: SiteUpdate, initial: Arrays, privacy: PrivacySettings, threshold: int) -> np.ndarray:
    """The vector (N,), float64, of a site. initial: the weights at the start of the round."""
    added = weight_difference(update.arrays, initial)
    weight = float(update.notes)
    if privacy.site_clip:
        added, weight = clip_update(added, privacy.site_clip), 1.0
    flat = weight * np.concatenate([added[name].ravel() for name in initial])
    if privacy.site_noise:
        flat += site_noise_scale(privacy.site_noise, privacy.site_clip, threshold) * secure_normal()(flat.shape)
    return np.concatenate([flat, weight * update.label_mask, [weight, update.notes, update.notes * update.loss]])


def from_vector(
    total: np.ndarray, initial: Arrays, privacy: PrivacySettings, rows: LabelRows = HEAD_ROWS
) -> SiteUpdate:
    """The mean update of the sites with this sum of vectors (N,), float64.

    Clipped updates are divided by all sites, whichever labels they use, as in `CentralNoise`.
    """
    labels = rows.count(initial)
    label_weights, (weight, notes, loss_sum) = total[-labels - 3 : -3], total[-3:]
    arrays, start = {}, 0
    for name, first in initial.items():
        added = total[start : start + first.size].reshape(first.shape)
        start += first.size
        per_label = name in rows.names and not privacy.site_clip
        divisor = np.maximum(label_weights, 2.0**-32) if per_label else np.full(len(first), weight)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # of a false vector; the caller checks
            arrays[name] = (first + added / divisor.reshape(-1, *[1] * (first.ndim - 1))).astype(first.dtype)
    loss = float(loss_sum) / float(notes) if notes else math.nan
    return SiteUpdate("all sites", arrays, float(notes), loss, label_weights > 0.5)


def describe_threshold(sites: int, quorum: int, privacy: PrivacySettings) -> str:
    """How many of the sites of a round a secure sum needs; FederationError if the settings are impossible for them."""
    chosen, needed = privacy.secure_threshold, min_threshold(sites, max(quorum, privacy.min_secure_sites))
    if chosen and 2 * chosen <= sites:
        raise FederationError(
            f"federation.privacy.secure_threshold must be more than half of the {sites} sites, else the server could "
            f"unmask single updates; got {chosen}"
        )
    if needed > sites:
        raise FederationError(f"secure sums need {needed} sites in a round; there are {sites}")
    lost = {0: "none", 1: "one"}.get(sites - needed, str(sites - needed))
    text = f"{sites} sites, secure sums need {'all' if needed == sites else needed} of them; {lost} may be lost"
    return text + ("; in a sum over two sites each can compute the update of the other" if needed == 2 else "")


class SecureRounds:
    """The server's part: sends the five messages of a round and returns the mean update."""

    def __init__(self, participants: Participants, strategy: ValidatingStrategy, privacy: PrivacyBudget):
        self.participants, self.strategy, self.privacy = participants, strategy, privacy
        self.run = secrets.token_hex(8)
        self.attempts: Counter[int] = Counter()

    def __call__(self, messages: list[Message], needed: int) -> list[SiteUpdate]:
        """A list with the mean update; AggregationError names the stage with too few sites."""
        content = messages[0].content
        number = get_value(content, "round")
        self.attempts[number] += 1
        needed = max(needed, self.privacy.settings.min_secure_sites)
        session = SecureSession(self.run, number, self.attempts[number])
        server = SecureServer(session, needed, request_digest(content))
        strategy, initial = self.strategy, get_arrays(content)
        strategy.accepted, strategy.refused = [], {}
        sites = [strategy.sites[message.metadata.dst_node_id] for message in messages]
        try:
            total = self._sum(server, sites, content, vector_size(initial, strategy.rows))
        except (FederationError, DataError) as error:
            raise AggregationError(str(error)) from error
        finally:
            strategy.refused |= server.refused
        strategy.accepted = server.sent
        self.privacy.record_secure_sum(server.sent)
        update = from_vector(from_fixed_point(total), initial, self.privacy.settings, strategy.rows)
        expected = sum(strategy.notes[site] for site in server.sent)
        if not abs(update.notes - expected) < 0.5:
            raise AggregationError(
                f"{session}: the sum of notes must be {expected}, as reported; a site has sent a false vector, or sites"
                " have different tasks"
            )
        return [update]

    def _sum(self, server: SecureServer, sites: list[str], content: RecordDict, size: int) -> np.ndarray:
        requests = server.receive_keys(self._protocol_replies(KEYS, dict.fromkeys(sites, server.request)))
        requests = server.receive_shares(self._protocol_replies(SHARES, requests))
        arrays, config = content.array_records[ARRAYS], content.config_records[CONFIG]
        contents = {
            site: RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({**dict(config), SECURE: json.dumps(request)})})
            for site, request in requests.items()
        }
        for site, reply in self._replies(MASK, contents).items():
            try:
                server.receive_masked(site, get_arrays(reply.content)[MASKED], size)
            except Exception:  # a damaged reply raises various exceptions
                server.refused[site] = "its vector cannot be read"
        requests = server.receive_confirmed(self._protocol_replies(CONFIRM, server.confirm_requests()))
        return server.receive_unmasked(self._protocol_replies(UNMASK, requests))

    def _replies(self, kind: str, contents: Mapping[str, RecordDict]) -> dict[str, Message]:
        """The replies without an error, by site; the other sites are in the strategy's `refused`."""
        replies = self.participants.request(kind, contents)
        for site in contents:
            if site not in replies:
                self.strategy.refused[site] = self.participants.missing_reason(site)
            elif replies[site].has_error():
                self.strategy.refused[site] = error_reason(replies[site].error)
        return {site: reply for site, reply in sorted(replies.items()) if not reply.has_error()}

    def _protocol_replies(self, kind: str, requests: Mapping[str, Json]) -> dict[str, Json]:
        recipe = self.participants.recipe.model_dump(mode="json")
        contents = {site: make_content(recipe=recipe, secure=request) for site, request in requests.items()}
        replies = {}
        for site, reply in self._replies(kind, contents).items():
            try:
                replies[site] = get_value(reply.content, SECURE)
            except (KeyError, ValueError):
                self.strategy.refused[site] = "its reply cannot be read"
        return replies
