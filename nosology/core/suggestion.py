"""What a coder says about a note."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
