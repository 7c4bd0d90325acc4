"""Request and response bodies of the API. Times are seconds since 1970; positions are characters of the note."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nosology.workbench.change_feed import CURSOR
from nosology.workbench.security import MAX_ID
from nosology.workbench.uploads import MAX_NOTE_LENGTH


def _storable(text: str) -> str:
    """The text without characters that no database stores: NUL, unpaired surrogates."""
    return text.replace("\x00", " ").encode("utf-8", "replace").decode("utf-8")


def _day(text: str) -> str:
    """The text if it is a day; ValueError if the calendar does not have it."""
    return datetime.date.fromisoformat(text).isoformat()


NoteStatus = Literal["new", "open", "held", "second", "preaccepted", "done", "deleted"]
CodeSystem = Literal["icd9cm", "icd9proc", "icd10cm", "icd10pcs"]
Text = Annotated[str, AfterValidator(_storable)]
NoNul = Annotated[Text, Field(pattern=r"^[^\x00]*$")]
ShortText = Annotated[NoNul, Field(max_length=200)]
Columns = dict[ShortText, ShortText | int | float]  # of a note, for a coder that reads columns
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", json_schema_extra={"format": "date"}), AfterValidator(_day)]
Disposition = Annotated[str, Field(pattern=r"^(0[1-7]|2[01]|30|4[0-3]|5[01]|6[1-69]|70|8[1-9]|9[0-5])$")]  # UB-04
DocumentKind = Literal[
    "discharge",
    "h&p",
    "progress",
    "operative",
    "radiology",
    "pathology",
    "laboratory",
    "consultation",
    "emergency",
    "other",
]
# A time of a request: seconds since 1970, or a date and time of ISO 8601, in UTC unless it has a zone.
Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)] | datetime.datetime
Since = Annotated[Moment | None, Query(description="changed at or after this time", examples=["2025-11-03T10:00Z"])]
Until = Annotated[Moment | None, Query(description="changed before this time", examples=[1762164000.0])]
Cursor = Annotated[str | None, Query(pattern=CURSOR, description="the `next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=100, description="rows per page")]
CodeText = Annotated[str, BeforeValidator(str)]  # a core.Code as "icd10cm:I50.9"


def example_body(**values: Any) -> ConfigDict:
    """The configuration of a body with an example in the description of the API."""
    return ConfigDict(json_schema_extra={"examples": [values]})


FHIR_EXAMPLE = {
    "resourceType": "DocumentReference",
    "id": "MRN-2",
    "status": "current",
    "content": [{"attachment": {"contentType": "text/plain", "data": "S25vd24gaGVhcnQgZmFpbHVyZS4="}}],
}


class RequestBody(BaseModel):
    """A request body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class EncounterBody(RequestBody):
    """An encounter; admitted, discharged: days. The code set is that of the discharge, or else of the date."""

    date: Day | None = None
    sex: Literal["F", "M"] | None = None
    age: Annotated[int, Field(ge=0, le=130)] | Annotated[float, Field(ge=0, le=130)] | None = None
    setting: Literal["inpatient", "outpatient", "emergency"] | None = None
    admitted: Day | None = None
    discharged: Day | None = None
    role: Literal["attending", "radiology", "pathology"] | None = None
    disposition: Disposition | None = None


class NewNote(EncounterBody):
    """A document to import; encounter: the id of its encounter, if it has several documents. document: its kind."""

    id: Text = Field(min_length=1, max_length=200, pattern=r"^[^\x00]*\S[^\x00]*$")
    text: Text = Field(min_length=1, max_length=MAX_NOTE_LENGTH)
    patient: NoNul | None = Field(None, max_length=200)
    site: NoNul | None = Field(None, max_length=200)
    lang: NoNul | None = Field(None, max_length=20)
    kind: Literal["inpatient", "outpatient"] | None = None
    encounter: NoNul | None = Field(None, max_length=200)
    document: DocumentKind | None = None
    title: NoNul | None = Field(None, max_length=200)
    document_date: Day | None = None
    born: Day | None = None
    payer: NoNul | None = Field(None, max_length=100)
    columns: Columns = Field({}, max_length=50)


class EncounterChange(RequestBody):
    """Data of an encounter to change; null clears a field. The age follows from the birth date, if there is one."""

    model_config = example_body(sex="F", born="1955-04-01", disposition="01")

    sex: Literal["F", "M"] | None = None
    born: Day | None = None
    age: Annotated[int | float, Field(ge=0, le=130)] | None = None
    admitted: Day | None = None
    discharged: Day | None = None
    disposition: Disposition | None = None
    setting: Literal["inpatient", "outpatient", "emergency"] | None = None
    payer: NoNul | None = Field(None, max_length=100)


class NewBatch(RequestBody):
    """Notes to import as one batch."""

    model_config = example_body(
        name="monday",
        notes=[{"id": "MRN-1", "text": "Known heart failure.", "patient": "p1", "site": "east", "sex": "F", "age": 70}],
    )

    name: NoNul = Field("api", max_length=200)
    notes: list[NewNote] = Field(min_length=1, max_length=10_000)


class NewDecision(RequestBody):
    """A decision on a note; version: the version that the client has seen.

    key: a name of the decision that the client chooses; one that is sent again with its key is recorded once.
    override: the reason to finish a note whose codes have errors. document: the id of the one to withdraw. encounter:
    the data to change. explanation: why second review sends a note back. The actions claim, accept_all (with threshold)
    and poa_all record one decision for each code; undo takes back all of them.
    """

    model_config = example_body(action="add", version=0, code="icd10cm:I50.9", key="one-of-mine")

    action: str = Field(max_length=20)
    version: int = Field(ge=0, le=MAX_ID)
    code: str | None = Field(None, max_length=40)
    to: str | None = Field(None, max_length=40)
    reason: str | None = Field(None, max_length=40)
    poa: str | None = Field(None, max_length=4)
    start: int | None = Field(None, ge=0, le=MAX_ID)
    end: int | None = Field(None, ge=0, le=MAX_ID)
    codes: list[Annotated[str, Field(max_length=40)]] | None = Field(None, max_length=500)
    user: int | None = Field(None, ge=1, le=MAX_ID)
    override: Text | None = Field(None, max_length=500)
    document: int | None = Field(None, ge=1, le=MAX_ID)
    encounter: EncounterChange | None = None
    explanation: Text | None = Field(None, max_length=500)
    key: str | None = Field(None, max_length=64, pattern="^[A-Za-z0-9-]+$")
    threshold: float | None = Field(None, ge=0, le=1)


class TextToCode(RequestBody):
    """A text to code; it is not stored."""

    model_config = example_body(text="Known heart failure and type 2 diabetes.")

    text: Text = Field(max_length=MAX_NOTE_LENGTH)
    columns: Columns = Field({}, max_length=50)


class TextToClaim(EncounterBody):
    """A text whose claim is wanted; it is not stored. What is not stated of the encounter is read from the text."""

    model_config = example_body(
        text="Admitted with acute systolic heart failure.", setting="inpatient", date="2025-11-03"
    )

    id: ShortText = ""
    text: Text = Field(max_length=MAX_NOTE_LENGTH)
    columns: Columns = Field({}, max_length=50)


class CodeQuery(RequestBody):
    """Words, or a code, to search for; all: diagnoses and procedures. Without a date the newest release is searched."""

    model_config = example_body(query="heart failure", system="icd10cm")

    query: Text = Field(max_length=200)
    system: CodeSystem | Literal["all"] = "all"
    date: datetime.date | None = None


class ResponseBody(BaseModel):
    """A response body, read from the attributes of rows and dataclasses."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


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
    context: list[str] = []


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


class ClaimCode(ResponseBody):
    """A code of the claim; basis: mention, or the rule that adds it."""

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
    codes: list[ClaimCode]
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


class EncounterGroups(ResponseBody):
    """DRG, severity (CC, MCC) and HCC of the chosen codes, if known."""

    drg: int | None
    drg_title: str
    mdc_title: str
    drg_version: str
    drg_reason: str
    severity: dict[CodeText, str]
    excluded: dict[CodeText, str]
    hcc: dict[CodeText, str]
    risk: float | None


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
