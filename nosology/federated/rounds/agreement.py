"""What hospitals tell each other before the first round, and who cannot take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nosology.core import SYSTEMS, Code, DataError, __version__
from nosology.core.files import json_sha256
from nosology.core.label_space import LabelSpace
from nosology.federated.federation_settings import FederationSettings

PREPROCESSING = "text as given, standardised vectors"  # changes when what is done to a note before the head does
BASIS = ("package", "embedder", "dim", "preprocessing")  # what must be the same at all sites in every round


@dataclass(frozen=True)
class Facts:
    """What a site says about itself."""

    package: str  # version of nosology
    embedder: str  # key of its vectors
    identity: dict[str, Any]  # what the key is made of
    dim: int
    preprocessing: str
    notes: int  # for training
    codes: dict[Code, int]  # training notes of each code, of codes with enough of them

    @property
    def basis(self) -> list[str]:
        """The values of `BASIS`."""
        return [self.package, self.embedder, str(self.dim), self.preprocessing]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"codes": [[*code, count] for code, count in sorted(self.codes.items())]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Facts:
        """The facts that `to_json` gave; ValueError, KeyError or TypeError for what it cannot have given."""
        codes = {Code(system, code): int(count) for system, code, count in value["codes"]}
        facts = cls(**(value | {"codes": codes}))
        texts = [facts.package, facts.embedder, facts.preprocessing, *(part for code in codes for part in code)]
        sound = all(isinstance(text, str) and text.isprintable() for text in texts)
        sound = sound and isinstance(facts.identity, dict) and min(codes.values(), default=1) > 0
        if not sound or type(facts.dim) is not int or type(facts.notes) is not int or facts.dim < 1:
            raise ValueError("facts must be texts, a dict and whole numbers")
        if facts.embedder != key_of(facts.identity) or facts.identity.get("dim") != facts.dim:
            raise ValueError("key and dim must be those of the embedder's identity")
        if max(codes.values(), default=0) > facts.notes or {code.system for code in codes} - set(SYSTEMS):
            raise ValueError("codes must be of known systems and of no more notes than there are")
        return facts


def key_of(identity: dict[str, Any]) -> str:
    """The key of an embedder, as `Embedder` makes it of its identity."""
    return json_sha256(identity)


def refusals(facts: Mapping[str, Facts]) -> dict[str, str]:
    """Why each site that cannot take part cannot: what differs from the server's package or from most sites.

    The package is held against the server's own; embedder and preprocessing against what most sites have, of two
    equally frequent ones against that of the first site by name.
    """
    common = _Common(facts)
    found: dict[str, str] = {}
    for site, told in sorted(facts.items()):
        differences = list(common.differences(told))
        if told.notes < 1:
            differences.append("it has no training notes")
        if differences:
            found[site] = "; ".join(differences)
    return found


class _Common:
    """What most sites have."""

    def __init__(self, facts: Mapping[str, Facts]):
        in_order = [facts[site] for site in sorted(facts)]
        # of equally frequent ones Counter names the first that came
        self.embedder = Counter(told.embedder for told in in_order).most_common(1)[0][0] if in_order else ""
        self.identity = next((told.identity for told in in_order if told.embedder == self.embedder), {})
        self.dim = next((told.dim for told in in_order if told.embedder == self.embedder), 0)

    def differences(self, told: Facts) -> list[str]:
        found = []
        if told.package != __version__:
            found.append(f"package must be nosology {__version__}; got {told.package}")
        if told.embedder != self.embedder or told.dim != self.dim:
            names = sorted(self.identity.keys() | told.identity.keys())
            parts = [
                f"{name} must be {self.identity.get(name)!r}; got {told.identity.get(name)!r}"
                for name in names
                if self.identity.get(name) != told.identity.get(name)
            ]
            parts = parts or [f"dim must be {self.dim}; got {told.dim}"]
            found.append(f"embedder: {', '.join(parts)}")
        if told.preprocessing != PREPROCESSING:
            found.append(f"preprocessing must be {PREPROCESSING!r}; got {told.preprocessing!r}")
        return found


def agreed_labels(facts: Mapping[str, Facts], settings: FederationSettings) -> LabelSpace:
    """The codes to learn: those with `min_notes` notes in all at the sites that named them, sorted."""
    counts: Counter[Code] = Counter()
    for told in facts.values():
        counts.update(told.codes)
    kept = sorted(code for code, count in counts.items() if count >= settings.min_notes)
    if not kept:
        raise DataError(
            "no code is left to learn: federation.min_site_notes = "
            f"{settings.min_site_notes}, federation.min_notes = {settings.min_notes}"
        )
    return LabelSpace(kept)
