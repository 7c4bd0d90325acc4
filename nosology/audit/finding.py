"""Billed codes, and what an audit says about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nosology.claims.encounter import Encounter
from nosology.core import Code, Span

KINDS = ("unsupported", "not_billed", "less_specific", "more_specific", "other_code", "sequencing", "poa", "conflict")
"""The kinds of findings. less_specific and more_specific: than the text; other_code: of the same category."""


@dataclass(frozen=True, slots=True)
class BilledCode:
    """A code of the bill with its present-on-admission indicator ("": not stated)."""

    code: Code
    poa: str = ""


@dataclass(frozen=True, slots=True)
class GroupEffect:
    """What the correction of a finding does to DRG and risk score; None: the groupers give none.

    weight: change of the relative weight of the DRG. added, dropped: HCCs that count only after it, or only before it.
    """

    drg: int | None = None
    drg_after: int | None = None
    weight: float | None = None
    risk: float = 0.0
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between bill and documents: kind (see KINDS), code, and the reason in a sentence.

    instead: the code, or the indicator of kind poa, that the documents support. evidence: characters of the text; they
    do not overlap. looked_for: names of the code that the text does not have. A finding of an audit has at least one of
    these two. rule: of the claim or the check.
    """

    kind: str
    code: Code
    reason: str
    confidence: float
    rule: str = ""
    instead: str = ""
    evidence: tuple[Span, ...] = ()
    looked_for: tuple[str, ...] = ()
    effect: GroupEffect | None = None


@dataclass(frozen=True, slots=True)
class EncounterAudit:
    """The findings of an encounter, by kind, and the billed codes that the text supports with their evidence."""

    id: str
    text: str = field(repr=False)
    encounter: Encounter
    billed: tuple[BilledCode, ...]
    findings: tuple[Finding, ...]
    supported: dict[Code, tuple[Span, ...]]

    def to_json(self) -> dict[str, Any]:
        """The result as one JSON object; evidence has offsets and words of the text."""
        return {
            "id": self.id,
            "setting": self.encounter.setting,
            "billed": [{**item.code._asdict(), "poa": item.poa} for item in self.billed],
            "supported": [{**code._asdict(), "evidence": self.words(spans)} for code, spans in self.supported.items()],
            "findings": [self._finding_to_json(item) for item in self.findings],
        }

    def words(self, spans: tuple[Span, ...]) -> list[dict[str, Any]]:
        """Offsets and words of some spans."""
        return [{"start": it.start, "end": it.end, "text": self.text[it.start : it.end]} for it in spans]

    def _finding_to_json(self, item: Finding) -> dict[str, Any]:
        effect = item.effect
        return {
            "kind": item.kind,
            **item.code._asdict(),
            "instead": item.instead,
            "reason": item.reason,
            "rule": item.rule,
            "confidence": round(item.confidence, 4),
            "evidence": self.words(item.evidence),
            "looked_for": list(item.looked_for),
            "effect": None if effect is None else {name: getattr(effect, name) for name in effect.__slots__},
        }
