"""Secure aggregation: the server learns the sum of the sites' vectors and nothing else about any of them.

After Bonawitz et al. 2017 (double masking, "Practical Secure Aggregation"). A round has four messages to a site:

1. keys: the site makes two fresh X25519 keys, one for masks and one for letters to the others.
2. shares: it is told everybody's keys, and sends each other site, sealed, a share of its private mask key and a share
   of a seed of its own.
3. mask: it adds to its vector, modulo 2^64, a mask from its seed and, for each pair of sites, a mask that one of the
   two adds and the other takes away.
4. unmask: it is told who has sent a masked vector, and gives away its shares of their seeds, and of the mask keys of
   those who were lost on the way. Never both of one site: with both its vector would lie open.

With `threshold` sites left at the end the sum over those who sent a vector comes out, or nothing does. The threshold is
more than half of the sites, so that no two groups can be told different stories about who was lost.

Every key is made anew for every attempt of every round and bound to it by name, so no mask is ever used twice. Messages
are plain JSON (bytes as hex), the masked vector is an array. What is not defended against: a server that invents sites
or hands out keys of its own, unless sites sign (`Signatures`), and sites that send nonsense.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from nosology.core import FederationError
from nosology.federated.privacy.masking import (
    agreed_secret,
    derived,
    keystream,
    new_key,
    public_of,
    seal,
    split_secret,
    unseal,
)

FEWEST = 3  # of two sites each finds the other's vector in the sum

Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class Session:
    """One attempt at one round of one run."""

    run: str  # a name that no other run has
    round: int
    attempt: int = 1

    def __str__(self) -> str:
        return f"secure round {self.round}, attempt {self.attempt}"

    @property
    def label(self) -> str:
        """What every key of the session is bound to."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Signatures:
    """A site's own long-lived key and the public keys (PEM) of all sites, which no server has chosen."""

    own: ec.EllipticCurvePrivateKey
    peers: Mapping[str, bytes]

    def sign(self, text: bytes) -> str:
        """The signature of a text."""
        return self.own.sign(text, ec.ECDSA(hashes.SHA384())).hex()

    def check(self, site: str, text: bytes, signature: str) -> None:
        """Raises FederationError if a site has not signed a text."""
        if site not in self.peers:
            raise FederationError(f"no public key of site {site} is known here")
        try:
            load_pem_public_key(self.peers[site]).verify(bytes.fromhex(signature), text, ec.ECDSA(hashes.SHA384()))
        except (InvalidSignature, ValueError) as error:
            raise FederationError(f"the keys of site {site} are not signed by it") from error


def least_threshold(sites: int) -> int:
    """The smallest threshold that sites agree to."""
    return max(FEWEST, sites // 2 + 1)


@dataclass
class SecureState:
    """What a site keeps between messages, all of it JSON. It holds the site's secrets of the round under way."""

    last: list[Any] = field(default_factory=list)  # run, round, attempt of the newest session
    ended: list[Any] = field(default_factory=list)  # run and round that was last unmasked
    stage: str = ""  # the message that was answered last: keys, shares, mask; empty: none, or unmasked
    private: dict[str, str] = field(default_factory=dict)  # mask and letter keys, seed
    threshold: int = 0
    keys: dict[str, dict[str, str]] = field(default_factory=dict)  # of all sites of the session
    held: dict[str, list[str]] = field(default_factory=dict)  # shares of each site's seed and mask key
    seen: list[str] = field(default_factory=list)  # digests of keys of earlier sessions


class SecureSite:
    """A site's side. Each method answers one message, in their order; a message out of turn is refused."""

    def __init__(self, name: str, state: Json | None = None, signatures: Signatures | None = None):
        self.name, self.signatures = name, signatures
        self.state = SecureState(**(state or {}))

    def to_json(self) -> Json:
        """What the site must remember for the next message. It never leaves the site."""
        return asdict(self.state)

    def keys(self, request: Json) -> Json:
        """Fresh public keys for a session that is newer than all before."""
        session = _session(request)
        last = self.state.last
        if last and last[0] == session.run and (session.round, session.attempt) <= tuple(last[1:]):
            raise FederationError(f"{session} is not newer than the last one")
        if self.state.ended and self.state.ended[0] == session.run and session.round <= self.state.ended[1]:
            raise FederationError(f"{session} is over already: its sum was opened")
        (mask, mask_public), (letter, letter_public) = new_key(), new_key()
        private = {"mask": mask.hex(), "letter": letter.hex(), "seed": secrets.token_hex(32)}
        now, seen = [session.run, session.round, session.attempt], self.state.seen + _digests(self.state.keys)
        self.state = SecureState(now, self.state.ended, "keys", private, seen=seen)
        told = {"mask": mask_public.hex(), "letter": letter_public.hex()}
        if self.signatures:
            told["signature"] = self.signatures.sign(_signed(session, self.name, told))
        return told

    def shares(self, request: Json) -> Json:
        """For each other site a letter with a share of this one's secrets; all are told apart by the request's keys."""
        session = self._turn(request, "keys")
        keys, threshold = request["keys"], int(request["threshold"])
        self._check_keys(session, keys, threshold)
        names = sorted(keys)
        pieces = [split_secret(self._secret(name), threshold, len(names)) for name in ("seed", "mask")]
        letters = {}
        for name, seed, mask in zip(names, *pieces):
            if name == self.name:
                self.state.held[name] = [seed.hex(), mask.hex()]
            else:
                key = self._letter_key(session, keys[name]["letter"], self.name, name)
                letters[name] = seal(key, seed + mask).hex()
        self.state.keys, self.state.threshold, self.state.stage = keys, threshold, "shares"
        return {"letters": letters, "commitment": commitment_of(session, self.name, self._secret("seed"))}

    def mask(self, request: Json, vector: np.ndarray) -> np.ndarray:
        """The vector (N,), uint64, under this site's masks; request: the letters to it, from the sites still there."""
        session = self._turn(request, "shares")
        letters, keys = request["letters"], self.state.keys
        if not set(letters) <= set(keys) - {self.name} or len(letters) + 1 < self.state.threshold:
            raise FederationError(f"{session}: {len(letters) + 1} sites are left, {self.state.threshold} are needed")
        for name, letter in letters.items():
            key = self._letter_key(session, keys[name]["letter"], name, self.name)
            try:
                text = unseal(key, bytes.fromhex(letter))
            except (InvalidTag, ValueError) as error:
                raise FederationError(f"{session}: the letter of site {name} was changed on the way") from error
            self.state.held[name] = [text[: len(text) // 2].hex(), text[len(text) // 2 :].hex()]
        masked = vector + keystream(seed_key(session, self.name, self._secret("seed")), len(vector))
        for name in letters:
            add_pair(masked, session, self.name, name, self._secret("mask"), keys[name]["mask"])
        self.state.stage = "mask"
        self.state.private = {}  # the others hold what they need to take the masks off
        return masked

    def unmask(self, request: Json) -> Json:
        """This site's shares: of the seeds of those who sent a vector, of the mask keys of those who were lost."""
        session = self._turn(request, "mask")
        sent = set(request["sent"])
        if not sent <= set(self.state.held) or self.name not in sent or len(sent) < self.state.threshold:
            raise FederationError(f"{session}: {len(sent)} vectors were sent, {self.state.threshold} are needed")
        held = self.state.held
        told = {
            "seeds": {name: held[name][0] for name in sorted(sent)},
            "masks": {name: held[name][1] for name in sorted(set(held) - sent)},
        }
        self.state.stage, self.state.held = "", {}
        self.state.ended = [session.run, session.round]
        return told

    def _turn(self, request: Json, stage: str) -> Session:
        """The request's session, if it is the one under way and the stage before has just been answered."""
        session = _session(request)
        if [session.run, session.round, session.attempt] != self.state.last:
            raise FederationError(f"{session} is not the one that this site takes part in")
        if self.state.stage != stage:
            raise FederationError(f"{session}: the message is out of turn")
        return session

    def _secret(self, name: str) -> bytes:
        return bytes.fromhex(self.state.private[name])

    def _letter_key(self, session: Session, public: str, sender: str, receiver: str) -> bytes:
        secret = agreed_secret(self._secret("letter"), bytes.fromhex(public))
        return derived(secret, "letter", session.label, sender, receiver)

    def _check_keys(self, session: Session, keys: Mapping[str, Mapping[str, str]], threshold: int) -> None:
        """Raises FederationError unless the keys are fresh, distinct, signed where asked, this site's among them."""
        mine = {kind: public_of(self._secret(kind)).hex() for kind in ("mask", "letter")}
        if self.name not in keys or any(keys[self.name][kind] != mine[kind] for kind in mine):
            raise FederationError(f"{session}: the keys of this site are not those that it sent")
        if not least_threshold(len(keys)) <= threshold <= len(keys):
            allowed = f"[{least_threshold(len(keys))}, {len(keys)}]"
            raise FederationError(f"{session}: the threshold must lie in {allowed}; got {threshold}")
        if len(every := _digests(keys)) > len(set(every)):
            raise FederationError(f"{session}: a key occurs twice")
        if not set(self.state.seen).isdisjoint(every):
            raise FederationError(f"{session}: a key of an earlier round was sent again")
        if self.signatures:
            for name, theirs in keys.items():
                self.signatures.check(name, _signed(session, name, theirs), theirs.get("signature", ""))


def share_of_noise(noise: float, clip: float, threshold: int) -> float:
    """The standard deviation of the noise of one site, so that `threshold` of them together add noise x clip."""
    return noise * clip / math.sqrt(threshold)


def _session(request: Json) -> Session:
    return Session(**request["session"])


def _digests(keys: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Short names of public keys."""
    every = (theirs[kind] for theirs in keys.values() for kind in ("mask", "letter"))
    return [hashlib.sha256(bytes.fromhex(key)).hexdigest()[:24] for key in every]


def _signed(session: Session, name: str, keys: Mapping[str, str]) -> bytes:
    """What a site signs: its keys, and where they are good for."""
    return json.dumps([session.label, name, keys["mask"], keys["letter"]]).encode()


def commitment_of(session: Session, name: str, seed: bytes) -> str:
    """Tells whether shares of a seed fit, without telling the seed."""
    return derived(seed, "commitment", session.label, name).hex()


def seed_key(session: Session, name: str, seed: bytes) -> bytes:
    """The key of a site\'s own mask."""
    return derived(seed, "own mask", session.label, name)


def add_pair(vector: np.ndarray, session: Session, name: str, other: str, private: bytes, public: str) -> None:
    """Adds to a vector what `name` adds for the pair: the pair's mask, or its negative at the later of the two."""
    secret = agreed_secret(private, bytes.fromhex(public))
    mask = keystream(derived(secret, "pair", session.label, *sorted((name, other))), len(vector))
    if name < other:
        vector += mask
    else:
        vector -= mask
