"""The right side of the screen: chosen codes, findings, suggestions still open, rejected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nosology.claims.assigned_codes import PROCEDURES, AssignedCode
from nosology.claims.checks import Finding, check
from nosology.claims.grouping import Groups, groups
from nosology.codes import describe, table
from nosology.core import Code, Span
from nosology.workbench.render import evidence_spans, shown
from nosology.workbench.review import REASONS
from nosology.workbench.work import Case

QUOTE = 60  # characters of evidence that a card shows
_QUOTES = 4


@dataclass(frozen=True, slots=True)
class Quote:
    """Words of the note that speak for a code, where they stand, and what the note says of them."""

    start: int
    end: int
    words: str
    marks: str


@dataclass(frozen=True, slots=True)
class Card:
    """A code on the panel."""

    key: str
    code: str
    system: str
    description: str
    probability: float | None
    accepted: bool
    quotes: tuple[Quote, ...]
    chosen: AssignedCode | None = None
    principal: bool = False
    procedure: bool = False
    severity: str = ""
    hcc: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Panel:
    """All that the panel shows."""

    chosen: list[Card]
    open: list[Card]
    rejected: list[Card]
    findings: list[Finding]
    groups: Groups
    by_code: Mapping[str, Finding]


def panel(case: Case) -> Panel:
    """The panel of a note as its review stands."""
    text, review = case.note["text"], case.review
    spans = evidence_spans(case.suggestions, review)
    found = check(review, case.note["encounter"], text, spans)
    made = groups(review, case.note["encounter"])
    suggested = {Code(item["system"], item["code"]): item for item in case.suggestions}
    principal = review.principal

    def card(code: Code, item: AssignedCode | None = None) -> Card:
        given = suggested.get(code)
        return Card(
            key=str(code),
            code=code.code,
            system=code.system,
            description=(given["description"] if given else "") or describe(code) or "no description",
            probability=given["probability"] if given else None,
            accepted=bool(given and given["accepted"]),
            quotes=_quotes(text, spans.get(code, ()), given),
            chosen=item,
            principal=code == principal,
            procedure=code.system in PROCEDURES,
            severity=made.severity.get(code, ""),
            hcc=made.hcc.get(code, ""),
            reason=REASONS.get(review.rejected.get(code, ""), ""),
        )

    decided = {*review.codes, *review.rejected}
    worst: dict[str, Finding] = {}
    for finding in found:
        if finding.level != "hint":
            worst.setdefault(str(finding.code), finding)
    return Panel(
        [card(item.code, item) for item in review.chosen],
        [card(code) for code in suggested if code not in decided],
        [card(code) for code in review.rejected],
        found,
        made,
        worst,
    )


def _quotes(text: str, spans: Sequence[Span], given: Mapping[str, Any] | None) -> tuple[Quote, ...]:
    """The evidence of a code as words; a place that people marked has no context flags of the coder's."""
    flags = {(s["start"], s["end"]): s.get("context", []) for s in given["evidence"]} if given else {}
    found, seen = [], set()
    for span in spans:
        if len(found) == _QUOTES:
            break
        words = " ".join(shown(text[span.start : span.end]).split())
        marks = ", ".join(flags.get((span.start, span.end), []))
        if (words.lower(), marks) in seen:
            continue
        seen.add((words.lower(), marks))
        found.append(Quote(span.start, span.end, words if len(words) <= QUOTE else words[: QUOTE - 1] + "…", marks))
    return tuple(found)


def book(system: str, code: str) -> dict[str, Any] | None:
    """A page of the code book: the line, those above, beside and below it, and every note that binds it."""
    codes = table(system)
    entry = codes.get(code)
    if entry is None:
        return None
    above = [(line, codes.description(line)) for line in reversed(codes.ancestors(code))]
    siblings = codes.children(entry.parent) if entry.parent else codes.chapters()
    kinds = {
        "inclusion_terms": "Inclusion terms",
        "includes": "Includes",
        "excludes1": "Excludes 1: never together",
        "excludes2": "Excludes 2: not part of it, may be coded besides",
        "code_first": "Code first",
        "code_also": "Code also",
        "use_additional": "Use additional code",
        "notes": "Notes",
    }
    return {
        "system": system,
        "release": codes.release,
        "entry": entry,
        "above": above,
        "siblings": [(line, codes.description(line), codes.billable(line)) for line in siblings],
        "children": [(line, codes.description(line), codes.billable(line)) for line in codes.children(code)],
        "notes": [(title, notes) for kind, title in kinds.items() if (notes := codes.inherited_notes(code, kind))],
    }
