"""What the API answers, as its schema describes it. Times are seconds since 1970, places characters of the note."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """An answer says what is written here and nothing else."""

    model_config = ConfigDict(extra="forbid")


class Added(Answer):
    """What became of notes that came in."""

    batch: int
    added: int
    known: int


class QueuedNote(Answer):
    """A note in the work queue, without its text."""

    id: int
    ref: str
    patient: str | None
    site: str | None
    lang: str | None
    encounter: dict[str, Any]
    batch_id: int | None
    received: float
    coding: Literal["waiting", "done", "failed", "cancelled"]
    status: str
    version: int
    assignee_id: int | None
    assignee: str | None
    confidence: float | None
    codes: int
    finished: float | None


class Queue(Answer):
    """A page of the work queue, and how many notes have each status."""

    counts: dict[str, int]
    notes: list[QueuedNote]


class Place(Answer):
    """Words that speak for a code; context: negated, family, historical, uncertain, hypothetical."""

    start: int
    end: int
    score: float
    context: list[str] = []


class Suggested(Answer):
    """A code that the coder suggests."""

    system: str
    code: str
    description: str | None
    probability: float
    accepted: bool
    evidence: list[Place]


class Suggestions(Answer):
    """What the coder says of a text, the likeliest code first."""

    suggestions: list[Suggested]


class ChosenCode(Answer):
    """A code that a person chose, or kept; evidence: start and end of words."""

    code: str
    origin: str
    poa: str
    evidence: list[tuple[int, int]]


class Check(Answer):
    """What the classification has against the chosen codes."""

    level: str
    kind: str
    code: str
    sentence: str
    offers: list[str]


class PaidGroups(Answer):
    """DRG, severity (CC, MCC) and HCC of the chosen codes, where they are known."""

    drg: int | None
    drg_title: str
    mdc_title: str
    severity: dict[str, str]
    hcc: dict[str, str]
    risk: float | None


class WholeNote(Answer):
    """A note with its text, suggestions and state."""

    id: int
    ref: str
    text: str
    patient: str | None
    site: str | None
    encounter: dict[str, Any]
    coding: str
    confidence: float | None
    status: str
    version: int
    assignee: int | None
    codes: list[ChosenCode]
    rejected: dict[str, str | None]
    suggestions: list[Suggested]
    checks: list[Check]
    groups: PaidGroups


class Decided(Answer):
    """The note after a decision."""

    version: int
    status: str
    codes: list[str]


class PastDecision(Answer):
    """Who did what when; nobody: the triage rule."""

    id: int
    note_id: int
    version: int
    user_id: int | None
    user: str | None
    at: float
    action: str
    details: dict[str, Any]


class Hit(Answer):
    """A line of a code book that fits a query."""

    code: str
    description: str
    billable: bool
    matched: str


class BookNote(Answer):
    """A note of the tabular list, and the line it stands at."""

    line: str
    note: str


class BookLine(Answer):
    """A line of a code book."""

    system: str
    release: str | None
    code: str
    description: str
    billable: bool
    ancestors: list[str]
    siblings: list[str]
    children: list[str]
    notes: dict[str, list[BookNote]]


class BatchProgress(Answer):
    """How far the coder is with notes that came in together."""

    id: int
    name: str
    user_id: int | None
    created: float
    finished: float | None
    status: str
    total: int
    done: int
    waiting: int
    failed: int
    cancelled: int


class BatchChanged(Answer):
    """What was done to a batch."""

    status: Literal["cancel", "resume"]


class CodeAgreement(Answer):
    """How often a code was suggested, kept, and in the end given."""

    code: str
    suggested: int
    kept: int
    final: int


class Shift(Answer):
    """A number of the notes then and now, and its population stability index (null: too few notes)."""

    name: str
    then: float
    now: float
    index: float | None


class Agreement(Answer):
    """How coder and people agree."""

    notes: int
    coded: int
    kept: float | None
    found: float | None
    median_seconds: float | None
    codes: list[CodeAgreement]
    drift: list[Shift]
