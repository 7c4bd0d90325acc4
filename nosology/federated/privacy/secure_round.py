"""A secure round on a grid: what the sites answer, how an update becomes a vector, what the server reads in the sum.

The vector of a site is its update, tensor after tensor, times its weight; then its weight for each code that it knows;
then its weight, its notes, and its notes x loss. So the sum gives the weighted mean over the sites that know a code,
and the mean loss, and neither weight nor loss nor codes of a single site.

With `site_clip`, each site clips its own update and weighs 1. With `site_noise`, each adds its share of the noise: the
server sees no sum without noise. `threshold` sites together add the noise that is asked for, more add more.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.exception import AggregationError

from nosology.core import ConfigError, DataError, FederationError
from nosology.federated.federation_settings import FederatedHeadsRecipe, PrivacySettings
from nosology.federated.privacy.masking import from_whole, to_whole
from nosology.federated.privacy.secure import Json, SecureSite, Session, Signatures, share_of_noise
from nosology.federated.privacy.secure_server import SecureServer
from nosology.federated.privacy.site_noise import Privacy, clipped, difference, fresh_normal
from nosology.federated.privacy.site_policy import recipe_of
from nosology.federated.rounds.hospital_site import Site, Update
from nosology.federated.rounds.participants import Roster
from nosology.federated.rounds.records import ARRAYS, CONFIG, Arrays, content, from_record, reason_of, value
from nosology.federated.rounds.replies import SiteUpdate
from nosology.federated.rounds.strategy import GuardedStrategy

KEYS, SHARES, MASK, UNMASK = "query.secure_keys", "query.secure_shares", "train.secure", "query.secure_unmask"
SECURE_KEY, SECURE_PEERS = "secure-key", "secure-peers"  # in a node's config
_STATE = _VALUE = "secure"  # in a context's state; in a message
_VECTOR = "masked"
_ROWS = ("out.weight", "out.bias")  # one row a code


def size_of(start: Arrays) -> int:
    """The length of a site's vector."""
    return sum(array.size for array in start.values()) + len(start["out.bias"]) + 3


def to_vector(update: Update, start: Arrays, privacy: PrivacySettings, threshold: int) -> np.ndarray:
    """A site's vector (N,), float64."""
    added = difference(update.weights, start)
    weight = float(update.notes)
    if privacy.site_clip:
        added, weight = clipped(added, privacy.site_clip), 1.0
    flat = weight * np.concatenate([added[name].ravel() for name in start])
    if privacy.site_noise:
        flat += share_of_noise(privacy.site_noise, privacy.site_clip, threshold) * fresh_normal()(flat.shape)
    tail = [weight, update.notes, update.notes * update.loss]
    return np.concatenate([flat, weight * update.known, tail])


def from_vector(total: np.ndarray, start: Arrays, privacy: PrivacySettings) -> SiteUpdate:
    """The mean update of the sites whose vectors sum to `total` (N,), float64.

    A clipped update is shared among all sites, as without secure rounds, whoever knows the code.
    """
    labels = len(start["out.bias"])
    shares, (weight, notes, losses) = total[-labels - 3 : -3], total[-3:]
    arrays, place = {}, 0
    for name, first in start.items():
        added = total[place : place + first.size].reshape(first.shape)
        place += first.size
        each = np.maximum(shares, 2.0**-32) if name in _ROWS and not privacy.site_clip else np.full(len(first), weight)
        arrays[name] = (first + added / each.reshape(-1, *[1] * (first.ndim - 1))).astype(first.dtype)
    return SiteUpdate("all sites", arrays, float(notes), float(losses / notes), shares > 0.5)


class SecureRounds:
    """The server's side: called with the messages of a round, it gives the one update that it could see."""

    def __init__(self, roster: Roster, strategy: GuardedStrategy, privacy: Privacy):
        self.roster, self.strategy, self.privacy = roster, strategy, privacy
        self.run = secrets.token_hex(8)
        self.attempts: Counter[int] = Counter()

    def __call__(self, messages: list[Message], needed: int) -> list[SiteUpdate]:
        """The update, in a list; AggregationError names the stage at which too few sites were left."""
        asked = messages[0].content
        number = value(asked, "round")
        self.attempts[number] += 1
        server = SecureServer(Session(self.run, number, self.attempts[number]), needed)
        strategy, start = self.strategy, from_record(asked[ARRAYS])
        strategy.accepted, strategy.refused = [], {}
        sites = [strategy.sites[message.metadata.dst_node_id] for message in messages]
        try:
            total = self._sum(server, sites, asked, size_of(start))
        except (FederationError, DataError) as error:
            raise AggregationError(str(error)) from error
        finally:
            strategy.refused |= server.refused
        strategy.accepted = server.sent
        self.privacy.opened(server.sent)
        return [from_vector(from_whole(total), start, self.privacy.settings)]

    def _sum(self, server: SecureServer, sites: list[str], asked: RecordDict, size: int) -> np.ndarray:
        requests = server.take_keys(self._answers(KEYS, dict.fromkeys(sites, server.request)))
        requests = server.take_shares(self._answers(SHARES, requests))
        told = {
            site: RecordDict(
                {ARRAYS: asked[ARRAYS], CONFIG: ConfigRecord({**asked[CONFIG], _VALUE: json.dumps(request)})}
            )
            for site, request in requests.items()
        }
        for site, reply in self._replies(MASK, told).items():
            try:
                server.take_masked(site, reply.content[ARRAYS][_VECTOR].numpy(), size)
            except Exception:  # whatever a damaged reply makes of it
                server.refused[site] = "its vector cannot be read"
        return server.take_unmasked(self._answers(UNMASK, server.unmask_requests()))

    def _replies(self, kind: str, contents: Mapping[str, RecordDict]) -> dict[str, Message]:
        """The replies without an error; the strategy's `refused` says why there are not more."""
        replies = self.roster.ask(kind, contents)
        for site in contents:
            if site not in replies:
                self.strategy.refused[site] = f"no answer in {self.roster.settings.wait:g} s"
            elif replies[site].has_error():
                self.strategy.refused[site] = reason_of(replies[site].error)
        return {site: reply for site, reply in sorted(replies.items()) if not reply.has_error()}

    def _answers(self, kind: str, requests: Mapping[str, Json]) -> dict[str, Json]:
        recipe = self.roster.recipe.model_dump(mode="json")
        replies = self._replies(kind, {site: content(recipe=recipe, secure=asked) for site, asked in requests.items()})
        found = {}
        for site, reply in replies.items():
            try:
                found[site] = value(reply.content, _VALUE)
            except (KeyError, ValueError):
                self.strategy.refused[site] = "its answer cannot be read"
        return found


class SecureHandlers:
    """The site's side: its answers to the four messages. Its secrets are in the context's state, nowhere else.

    find_site: gives the Site of a node; trained: the update of a message that trains.
    """

    def __init__(
        self,
        find_site: Callable[[Context, FederatedHeadsRecipe], Site],
        trained: Callable[[Message, Context], Update],
    ):
        self.find_site, self.trained = find_site, trained

    def keys(self, message: Message, context: Context) -> RecordDict:
        """Fresh public keys."""
        return self._answered("keys", message, context)

    def shares(self, message: Message, context: Context) -> RecordDict:
        """Letters with shares."""
        return self._answered("shares", message, context)

    def unmask(self, message: Message, context: Context) -> RecordDict:
        """Opened shares."""
        return self._answered("unmask", message, context)

    def mask(self, message: Message, context: Context) -> RecordDict:
        """The site's update of the round, masked."""
        site, privacy = self._site(message, context)
        update = self.trained(message, context)
        vector = to_vector(update, from_record(message.content[ARRAYS]), privacy, site.state.threshold)
        masked = site.mask(value(message.content, _VALUE), to_whole(vector, len(site.state.keys)))
        _keep(site, context)
        return content({_VECTOR: masked})

    def _answered(self, stage: str, message: Message, context: Context) -> RecordDict:
        site, _ = self._site(message, context)
        answer = getattr(site, stage)(value(message.content, _VALUE))
        _keep(site, context)
        return content(secure=answer)

    def _site(self, message: Message, context: Context) -> tuple[SecureSite, PrivacySettings]:
        recipe = recipe_of(message, context)
        name, kept = self.find_site(context, recipe).name, context.state.get(_STATE)
        state = json.loads(kept["state"]) if kept is not None else None
        return SecureSite(name, state, signatures_of(context)), recipe.federation.privacy


def _keep(site: SecureSite, context: Context) -> None:
    context.state[_STATE] = ConfigRecord({"state": json.dumps(site.to_json())})


def signatures_of(context: Context) -> Signatures | None:
    """The site's key and the others' public keys, where the node's config names them."""
    key, peers = (str(context.node_config.get(name) or "") for name in (SECURE_KEY, SECURE_PEERS))
    if not peers:
        return None
    if not key:
        raise ConfigError(f"the node's config must name {SECURE_KEY} where it names {SECURE_PEERS}")
    from nosology.federated.deploy.credentials import read_public_keys, read_site_key

    return Signatures(read_site_key(Path(key)), read_public_keys(Path(peers)))
