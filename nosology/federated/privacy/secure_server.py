"""The server's side of secure aggregation; `secure.py` says how it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from nosology.core import FederationError
from nosology.federated.privacy.masking import SHARE, join_shares, keystream, public_of
from nosology.federated.privacy.secure import FEWEST, Json, Session, add_pair, commitment_of, least_threshold, seed_key


class SecureServer:
    """The server's side of one session. Each method takes the sites' answers and gives the next requests.

    It keeps public keys and one running sum of masked vectors, which is of no use without the answers to `unmask`.
    """

    def __init__(self, session: Session, quorum: int = FEWEST):
        self.session, self.quorum = session, quorum
        self.threshold = 0
        self.keys: dict[str, Json] = {}
        self.commitments: dict[str, str] = {}  # of the sites that sent shares
        self.total: np.ndarray | None = None
        self.sent: list[str] = []
        self.refused: dict[str, str] = {}  # sites whose answer could not be taken, and why

    @property
    def request(self) -> Json:
        """The first message, the same to all sites."""
        return {"session": asdict(self.session)}

    def take_keys(self, answers: Mapping[str, Json]) -> dict[str, Json]:
        """The second message to each site that sent keys."""
        sound = self._sound(
            answers, "keys", lambda site, keys: all(_hex(keys[kind], 32) for kind in ("mask", "letter"))
        )
        self.threshold = max(self.quorum, least_threshold(len(sound)))
        self._enough(sound, "sent keys")
        self.keys = {name: sound[name] for name in sorted(sound)}
        return {name: {**self.request, "keys": self.keys, "threshold": self.threshold} for name in self.keys}

    def take_shares(self, answers: Mapping[str, Json]) -> dict[str, Json]:
        """The third message to each site that sent shares: the letters to it."""

        def whole(site: str, answer: Json) -> bool:
            letters = answer["letters"]
            wanted = set(self.keys) - {site}
            return _hex(answer["commitment"], 32) and set(letters) == wanted and all(map(_hex, letters.values()))

        sound = self._sound(answers, "shares", whole)
        self._enough(sound, "sent shares")
        self.commitments = {name: sound[name]["commitment"] for name in sorted(sound)}
        return {
            name: {
                **self.request,
                "letters": {other: sound[other]["letters"][name] for other in sound if other != name},
            }
            for name in self.commitments
        }

    def take_masked(self, site: str, masked: np.ndarray, size: int) -> None:
        """Adds a site's masked vector (size,), uint64, to the sum, unless it cannot be one."""
        if site not in self.commitments or site in self.sent:
            self.refused[site] = "its vector was not asked for"
        elif masked.dtype != np.uint64 or masked.shape != (size,):
            self.refused[site] = f"its vector must be uint64 ({size},); got {masked.dtype} {masked.shape}"
        else:
            self.total = masked.copy() if self.total is None else self.total + masked
            self.sent = sorted([*self.sent, site])

    def unmask_requests(self) -> dict[str, Json]:
        """The fourth message, to each site that sent a vector."""
        self._enough(self.sent, "sent a vector")
        return {name: {**self.request, "sent": self.sent} for name in self.sent}

    def take_unmasked(self, answers: Mapping[str, Json]) -> np.ndarray:
        """The sum (N,), uint64, of the vectors of the sites in `sent`; after it, the server has forgotten the rest."""
        lost = sorted(set(self.commitments) - set(self.sent))
        wanted = {"seeds": set(self.sent), "masks": set(lost)}

        def whole(site: str, answer: Json) -> bool:
            return all(
                set(answer[kind]) == names and all(_hex(share, SHARE) for share in answer[kind].values())
                for kind, names in wanted.items()
            )

        sound = self._sound(answers, "opened shares", whole)
        self._enough(sound, "opened their shares")
        places = {name: place for place, name in enumerate(self.keys, 1)}
        chosen = sorted(sound)[: self.threshold]
        total, self.total = self.total, None

        def joined(kind: str, name: str) -> bytes:
            return join_shares({places[site]: bytes.fromhex(sound[site][kind][name]) for site in chosen})

        for name in self.sent:
            seed = joined("seeds", name)
            if commitment_of(self.session, name, seed) != self.commitments[name]:
                raise FederationError(f"{self.session} ends: the shares of site {name}'s seed do not fit")
            total -= keystream(seed_key(self.session, name, seed), len(total))
        for name in lost:
            private = joined("masks", name)
            if public_of(private).hex() != self.keys[name]["mask"]:
                raise FederationError(f"{self.session} ends: the shares of site {name}'s key do not fit")
            for other in self.sent:  # the lost site's half of each pair cancels what the other added
                add_pair(total, self.session, name, other, private, self.keys[other]["mask"])
        return total

    def _sound(self, answers: Mapping[str, Json], what: str, whole: Any) -> dict[str, Json]:
        """The answers that are what they should be, by site in the order of names; the others' sites are refused."""
        found = {}
        for site in sorted(answers):
            try:
                fits = whole(site, answers[site])
            except (KeyError, TypeError, AttributeError, ValueError):
                fits = False
            if fits:
                found[site] = answers[site]
            else:
                self.refused[site] = f"its {what} cannot be read"
        return found

    def _enough(self, sites: Iterable[str], done: str) -> None:
        found = sorted(sites)
        least = max(self.threshold, self.quorum, FEWEST)
        if len(found) < least:
            named = f" ({', '.join(found)})" if found else ""
            raise FederationError(f"{self.session} ends: {len(found)} sites{named} {done}, {least} are needed")


def _hex(text: Any, size: int | None = None) -> bool:
    """Whether a text is bytes in hex, of a size where one is given."""
    return isinstance(text, str) and (size is None or len(text) == 2 * size) and bytes.fromhex(text) is not None
