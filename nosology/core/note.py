"""Clinical notes with gold codes and evidence, and suggested codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SYSTEMS = ("icd9cm", "icd9proc", "icd10cm", "icd10pcs")
SPLITS = ("train", "dev", "test")


class Code(NamedTuple):
    """A code in its standard spelling: I50.9, 428.0, 39.95, 02HV33Z."""

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
    """The annotated span of a gold code; for a discontinuous span this is the envelope, and extra has the parts."""

    code: Code
    start: int
    end: int
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Note:
    """One note of a corpus; `codes` are its gold codes, `extra` has all other fields of the source.

    The repr has no text: note text must not get into tracebacks and logs.
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
    """Words of the original note that support a code: text == note[start:end]."""

    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One suggested code; it is accepted if its probability reaches the threshold of the coder."""

    system: str
    code: str
    description: str
    probability: float
    accepted: bool
    evidence: tuple[EvidenceSpan, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The suggestion in the format of predictions files."""
        # asdict would copy every value; thousands of notes are written
        evidence = [{name: getattr(span, name) for name in span.__dataclass_fields__} for span in self.evidence]
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"evidence": evidence}
