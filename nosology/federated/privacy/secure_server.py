"""The server's part of secure aggregation; see `secure_aggregation` for the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from nosology.core import FederationError
from nosology.federated.privacy import masking
from nosology.federated.privacy.secure_aggregation import (
    KEY_KINDS,
    MIN_SITES,
    Json,
    SecureSession,
    add_pairwise_mask,
    mask_context,
    min_threshold,
    seed_commitment,
    seed_mask_key,
)


class SecureServer:
    """The server's part of one session. Each method takes the replies of the sites and returns the next requests.

    It stores public keys and a running sum of masked vectors. quorum: sites that a sum needs; the threshold is more if
    that is not more than half of the sites. task: a digest of what the sites train.
    """

    def __init__(self, session: SecureSession, quorum: int = MIN_SITES, task: str = ""):
        self.session, self.quorum, self.task = session, quorum, task
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
        valid = self._valid(replies, "keys", lambda site, keys: all(_is_hex(keys[kind], 32) for kind in KEY_KINDS))
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

    def confirm_requests(self) -> dict[str, Json]:
        """The fourth message, for each site that sent a vector."""
        self._check_enough(self.sent, "sent a vector")
        return {name: {**self.request, "sent": self.sent} for name in self.sent}

    def receive_confirmed(self, replies: Mapping[str, Json]) -> dict[str, Json]:
        """The fifth message, for each site that confirmed the list: the codes for it, by site."""

        def is_valid(site: str, reply: Json) -> bool:
            codes = reply["codes"]
            return set(codes) == set(self.sent) - {site} and all(_is_hex(code, 32) for code in codes.values())

        valid = self._valid(replies, "confirmation", is_valid)
        self._check_enough(valid, "confirmed the list")
        codes = {name: {other: valid[other]["codes"][name] for other in valid if other != name} for name in valid}
        return {name: {**self.request, "codes": codes[name]} for name in valid}

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
        context = mask_context(self.session, self.keys, self.threshold, self.task)
        for name in lost:
            private = recover("masks", name)
            if masking.public_key(private).hex() != self.keys[name]["mask"]:
                raise FederationError(f"{self.session} ends: the shares of the key of site {name} are wrong")
            for other in self.sent:  # the mask of the lost site cancels the mask that the other site added
                add_pairwise_mask(total, context, name, other, private, self.keys[other]["mask"])
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


def _is_hex(text: Any, size: int | None = None) -> bool:
    """Whether a text is hex, of a number of bytes if given."""
    return isinstance(text, str) and (size is None or len(text) == 2 * size) and bytes.fromhex(text) is not None
