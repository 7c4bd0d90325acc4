"""Secure aggregation: the server learns the sum of the sites' vectors and nothing else about a single vector.

The protocol is double masking, Bonawitz et al. (2017), "Practical Secure Aggregation". A site gets four messages per
round:

1. keys: the site creates two new X25519 key pairs, one for masks and one for encryption.
2. shares: the site receives the public keys of all sites. It sends every other site, encrypted, a Shamir share of its
   private mask key and a share of a random seed.
3. mask: the site adds masks to its vector, modulo 2^64: one from its seed, and one per pair of sites, which one of the
   two adds and the other subtracts.
4. unmask: the site receives the list of sites that sent a vector. It sends its shares of their seeds, and its shares of
   the mask keys of the other sites. It never sends both for one site: both together would reveal the vector.

The sum over the sites that sent a vector is recovered if `threshold` sites stay until the end. The threshold is more
than half of the sites. So the server cannot tell two groups of sites different lists of lost sites.

Keys are new for every attempt of every round, and bound to it, so no mask is used twice. Messages are JSON (bytes as
hex), the masked vector is an array. Not protected against: a server that invents sites or exchanges keys, unless sites
sign them (`SiteSignatures`), and sites that send false vectors.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from nosology.core import FederationError
from nosology.federated.privacy import masking

MIN_SITES = 3  # by default: of two sites each could subtract its own vector from the sum
_KEY_KINDS = ("mask", "encryption")

Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class SecureSession:
    """One attempt at one round of one run."""

    run: str  # unique
    round: int
    attempt: int = 1

    def __str__(self) -> str:
        return f"secure round {self.round}, attempt {self.attempt}"

    @property
    def label(self) -> str:
        """The context that all keys of the session are bound to."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class SiteSignatures:
    """The long-lived private key of a site, and the public keys (PEM) of all sites, exchanged without the server."""

    private_key: ec.EllipticCurvePrivateKey
    peers: Mapping[str, bytes]

    def sign(self, data: bytes) -> str:
        """The signature of data."""
        return self.private_key.sign(data, ec.ECDSA(hashes.SHA384())).hex()

    def check(self, site: str, data: bytes, signature: str) -> None:
        """Raises FederationError if a site has not signed the data."""
        if site not in self.peers:
            raise FederationError(f"no public key of site {site} is known here")
        peer = load_pem_public_key(self.peers[site])
        try:
            if not isinstance(peer, ec.EllipticCurvePublicKey):
                raise ValueError("not an elliptic curve key")
            peer.verify(bytes.fromhex(signature), data, ec.ECDSA(hashes.SHA384()))
        except (InvalidSignature, ValueError) as error:
            raise FederationError(f"the keys of site {site} are not signed by it") from error


def min_threshold(sites: int, min_sites: int = MIN_SITES) -> int:
    """The smallest threshold: more than half of the sites, and at least `min_sites`.

    With half of the sites or fewer, a server could tell two groups of sites different lists of lost sites, get the
    shares of the seed of a site from one group and those of its mask key from the other, and unmask its vector.
    """
    return max(min_sites, sites // 2 + 1, 2)  # a sum over one site is its vector


@dataclass
class SecureState:
    """What a site stores between messages, as JSON. It contains the secrets of the current round."""

    last: list[Any] = field(default_factory=list)  # run, round, attempt of the newest session
    unmasked: list[Any] = field(default_factory=list)  # run and round that was last unmasked
    stage: str = ""  # last answered message: keys, shares or mask; empty: none, or unmasked
    private: dict[str, str] = field(default_factory=dict)  # private keys by kind, and the seed
    threshold: int = 0
    keys: dict[str, dict[str, str]] = field(default_factory=dict)  # public keys of all sites of the session
    shares: dict[str, list[str]] = field(default_factory=dict)  # of the seed and of the mask key, by site
    seen: list[str] = field(default_factory=list)  # digests of keys of earlier sessions


class SecureSite:
    """The site's part of the protocol. Each method answers one message; messages must come in order.

    min_sites: of a sum that the site takes part in. From a sum over two sites each can compute the other's vector.
    """

    def __init__(
        self,
        name: str,
        state: Json | None = None,
        signatures: SiteSignatures | None = None,
        min_sites: int = MIN_SITES,
    ):
        self.name, self.signatures, self.min_sites = name, signatures, min_sites
        self.state = SecureState(**(state or {}))

    def to_json(self) -> Json:
        """The state for the next message. It must never leave the site."""
        return asdict(self.state)

    def keys(self, request: Json) -> Json:
        """New public keys for a session that is newer than all before."""
        session = SecureSession(**request["session"])
        last, unmasked = self.state.last, self.state.unmasked
        if last and last[0] == session.run and (session.round, session.attempt) <= tuple(last[1:]):
            raise FederationError(f"{session} is not newer than the last one")
        if unmasked and unmasked[0] == session.run and session.round <= unmasked[1]:
            raise FederationError(f"{session} is over: its sum was unmasked already")
        pairs = {kind: masking.generate_key_pair() for kind in _KEY_KINDS}
        private = {kind: pair[0].hex() for kind, pair in pairs.items()} | {"seed": secrets.token_hex(32)}
        current, seen = [session.run, session.round, session.attempt], self.state.seen + _digests(self.state.keys)
        self.state = SecureState(current, unmasked, "keys", private, seen=seen)
        public = {kind: pair[1].hex() for kind, pair in pairs.items()}
        if self.signatures:
            public["signature"] = self.signatures.sign(_signed_data(session, self.name, public))
        return public

    def shares(self, request: Json) -> Json:
        """Encrypted shares of this site's secrets for each other site, and a commitment to the seed."""
        session = self._session(request, "keys")
        keys, threshold = request["keys"], int(request["threshold"])
        self._check_keys(session, keys, threshold)
        names = sorted(keys)
        shares = [masking.split_secret(self._secret(kind), threshold, len(names)) for kind in ("seed", "mask")]
        encrypted = {}
        for name, seed, mask in zip(names, *shares):
            if name == self.name:
                self.state.shares[name] = [seed.hex(), mask.hex()]
            else:
                key = self._encryption_key(session, keys[name]["encryption"], self.name, name)
                encrypted[name] = masking.encrypt(key, seed + mask).hex()
        self.state.keys, self.state.threshold, self.state.stage = keys, threshold, "shares"
        return {
            "encrypted_shares": encrypted,
            "commitment": seed_commitment(session, self.name, self._secret("seed")),
        }

    def mask(self, request: Json, vector: np.ndarray) -> np.ndarray:
        """The masked vector (N,), uint64. request: the encrypted shares for this site, by sending site."""
        session = self._session(request, "shares")
        encrypted, keys = request["encrypted_shares"], self.state.keys
        if not set(encrypted) <= set(keys) - {self.name} or len(encrypted) + 1 < self.state.threshold:
            raise FederationError(f"{session}: {len(encrypted) + 1} sites are left, {self.state.threshold} are needed")
        for name, share in encrypted.items():
            key = self._encryption_key(session, keys[name]["encryption"], name, self.name)
            try:
                data = masking.decrypt(key, bytes.fromhex(share))
            except (InvalidTag, ValueError) as error:
                raise FederationError(f"{session}: the encrypted share of site {name} was changed") from error
            self.state.shares[name] = [data[: len(data) // 2].hex(), data[len(data) // 2 :].hex()]
        masked = vector + masking.keystream(seed_mask_key(session, self.name, self._secret("seed")), len(vector))
        for name in encrypted:
            add_pairwise_mask(masked, session, self.name, name, self._secret("mask"), keys[name]["mask"])
        self.state.stage = "mask"
        self.state.private = {}  # from now on only the shares at the other sites are needed
        return masked

    def unmask(self, request: Json) -> Json:
        """The shares of the seeds of sites that sent a vector, and of the mask keys of the other sites."""
        session = self._session(request, "mask")
        sent, shares = set(request["sent"]), self.state.shares
        if not sent <= set(shares) or self.name not in sent or len(sent) < self.state.threshold:
            raise FederationError(f"{session}: {len(sent)} vectors were sent, {self.state.threshold} are needed")
        self.state.stage, self.state.shares = "", {}
        self.state.unmasked = [session.run, session.round]
        return {
            "seeds": {name: shares[name][0] for name in sorted(sent)},
            "masks": {name: shares[name][1] for name in sorted(set(shares) - sent)},
        }

    def _session(self, request: Json, stage: str) -> SecureSession:
        """The session of a request; FederationError if it is not the current one or the stage is wrong."""
        session = SecureSession(**request["session"])
        if [session.run, session.round, session.attempt] != self.state.last:
            raise FederationError(f"{session} is not the current one of this site")
        if self.state.stage != stage:
            raise FederationError(f"{session}: the message is out of order")
        return session

    def _secret(self, kind: str) -> bytes:
        return bytes.fromhex(self.state.private[kind])

    def _encryption_key(self, session: SecureSession, public: str, sender: str, receiver: str) -> bytes:
        secret = masking.shared_secret(self._secret("encryption"), bytes.fromhex(public))
        return masking.derive_key(secret, "share", session.label, sender, receiver)

    def _check_keys(self, session: SecureSession, keys: Mapping[str, Mapping[str, str]], threshold: int) -> None:
        """Raises FederationError unless the keys are new, distinct, signed if required, and include this site's."""
        own = {kind: masking.public_key(self._secret(kind)).hex() for kind in _KEY_KINDS}
        if self.name not in keys or any(keys[self.name][kind] != own[kind] for kind in own):
            raise FederationError(f"{session}: the keys of this site are not those that it sent")
        if not (least := min_threshold(len(keys), self.min_sites)) <= threshold <= len(keys):
            allowed = f"[{least}, {len(keys)}]"
            raise FederationError(f"{session}: the threshold must be in {allowed}; got {threshold}")
        if len(digests := _digests(keys)) > len(set(digests)):
            raise FederationError(f"{session}: a key occurs twice")
        if not set(self.state.seen).isdisjoint(digests):
            raise FederationError(f"{session}: a key of an earlier round was sent again")
        if self.signatures:
            for name, site_keys in keys.items():
                data = _signed_data(session, name, site_keys)
                self.signatures.check(name, data, site_keys.get("signature", ""))


class SecureServer:
    """The server's part of one session. Each method takes the replies of the sites and returns the next requests.

    It stores public keys and a running sum of masked vectors. quorum: sites that a sum needs; the threshold is more if
    that is not more than half of the sites.
    """

    def __init__(self, session: SecureSession, quorum: int = MIN_SITES):
        self.session, self.quorum = session, quorum
        self.threshold = 0
        self.keys: dict[str, Json] = {}
        self.commitments: dict[str, str] = {}  # of the sites that sent shares
        self.total: np.ndarray | None = None
        self.sent: list[str] = []
        self.refused: dict[str, str] = {}  # sites with an invalid reply, and why

    @property
    def request(self) -> Json:
        """The first message, the same for all sites."""
        return {"session": asdict(self.session)}

    def receive_keys(self, replies: Mapping[str, Json]) -> dict[str, Json]:
        """The second message, for each site that sent keys."""
        valid = self._valid(replies, "keys", lambda site, keys: all(_is_hex(keys[kind], 32) for kind in _KEY_KINDS))
        self.threshold = min_threshold(len(valid), self.quorum)
        self._check_enough(valid, "sent keys")
        self.keys = {name: valid[name] for name in sorted(valid)}
        return {name: {**self.request, "keys": self.keys, "threshold": self.threshold} for name in self.keys}

    def receive_shares(self, replies: Mapping[str, Json]) -> dict[str, Json]:
        """The third message, for each site that sent shares: the encrypted shares for it."""

        def is_valid(site: str, reply: Json) -> bool:
            shares, others = reply["encrypted_shares"], set(self.keys) - {site}
            return _is_hex(reply["commitment"], 32) and set(shares) == others and all(map(_is_hex, shares.values()))

        valid = self._valid(replies, "shares", is_valid)
        self._check_enough(valid, "sent shares")
        self.commitments = {name: valid[name]["commitment"] for name in sorted(valid)}
        requests = {}
        for name in self.commitments:
            shares = {sender: valid[sender]["encrypted_shares"][name] for sender in valid if sender != name}
            requests[name] = {**self.request, "encrypted_shares": shares}
        return requests

    def receive_masked(self, site: str, masked: np.ndarray, size: int) -> None:
        """Adds the masked vector (size,), uint64, of a site to the sum, if it is valid."""
        if site not in self.commitments or site in self.sent:
            self.refused[site] = "its vector was not requested"
        elif masked.dtype != np.uint64 or masked.shape != (size,):
            self.refused[site] = f"its vector must be uint64 ({size},); got {masked.dtype} {masked.shape}"
        else:
            self.total = masked.copy() if self.total is None else self.total + masked
            self.sent = sorted([*self.sent, site])

    def unmask_requests(self) -> dict[str, Json]:
        """The fourth message, for each site that sent a vector."""
        self._check_enough(self.sent, "sent a vector")
        return {name: {**self.request, "sent": self.sent} for name in self.sent}

    def receive_unmasked(self, replies: Mapping[str, Json]) -> np.ndarray:
        """The sum (N,), uint64, of the vectors of the sites in `sent`."""
        lost = sorted(set(self.commitments) - set(self.sent))
        expected = {"seeds": set(self.sent), "masks": set(lost)}

        def is_valid(site: str, reply: Json) -> bool:
            return all(
                set(reply[kind]) == names and all(_is_hex(share, masking.SHARE_BYTES) for share in reply[kind].values())
                for kind, names in expected.items()
            )

        valid = self._valid(replies, "unmasking shares", is_valid)
        self._check_enough(valid, "sent unmasking shares")
        positions = {name: position for position, name in enumerate(self.keys, 1)}
        chosen = sorted(valid)[: self.threshold]
        total, self.total = self.total, None
        assert total is not None  # `sent` is not empty

        def recover(kind: str, name: str) -> bytes:
            return masking.combine_shares({positions[site]: bytes.fromhex(valid[site][kind][name]) for site in chosen})

        for name in self.sent:
            seed = recover("seeds", name)
            if seed_commitment(self.session, name, seed) != self.commitments[name]:
                raise FederationError(f"{self.session} ends: the shares of the seed of site {name} are wrong")
            total -= masking.keystream(seed_mask_key(self.session, name, seed), len(total))
        for name in lost:
            private = recover("masks", name)
            if masking.public_key(private).hex() != self.keys[name]["mask"]:
                raise FederationError(f"{self.session} ends: the shares of the key of site {name} are wrong")
            for other in self.sent:  # the mask of the lost site cancels the mask that the other site added
                add_pairwise_mask(total, self.session, name, other, private, self.keys[other]["mask"])
        return total

    def _valid(self, replies: Mapping[str, Json], what: str, is_valid: Callable[[str, Json], bool]) -> dict[str, Json]:
        """The valid replies, in order of site names; the other sites are refused."""
        valid = {}
        for site in sorted(replies):
            try:
                accepted = is_valid(site, replies[site])
            except (KeyError, TypeError, AttributeError, ValueError):
                accepted = False
            if accepted:
                valid[site] = replies[site]
            else:
                self.refused[site] = f"its {what} cannot be read"
        return valid

    def _check_enough(self, sites: Iterable[str], action: str) -> None:
        names = sorted(sites)
        needed = max(self.threshold, self.quorum)
        if len(names) < needed:
            listed = f" ({', '.join(names)})" if names else ""
            raise FederationError(f"{self.session} ends: {len(names)} sites{listed} {action}, {needed} are needed")


def site_noise_scale(noise: float, clip: float, threshold: int) -> float:
    """The standard deviation of the noise of one site; `threshold` sites together add noise x clip."""
    return noise * clip / math.sqrt(threshold)


def _digests(keys: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Short digests of public keys."""
    public = (site_keys[kind] for site_keys in keys.values() for kind in _KEY_KINDS)
    return [hashlib.sha256(bytes.fromhex(key)).hexdigest()[:24] for key in public]


def _signed_data(session: SecureSession, name: str, keys: Mapping[str, str]) -> bytes:
    """What a site signs: session, its name and its keys."""
    return json.dumps([session.label, name, *(keys[kind] for kind in _KEY_KINDS)]).encode()


def seed_commitment(session: SecureSession, name: str, seed: bytes) -> str:
    """A hash that shows whether a recovered seed is right."""
    return masking.derive_key(seed, "commitment", session.label, name).hex()


def seed_mask_key(session: SecureSession, name: str, seed: bytes) -> bytes:
    """The key of the mask that only one site adds."""
    return masking.derive_key(seed, "own mask", session.label, name)


def add_pairwise_mask(
    vector: np.ndarray, session: SecureSession, name: str, other: str, private: bytes, public: str
) -> None:
    """Adds to a vector the mask of a pair of sites, or subtracts it if `name` is the later of the two."""
    secret = masking.shared_secret(private, bytes.fromhex(public))
    mask = masking.keystream(masking.derive_key(secret, "pair", session.label, *sorted((name, other))), len(vector))
    if name < other:
        vector += mask
    else:
        vector -= mask


def _is_hex(text: Any, size: int | None = None) -> bool:
    """Whether a text is hex, of a number of bytes if given."""
    return isinstance(text, str) and (size is None or len(text) == 2 * size) and bytes.fromhex(text) is not None
