"""Response bodies of the API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from nosology.workbench.api_fields import CodeSystem, CodeText, ResponseBody


class FoundCode(ResponseBody):
    """A code that a search found, or a choice; next: what to search for to go on from a line that is not billable.

    step, value: the character that a choice decides, and its value. under: the header that the code is listed below.
    note: when the code is valid, if it is not on the date or not for ever.
    """

    system: CodeSystem
    code: str
    description: str
    billable: bool
    matched: str
    score: float
    next: str
    step: str
    value: str
    under: str
    note: str


class QueuedNote(ResponseBody):
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
    documents: int
    sent_back: bool
    open_queries: int
    answered_queries: int
    comments: int
    double_of: int | None = None  # the note of which this is a copy for double coding
    changed: float


class ListPage(ResponseBody):
    """A page of a list: the number of rows that match on all pages, and the number of pages.

    next: the cursor of the next page. It is also there after the last page, to ask for later changes.
    """

    total: int
    pages: int
    next: str | None


class QueuePage(ListPage):
    """A page of the work queue, and the number of notes per status in the whole store."""

    counts: dict[str, int]
    notes: list[QueuedNote]


class SuggestedEvidence(ResponseBody):
    """An evidence span; context: negated, family, historical, uncertain, hypothetical."""

    start: int
    end: int
    score: float
    context: list[str] = Field([])


class SuggestedCode(ResponseBody):
    """A code that the coder suggests."""

    system: str
    code: str
    description: str | None
    probability: float
    accepted: bool
    evidence: list[SuggestedEvidence]


class CodedText(ResponseBody):
    """The suggestions for a text, most probable first."""

    suggestions: list[SuggestedCode]


class Words(ResponseBody):
    """Words of the note."""

    start: int
    end: int
    text: str


class ClaimDiagnosis(ResponseBody):
    """A diagnosis of the claim; basis: mention, or the rule that adds it."""

    system: str
    code: str
    description: str
    probability: float
    accepted: bool
    role: Literal["principal", "secondary"]
    poa: str
    evidence: list[Words]
    basis: Literal["mention", "rule"]
    rule: str


class ClaimProcedure(ResponseBody):
    """A procedure of an inpatient's claim; rule: the procedure of the data files that it follows from."""

    system: str
    code: str
    description: str
    probability: float
    role: Literal["principal", "secondary"]
    evidence: list[Words]
    rule: str


class LeftOutCode(ResponseBody):
    """A code that is not in the claim, and why."""

    code: str
    reason: str
    rule: str
    evidence: list[Words]


class PhysicianQuery(ResponseBody):
    """A question to the physician."""

    question: str
    rule: str
    evidence: list[Words]


class ClaimConflict(ResponseBody):
    """A problem of the claim that remains."""

    code: str
    level: str
    kind: str
    message: str


class ClaimGroups(ResponseBody):
    """DRG, severity (CC, MCC; excluded: it does not count beside the principal diagnosis) and HCC of the claim."""

    drg: int | None
    drg_title: str
    mdc_title: str
    drg_version: str
    drg_reason: str
    severity: dict[str, str]
    excluded: dict[str, str]
    hcc: dict[str, str]
    risk: float | None


class ProposedClaim(ResponseBody):
    """The claim of a note as `nosology claim --json` prints it; no groups: the groupers or age or sex are missing."""

    id: str
    codes: list[ClaimDiagnosis]
    procedures: list[ClaimProcedure]
    left_out: list[LeftOutCode]
    queries: list[PhysicianQuery]
    conflicts: list[ClaimConflict]
    groups: ClaimGroups | None = None


class ChosenCode(ResponseBody):
    """A chosen code; evidence: (start, end) of the spans that people marked or a rule names."""

    code: CodeText
    origin: str
    poa: str
    evidence: list[tuple[int, int]]
    rule: str


class CodeCheck(ResponseBody):
    """An issue of a chosen code; offers: codes that would solve it."""

    level: str
    kind: str
    code: CodeText
    sentence: str = Field(validation_alias="message")
    offers: list[CodeText] = Field(validation_alias="alternatives")


class EncounterGroups(ClaimGroups):
    """DRG, severity (CC, MCC) and HCC of the chosen codes, if known."""

    severity: dict[CodeText, str]
    excluded: dict[CodeText, str]
    hcc: dict[CodeText, str]


class EncounterDocument(ResponseBody):
    """A document of an encounter; start and end: its characters in the text of the encounter.

    version: 1, and one more for each corrected text. The text of one that is corrected or withdrawn is blank.
    """

    id: int
    ref: str
    version: int
    kind: str
    title: str
    date: str | None
    start: int
    end: int
    state: Literal["current", "corrected", "withdrawn"]
    received: float


class NoteDetail(ResponseBody):
    """An encounter with the text of its documents, suggestions and review."""

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
    rejected: dict[CodeText, str | None]
    suggestions: list[SuggestedCode]
    checks: list[CodeCheck]
    groups: EncounterGroups
    documents: list[EncounterDocument]


class DecidedNote(ResponseBody):
    """The state of a note after a decision."""

    version: int
    status: str
    codes: list[CodeText]


class PastDecision(ResponseBody):
    """A decision; user null: the triage rule."""

    id: int
    note_id: int
    version: int
    user_id: int | None
    user: str | None
    at: float
    action: str
    details: dict[str, Any]


class DecisionPage(ListPage):
    """A page of the decisions on all notes, oldest first."""

    decisions: list[PastDecision]


class TabularNote(ResponseBody):
    """A note of the tabular list, and the line at which it is printed."""

    line: str
    note: str


class TabularLine(ResponseBody):
    """A line of the tabular list."""

    system: str
    release: str | None
    code: str
    description: str
    billable: bool
    ancestors: list[str]
    siblings: list[str]
    children: list[str]
    notes: dict[str, list[TabularNote]]


class BatchProgress(ResponseBody):
    """A batch with its number of encounters per coding state; total: new encounters.

    documents: that were added. known: skipped, because their ids existed. corrected: came again with another text.
    """

    id: int
    name: str
    user_id: int | None
    created: float
    finished: float | None
    status: str
    total: int
    known: int
    documents: int
    corrected: int
    user: str | None
    done: int
    waiting: int
    failed: int
    cancelled: int


class BatchChange(ResponseBody):
    """The change of a batch."""

    status: Literal["cancel", "resume"]


class CodeAgreement(ResponseBody):
    """Number of notes in which a code was suggested, kept, and final."""

    code: str = Field(validation_alias="name")
    suggested: int
    kept: int
    final: int


class DriftIndex(ResponseBody):
    """Means of a feature then and now, and its population stability index (null: too few notes)."""

    name: str
    then: float
    now: float
    index: float | None


class AgreementReport(ResponseBody):
    """Agreement between coder and reviewers; kept: precision, found: recall."""

    notes: int
    coded: int
    kept: float | None
    found: float | None
    median_seconds: float | None
    codes: list[CodeAgreement]
    drift: list[DriftIndex]
