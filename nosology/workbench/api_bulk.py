"""The part of the API for programs that keep a copy: decisions on all notes, and exports of many notes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from nosology.workbench import api_fields, api_responses
from nosology.workbench.api_errors import ERRORS
from nosology.workbench.audit_log import log_access, shown_notes
from nosology.workbench.bulk_export import NEXT_SINCE, STREAMS, export_stream
from nosology.workbench.change_feed import recent_decisions, to_seconds
from nosology.workbench.security import MAX_ID, AddressDep, ExportUser, ReadUser, ServicesDep
from nosology.workbench.work_queue import QueueFilter

router = APIRouter(prefix="/api/v1", tags=["workbench"], responses=ERRORS)
_STREAM: dict[str, Any] = {
    "description": "one FHIR Bundle or JSON object per line, or one CSV row per code",
    "content": {media_type.partition(";")[0]: {"schema": {"type": "string"}} for media_type, _ in STREAMS.values()},
    "headers": {
        NEXT_SINCE: {
            "description": "the `since` of the next export: it has every note that changes after the start of this one",
            "required": True,
            "schema": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
        }
    },
}


@router.get("/decisions")
def list_all_decisions(
    services: ServicesDep,
    user: ReadUser,
    address: AddressDep,
    since: api_fields.Since = None,
    until: api_fields.Until = None,
    cursor: api_fields.Cursor = None,
    limit: api_fields.Limit = 50,
) -> api_responses.DecisionPage:
    """The decisions on all notes, oldest first. Read the pages with `cursor`: none is missed or twice.

    Decisions of a double coding in progress are left out and do not come later: when the `close` of its copy comes,
    read the history of both.
    """
    wanted = {"since": to_seconds(since), "until": to_seconds(until)}
    found = recent_decisions(services.engine, **wanted, cursor=cursor, limit=limit)
    ids = {row["note_id"] for row in found.rows}
    log_access(services.engine, user.id, "decisions", None, address, shown_notes(ids))
    rows = [api_responses.PastDecision.model_validate(dict(row)) for row in found.rows]
    return api_responses.DecisionPage(decisions=rows, total=found.total, pages=found.pages, next=found.next)


@router.get("/export", response_class=StreamingResponse, responses={200: _STREAM})
def export_notes(
    services: ServicesDep,
    user: ExportUser,
    address: AddressDep,
    format: Literal["fhir", "csv", "json"] = "fhir",
    status: Annotated[list[Literal["done", "preaccepted"]], Query(max_length=2)] = ["done"],  # noqa: B006 (FastAPI copies it)
    site: Annotated[api_fields.NoNul | None, Query(max_length=200)] = None,
    batch: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    since: api_fields.Since = None,
    until: api_fields.Until = None,
) -> StreamingResponse:
    """The finished encounters of a filter as a stream, for people with the role reviewer. Each note is logged."""
    wanted = QueueFilter(
        site=site or "",
        batch=batch or 0,
        statuses=tuple(status) or ("done",),
        since=to_seconds(since),
        until=to_seconds(until),
    )
    return export_stream(services.engine, user, wanted, format, address)
