"""Secure aggregation: the server learns the sum of the sites' vectors and nothing else about a single vector.

The protocol is double masking with a consistency check, Bonawitz et al. (2017), "Practical Secure Aggregation". A site
gets five messages per round:

1. keys: the site creates two new X25519 key pairs, one for masks and one for encryption.
2. shares: the site receives the public keys of all sites. It sends every other site, encrypted, a Shamir share of its
   private mask key and a share of a random seed.
3. mask: the site adds masks to its vector, modulo 2^64: one from its seed, and one per pair of sites, which one of the
   two adds and the other subtracts.
4. confirm: the site receives the list of sites that sent a vector. For every other site it returns a code that
   authenticates the list.
5. unmask: the site receives the codes of the other sites. If `threshold` sites have the same list, it sends its shares
   of the seeds of the sites in the list, and its shares of the mask keys of the other sites. It never sends both for
   one site: both together would reveal the vector.

The sum over the sites that sent a vector is recovered if `threshold` sites stay until the end. The threshold is more
than half of the sites, so only one list can be confirmed. Encrypted shares, masks and codes are bound to the list of
keys and the threshold that a site was shown, and masks also to the task (recipe and weights): sites that get different
ones cannot decrypt each other's shares, or their masks do not cancel.

Keys are new for every attempt of every round, and bound to it, so no mask is used twice. Messages are JSON (bytes as
hex), the masked vector is an array. Not protected against: a server that invents sites or exchanges keys, unless sites
sign them (`SiteSignatures`), and sites that send false vectors. The server's part is in `secure_server`.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hmac import compare_digest
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from nosology.core import FederationError
from nosology.federated.privacy import masking

MIN_SITES = 3  # by default: of two sites each could subtract its own vector from the sum
KEY_KINDS = ("mask", "encryption")

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
    stage: str = ""  # last answered message: keys, shares, mask or confirm; empty: none, or unmasked
    private: dict[str, str] = field(default_factory=dict)  # private keys by kind, and the seed
    threshold: int = 0
    keys: dict[str, dict[str, str]] = field(default_factory=dict)  # public keys of all sites of the session
    shares: dict[str, list[str]] = field(default_factory=dict)  # of the seed and of the mask key, by site
    seen: list[str] = field(default_factory=list)  # digests of keys of earlier sessions
    sent: list[str] = field(default_factory=list)  # sites that sent a vector, as confirmed
    expected: dict[str, str] = field(default_factory=dict)  # by site: its code for this list


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
        pairs = {kind: masking.generate_key_pair() for kind in KEY_KINDS}
        private = {kind: pair[0].hex() for kind, pair in pairs.items()} | {"seed": secrets.token_hex(32)}
        current, seen = [session.run, session.round, session.attempt], self.state.seen + _digests(self.state.keys)
        self.state = SecureState(current, unmasked, "keys", private, seen=seen)
        public = {kind: pair[1].hex() for kind, pair in pairs.items()}
        if self.signatures:
            public["signature"] = self.signatures.sign(_signed_data(session, self.name, public))
        return public

    def shares(self, request: Json) -> Json:
        """Encrypted shares of this site's secrets for each other site, and a commitment to the seed."""
        session = self.session(request, "keys")
        keys, threshold = request["keys"], int(request["threshold"])
        self._check_keys(session, keys, threshold)
        names, self.state.keys, self.state.threshold = sorted(keys), keys, threshold
        shares = [masking.split_secret(self._secret(kind), threshold, len(names)) for kind in ("seed", "mask")]
        encrypted = {}
        for name, seed, mask in zip(names, *shares):
            if name == self.name:
                self.state.shares[name] = [seed.hex(), mask.hex()]
            else:
                encrypted[name] = masking.encrypt(self._pair_key(session, self.name, name), seed + mask).hex()
        self.state.stage = "shares"
        return {
            "encrypted_shares": encrypted,
            "commitment": seed_commitment(session, self.name, self._secret("seed")),
        }

    def mask(self, request: Json, vector: np.ndarray, task: str = "") -> np.ndarray:
        """The masked vector (N,), uint64. request: the encrypted shares for this site, by sending site.

        task: a digest of what the vector was computed from. The masks of sites with other tasks do not cancel.
        """
        session = self.session(request, "shares")
        encrypted, keys = request["encrypted_shares"], self.state.keys
        if not set(encrypted) <= set(keys) - {self.name} or len(encrypted) + 1 < self.state.threshold:
            raise FederationError(f"{session}: {len(encrypted) + 1} sites are left, {self.state.threshold} are needed")
        for name, share in encrypted.items():
            try:
                data = masking.decrypt(self._pair_key(session, name, self.name), bytes.fromhex(share))
            except (InvalidTag, ValueError) as error:
                raise FederationError(
                    f"{session}: the encrypted share of site {name} was changed, or that site has other keys"
                ) from error
            self.state.shares[name] = [data[: len(data) // 2].hex(), data[len(data) // 2 :].hex()]
        masked = vector + masking.keystream(seed_mask_key(session, self.name, self._secret("seed")), len(vector))
        context = mask_context(session, keys, self.state.threshold, task)
        for name in encrypted:
            add_pairwise_mask(masked, context, self.name, name, self._secret("mask"), keys[name]["mask"])
        self.state.stage = "mask"
        self.state.private = {"encryption": self.state.private["encryption"]}  # seed and mask key are shared
        return masked

    def confirm(self, request: Json) -> Json:
        """For every other site, a code that authenticates the list of sites that sent a vector."""
        session = self.session(request, "mask")
        sent, shares = set(request["sent"]), self.state.shares
        if not sent <= set(shares) or self.name not in sent or len(sent) < self.state.threshold:
            raise FederationError(f"{session}: {len(sent)} vectors were sent, {self.state.threshold} are needed")
        self.state.sent = sorted(sent)
        text, others = json.dumps(self.state.sent), [name for name in self.state.sent if name != self.name]
        self.state.expected = {name: self._pair_key(session, name, self.name, "list", text).hex() for name in others}
        self.state.stage = "confirm"
        codes = {name: self._pair_key(session, self.name, name, "list", text).hex() for name in others}
        self.state.private = {}
        return {"codes": codes}

    def unmask(self, request: Json) -> Json:
        """The shares of the seeds of sites that sent a vector, and of the mask keys of the other sites."""
        session = self.session(request, "confirm")
        codes, shares, sent = request["codes"], self.state.shares, self.state.sent
        same = [name for name, code in self.state.expected.items() if compare_digest(str(codes.get(name)), code)]
        if len(same) + 1 < self.state.threshold:
            raise FederationError(
                f"{session}: {len(same) + 1} sites have the same list of vectors, {self.state.threshold} are needed"
            )
        self.state.stage, self.state.shares = "", {}
        self.state.unmasked = [session.run, session.round]
        return {
            "seeds": {name: shares[name][0] for name in sent},
            "masks": {name: shares[name][1] for name in sorted(set(shares) - set(sent))},
        }

    def session(self, request: Json, stage: str) -> SecureSession:
        """The session of a request; FederationError if it is not the current one or the stage is wrong."""
        session = SecureSession(**request["session"])
        if [session.run, session.round, session.attempt] != self.state.last:
            raise FederationError(f"{session} is not the current one of this site")
        if self.state.stage != stage:
            raise FederationError(f"{session}: the message is out of order")
        return session

    def _secret(self, kind: str) -> bytes:
        return bytes.fromhex(self.state.private[kind])

    def _pair_key(self, session: SecureSession, sender: str, receiver: str, *context: str) -> bytes:
        """A key that only this site and another one know, if the server has shown them the same keys."""
        keys, other = self.state.keys, receiver if sender == self.name else sender
        secret = masking.shared_secret(self._secret("encryption"), bytes.fromhex(keys[other]["encryption"]))
        view = mask_context(session, keys, self.state.threshold, "")
        return masking.derive_key(secret, "share", *view, sender, receiver, *context)

    def _check_keys(self, session: SecureSession, keys: Mapping[str, Mapping[str, str]], threshold: int) -> None:
        """Raises FederationError unless the keys are new, distinct, signed if required, and include this site's."""
        own = {kind: masking.public_key(self._secret(kind)).hex() for kind in KEY_KINDS}
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


def site_noise_scale(noise: float, clip: float, threshold: int) -> float:
    """The standard deviation of the noise of one site; `threshold` sites together add noise x clip."""
    return noise * clip / math.sqrt(threshold)


def _digests(keys: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Short digests of public keys."""
    public = (site_keys[kind] for site_keys in keys.values() for kind in KEY_KINDS)
    return [hashlib.sha256(bytes.fromhex(key)).hexdigest()[:24] for key in public]


def _signed_data(session: SecureSession, name: str, keys: Mapping[str, str]) -> bytes:
    """What a site signs: session, its name and its keys."""
    return json.dumps([session.label, name, *(keys[kind] for kind in KEY_KINDS)]).encode()


def seed_commitment(session: SecureSession, name: str, seed: bytes) -> str:
    """A hash that shows whether a recovered seed is right."""
    return masking.derive_key(seed, "commitment", session.label, name).hex()


def seed_mask_key(session: SecureSession, name: str, seed: bytes) -> bytes:
    """The key of the mask that only one site adds."""
    return masking.derive_key(seed, "own mask", session.label, name)


def mask_context(
    session: SecureSession, keys: Mapping[str, Mapping[str, str]], threshold: int, task: str
) -> tuple[str, str, str]:
    """What pairwise keys are bound to: session, a digest of the keys of all sites and the threshold, and the task."""
    public = [[name, *(keys[name][kind] for kind in KEY_KINDS)] for name in sorted(keys)]
    view = hashlib.sha256(json.dumps([threshold, public]).encode()).hexdigest()
    return session.label, view, task


def add_pairwise_mask(
    vector: np.ndarray, context: tuple[str, ...], name: str, other: str, private: bytes, public: str
) -> None:
    """Adds to a vector the mask of a pair of sites, or subtracts it if `name` is the later of the two."""
    secret = masking.shared_secret(private, bytes.fromhex(public))
    mask = masking.keystream(masking.derive_key(secret, "pair", *context, *sorted((name, other))), len(vector))
    if name < other:
        vector += mask
    else:
        vector -= mask
