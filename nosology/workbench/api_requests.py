"""Request bodies of the API."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import Field

from nosology.workbench.api_fields import (
    ClientKey,
    CodeSystem,
    Columns,
    Day,
    Disposition,
    DocumentKind,
    NoNul,
    RequestBody,
    ShortText,
    Text,
    example_body,
)
from nosology.workbench.security import MAX_ID
from nosology.workbench.uploads import MAX_NOTE_LENGTH

FHIR_EXAMPLE = {
    "resourceType": "DocumentReference",
    "id": "MRN-2",
    "status": "current",
    "content": [{"attachment": {"contentType": "text/plain", "data": "S25vd24gaGVhcnQgZmFpbHVyZS4="}}],
}


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
    key: ClientKey = None
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
