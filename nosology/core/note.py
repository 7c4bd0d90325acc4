"""A clinical note with the codes somebody gave it, and the words they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

SYSTEMS = ("icd9cm", "icd9proc", "icd10cm", "icd10pcs")
SPLITS = ("train", "dev", "test")


class Code(NamedTuple):
    """A code in its usual spelling: I50.9, 428.0, 39.95, 02HV33Z."""

    system: str
    code: str

    def __str__(self) -> str:
        return f"{self.system}:{self.code}"


class Span(NamedTuple):
    """The characters text[start:end] of a note."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """The span on which somebody based a code; of a span in pieces this is the envelope, the pieces are in extra."""

    code: Code
    start: int
    end: int
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Note:
    """One note of a corpus; `codes` are its gold codes, and `extra` keeps the fields this package does not know.

    Its repr shows no text, so that a traceback or a log cannot.
    """

    id: str
    text: str = field(repr=False)
    patient: str | None = None
    site: str | None = None
    split: str | None = None
    lang: str | None = None
    codes: tuple[Code, ...] = ()
    evidence: tuple[Evidence, ...] = field(default=(), repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class EvidenceSpan:
    """Words of the original note that speak for a code: text == note[start:end]."""

    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One suggested code; `accepted` says whether its probability reaches the coder's threshold."""

    system: str
    code: str
    description: str
    probability: float
    accepted: bool
    evidence: tuple[EvidenceSpan, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The suggestion as the predictions file has it."""
        return asdict(self) | {"evidence": [asdict(span) for span in self.evidence]}
