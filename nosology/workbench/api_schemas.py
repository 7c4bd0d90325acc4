"""Request and response bodies of the API. Times are seconds since 1970; positions are characters of the note."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nosology.workbench.security import MAX_ID
from nosology.workbench.uploads import MAX_NOTE_LENGTH


def _storable(text: str) -> str:
    """The text without characters that no database stores: NUL, unpaired surrogates."""
    return text.replace("\x00", " ").encode("utf-8", "replace").decode("utf-8")


def _day(text: str) -> str:
    """The text if it is a day; ValueError if the calendar does not have it."""
    return date.fromisoformat(text).isoformat()


NoteStatus = Literal["new", "open", "held", "second", "preaccepted", "done"]
CodeSystem = Literal["icd9cm", "icd9proc", "icd10cm", "icd10pcs"]
Text = Annotated[str, AfterValidator(_storable)]
NoNul = Annotated[Text, Field(pattern=r"^[^\x00]*$")]
ShortText = Annotated[NoNul, Field(max_length=200)]
Columns = dict[ShortText, ShortText | int | float]  # of a note, for a coder that reads columns
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", json_schema_extra={"format": "date"}), AfterValidator(_day)]
CodeText = Annotated[str, BeforeValidator(str)]  # a core.Code as "icd10cm:I50.9"


class RequestBody(BaseModel):
    """A request body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class EncounterBody(RequestBody):
    """An encounter; admitted, discharged: days. The code set is that of the discharge, or else of the date."""

    date: Day | None = None
    sex: Literal["F", "M"] | None = None
    age: Annotated[int | float, Field(ge=0, le=130)] | None = None
    setting: Literal["inpatient", "outpatient", "emergency"] | None = None
    admitted: Day | None = None
    discharged: Day | None = None
    role: Literal["attending", "radiology", "pathology"] | None = None


class NewNote(EncounterBody):
    """A note to import."""

    id: Text = Field(min_length=1, max_length=200, pattern=r"^[^\x00]*\S[^\x00]*$")
    text: Text = Field(min_length=1, max_length=MAX_NOTE_LENGTH)
    patient: NoNul | None = Field(None, max_length=200)
    site: NoNul | None = Field(None, max_length=200)
    lang: NoNul | None = Field(None, max_length=20)
    kind: Literal["inpatient", "outpatient"] | None = None
    columns: Columns = Field({}, max_length=50)


class NewBatch(RequestBody):
    """Notes to import as one batch."""

    name: NoNul = Field("api", max_length=200)
    notes: list[NewNote] = Field(min_length=1, max_length=10_000)


class NewDecision(RequestBody):
    """A decision on a note; version: the version that the client has seen.

    key: a name of the decision that the client chooses; one that is sent again with its key is recorded once.
    override: the reason to finish a note whose codes have errors.
    """

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
    key: str | None = Field(None, max_length=64, pattern="^[A-Za-z0-9-]+$")


class TextToCode(RequestBody):
    """A text to code; it is not stored."""

    text: Text = Field(max_length=MAX_NOTE_LENGTH)
    columns: Columns = Field({}, max_length=50)


class TextToClaim(EncounterBody):
    """A text whose claim is wanted; it is not stored. What is not stated of the encounter is read from the text."""

    id: ShortText = ""
    text: Text = Field(max_length=MAX_NOTE_LENGTH)
    columns: Columns = Field({}, max_length=50)


class CodeQuery(RequestBody):
    """Words, or a code, to search for."""

    query: Text = Field(max_length=200)
    system: CodeSystem = "icd10cm"


class ResponseBody(BaseModel):
    """A response body, read from the attributes of rows and dataclasses."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


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


class QueuePage(ResponseBody):
    """A page of the work queue, and the number of notes per status."""

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


class NoteDetail(ResponseBody):
    """A note with its text, suggestions and review."""

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
    """A batch with its number of notes per coding state; known: notes that were skipped, because their ids existed."""

    id: int
    name: str
    user_id: int | None
    created: float
    finished: float | None
    status: str
    total: int
    known: int
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
