"""Descriptions of the API's responses that are no JSON objects of their own: errors, and files."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from nosology.workbench.export import FORMATS


class ErrorBody(BaseModel):
    """An error: one sentence."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"detail": "there is no such note."}]})

    detail: str


class InvalidField(BaseModel):
    """A field of the request that is invalid; loc: where it is. The value is not repeated: it may be a note's text."""

    model_config = ConfigDict(extra="forbid")

    loc: list[str | int]
    msg: str
    type: str


class InvalidBody(BaseModel):
    """An error: one sentence, or the fields that are invalid."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"detail": [{"loc": ["body", "notes"], "msg": "Field required", "type": "missing"}]}]
        },
    )

    detail: str | list[InvalidField]


def _header(name: str, about: str, value: str) -> dict[str, Any]:
    return {name: {"description": about, "required": True, "schema": {"type": "string", "enum": [value]}}}


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is no JSON text in UTF-8, or the server has another name", "model": ErrorBody},
    401: {
        "description": "nobody is signed in, or the token is unknown, revoked or expired",
        "model": ErrorBody,
        "headers": _header("www-authenticate", "how to sign in", "Bearer"),
    },
    403: {"description": "the user's role or the scopes of the token do not allow it", "model": ErrorBody},
    404: {"description": "there is no such note, batch or code", "model": ErrorBody},
    413: {"description": "the body is too large", "model": ErrorBody},
    422: {"description": "a value is invalid", "model": InvalidBody},
    503: {
        "description": "the coder or the database is busy or away; nothing was saved",
        "model": ErrorBody,
        "headers": _header("retry-after", "seconds to wait", "2"),
    },
}
CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {"description": "somebody else has changed the note", "model": ErrorBody}
}
FILE: dict[str, Any] = {
    "description": "the file",
    "content": {
        media_type.partition(";")[0]: {"schema": {"type": "string" if name == "csv" else "object"}}
        for name, (media_type, _) in FORMATS.items()
    },
}
