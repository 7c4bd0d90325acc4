"""Types of the fields and parameters of the API, and what all bodies share.

Times are seconds since 1970; positions are characters of the note.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nosology.claims.encounter_values import DISPOSITIONS
from nosology.workbench.change_feed import CURSOR


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
Disposition = Annotated[str, Field(pattern=f"^({'|'.join(DISPOSITIONS)})$")]
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
ClientKey = Annotated[str | None, Field(max_length=64, pattern="^[A-Za-z0-9-]+$")]  # a name that the client chooses


def example_body(**values: Any) -> ConfigDict:
    """The configuration of a body with an example in the description of the API."""
    return ConfigDict(json_schema_extra={"examples": [values]})


class RequestBody(BaseModel):
    """A request body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class ResponseBody(BaseModel):
    """A response body, read from the attributes of rows and dataclasses."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)
