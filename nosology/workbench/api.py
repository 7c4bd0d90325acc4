"""The JSON API: what pages can do, for programs. Described at /api/openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from nosology.codes import table
from nosology.core import Note
from nosology.workbench import api_answers as answers
from nosology.workbench import batches, measures
from nosology.workbench.audit_log import log_read
from nosology.workbench.intake import LONGEST, columns_of, fhir_notes, with_encounter
from nosology.workbench.pages import decide_on, exported, hits
from nosology.workbench.pages_office import take_in
from nosology.workbench.pages_sign_in import address
from nosology.workbench.panel import book, panel
from nosology.workbench.security import AnyUser, Parts
from nosology.workbench.store.engine import reading
from nosology.workbench.store.schema import notes
from nosology.workbench.web import LARGEST_INT, Number
from nosology.workbench.work import history, load_case, queue, tally

Status = Literal["new", "open", "held", "second", "preaccepted", "done"]
System = Literal["icd9cm", "icd9proc", "icd10cm", "icd10pcs"]
Clean = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Short = Annotated[Clean, Field(max_length=200)]
Columns = dict[Short, Short | int | float]  # beside a text, for a coder that reads them
REFUSED = {
    401: {"description": "nobody is signed in"},
    403: {"description": "not for this user"},
    404: {"description": "there is no such thing"},
    422: {"description": "not as it must be"},
}
router = APIRouter(prefix="/api/v1", tags=["workbench"], responses=REFUSED)


class Strict(BaseModel):
    """A body that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid")


class NewNote(Strict):
    """A note that comes in."""

    id: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00]*\S[^\x00]*$")
    text: str = Field(min_length=1, max_length=LONGEST)
    patient: Clean | None = Field(None, max_length=200)
    site: Clean | None = Field(None, max_length=200)
    lang: Clean | None = Field(None, max_length=20)
    date: str | None = Field(None, pattern=r"^\d{4}-\d{2}-\d{2}$")
    sex: Literal["F", "M"] | None = None
    age: int | None = Field(None, ge=0, le=130)
    kind: Literal["inpatient", "outpatient"] | None = None
    columns: Columns = Field({}, max_length=50)


class NewBatch(Strict):
    """Notes that come in together."""

    name: Clean = Field("api", max_length=200)
    notes: list[NewNote] = Field(min_length=1, max_length=10_000)


class Decision(Strict):
    """A decision on a note; version is the one that was seen."""

    action: str = Field(max_length=20)
    version: int = Field(ge=0, le=LARGEST_INT)
    code: str | None = Field(None, max_length=40)
    to: str | None = Field(None, max_length=40)
    reason: str | None = Field(None, max_length=40)
    poa: str | None = Field(None, max_length=4)
    start: int | None = Field(None, ge=0, le=LARGEST_INT)
    end: int | None = Field(None, ge=0, le=LARGEST_INT)
    codes: list[Annotated[str, Field(max_length=40)]] | None = Field(None, max_length=500)
    user: int | None = Field(None, ge=1, le=LARGEST_INT)


class Text(Strict):
    """A text to be coded and forgotten."""

    text: str = Field(max_length=LONGEST)
    columns: Columns = Field({}, max_length=50)


class Query_(Strict):
    """Words or a code to look for."""

    query: str = Field(max_length=200)
    system: System = "icd10cm"


def _clean(text: str) -> str:
    """The text without characters that no store takes."""
    return text.replace("\x00", " ").encode("utf-8", "replace").decode("utf-8")


@router.get("/notes", response_model=answers.Queue)
def list_notes(
    request: Request,
    services: Parts,
    user: AnyUser,
    status: Annotated[list[Status], Query(max_length=10)] = [],  # noqa: B006 (FastAPI copies it)
    mine: bool = False,
    site: Annotated[Clean | None, Query(max_length=200)] = None,
    batch: Annotated[int | None, Query(ge=1, le=LARGEST_INT)] = None,
    order: Literal["oldest", "uncertain", "newest"] = "oldest",
    page: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> dict[str, Any]:
    """A page of the work queue; mine: only what is assigned to the user of the token."""
    with reading(services.engine) as connection:
        whose = user.id if mine else None
        rows = queue(connection, statuses=status, assignee=whose, site=site, batch=batch, order=order, page=page)
        counts = tally(connection)
    log_read(services.engine, user.id, "queue", None, address(request))
    return {"counts": counts, "notes": [dict(row._mapping) for row in rows]}


@router.post("/notes", status_code=202, response_model=answers.Added)
def add(request: Request, services: Parts, user: AnyUser, body: NewBatch) -> dict[str, int]:
    """Takes notes in and codes them in the background; ids that are known already are left as they are."""
    extra = ("date", "sex", "age", "kind")
    incoming = [
        with_encounter(
            Note(
                _clean(item.id).strip(),
                _clean(item.text),
                patient=item.patient and _clean(item.patient),
                site=item.site and _clean(item.site),
                lang=item.lang and _clean(item.lang),
                extra=item.columns | {name: value for name in extra if (value := getattr(item, name)) is not None},
            )
        )
        for item in body.notes
    ]
    batch, added, known = take_in(services, user.id, _clean(body.name), incoming, address(request))
    return {"batch": batch, "added": added, "known": known}


@router.post("/fhir", status_code=202, response_model=answers.Added)
def add_fhir(request: Request, services: Parts, user: AnyUser, body: dict[str, Any]) -> dict[str, int]:
    """Takes in a FHIR DocumentReference, or a Bundle of them."""
    incoming = [with_encounter(note) for note in fhir_notes(body, "the body")]
    batch, added, known = take_in(services, user.id, "FHIR", incoming, address(request))
    return {"batch": batch, "added": added, "known": known}


@router.get("/notes/{note_id}", response_model=answers.WholeNote)
def read_note(request: Request, services: Parts, user: AnyUser, note_id: Number) -> dict[str, Any]:
    """A note with its text, suggestions and state; that it was read is kept."""
    with reading(services.engine) as connection:
        case = load_case(connection, note_id)
    log_read(services.engine, user.id, "note", note_id, address(request))
    shown = panel(case)
    return {
        "id": note_id,
        "ref": case.note["ref"],
        "text": case.note["text"],
        "patient": case.note["patient"],
        "site": case.note["site"],
        "encounter": case.note["encounter"],
        "coding": case.note["coding"],
        "confidence": case.note["confidence"],
        "status": case.review.status,
        "version": case.review.version,
        "assignee": case.review.assignee,
        "codes": [
            {
                "code": str(item.code),
                "origin": item.origin,
                "poa": item.poa,
                "evidence": [list(s) for s in item.evidence],
            }
            for item in case.review.chosen
        ],
        "rejected": {str(code): reason for code, reason in case.review.rejected.items()},
        "suggestions": list(case.suggestions),
        "checks": [finding.to_json() for finding in shown.findings],
        "groups": shown.groups.to_json(),
    }


@router.post(
    "/notes/{note_id}/decisions",
    response_model=answers.Decided,
    responses={409: {"description": "somebody else was faster"}},
)
def decide(services: Parts, user: AnyUser, note_id: Number, body: Decision) -> dict[str, Any]:
    """Makes a decision; once it is answered with 200 it is on disk."""
    given = body.model_dump(exclude={"action", "version"}, exclude_unset=True)
    review = decide_on(services, user, note_id, body.action, given, body.version).review
    return {"version": review.version, "status": review.status, "codes": [str(code) for code in review.codes]}


@router.get("/notes/{note_id}/decisions", response_model=list[answers.PastDecision])
def decisions_of(request: Request, services: Parts, user: AnyUser, note_id: Number) -> list[dict[str, Any]]:
    """Who did what when."""
    with reading(services.engine) as connection:
        load_case(connection, note_id)
        rows = history(connection, note_id)
    log_read(services.engine, user.id, "history", note_id, address(request))
    return [dict(row) for row in rows]


@router.get("/notes/{note_id}/export")
def export(
    request: Request, services: Parts, user: AnyUser, note_id: Number, format: Literal["fhir", "csv", "json"] = "fhir"
) -> Response:
    """The coded encounter."""
    return exported(services, user, note_id, format, address(request))


@router.post("/code", response_model=answers.Suggestions, responses={503: {"description": "the coder's queue is full"}})
async def code(services: Parts, user: AnyUser, body: Text) -> dict[str, Any]:
    """Suggestions for a text, which is not kept."""
    # In threads of their own: those of the pages must not wait for the coder.
    limiter = services.waiting_for_coder
    note = Note("", _clean(body.text), extra=columns_of(body.columns))
    found = (await to_thread.run_sync(services.workers.code, [note], limiter=limiter))[0]
    return {"suggestions": found["suggestions"]}


@router.post("/codes/search", response_model=list[answers.Hit])
def search(user: AnyUser, body: Query_) -> list[dict[str, Any]]:
    """Codes that fit some words; by POST, for the words may be a note's."""
    return hits(_clean(body.query), body.system)


@router.get("/codes/{system}/{code}", response_model=answers.BookLine)
def look_up(user: AnyUser, system: System, code: Annotated[str, Path(max_length=20)]) -> Any:
    """A line of the code book with its notes."""
    found = book(system, code)
    if found is None:
        return JSONResponse({"detail": "the code book has no such line"}, status_code=404)
    entry = found["entry"]
    lines = {name: [line for line, _, _ in found[name]] for name in ("siblings", "children")}
    notes_by = {title: [{"line": line, "note": note} for line, note in rows] for title, rows in found["notes"]}
    return {
        "system": system,
        "release": table(system).release,
        "code": entry.code,
        "description": entry.description,
        "billable": entry.billable,
        "ancestors": [line for line, _ in found["above"]],
        **lines,
        "notes": notes_by,
    }


@router.get("/batches", response_model=list[answers.BatchProgress])
def list_batches(services: Parts, user: AnyUser) -> list[dict[str, Any]]:
    """How far the coder is with the notes that came in."""
    return batches.progress(services.engine)


@router.post("/batches/{batch}/{act}", response_model=answers.BatchChanged)
def change_batch(services: Parts, user: AnyUser, batch: Number, act: Literal["cancel", "resume"]) -> dict[str, str]:
    """Cancels or resumes a batch."""
    (batches.cancel if act == "cancel" else batches.resume)(services.engine, batch)
    services.background.wake()
    return {"status": act}


@router.get("/measures", response_model=answers.Agreement)
def read_measures(services: Parts, user: AnyUser) -> dict[str, Any]:
    """How coder and people agree."""
    with reading(services.engine) as connection:
        found = measures.reviewed(connection)
        drift = measures.drift(connection)
        coded = len(connection.scalars(select(notes.c.id).where(notes.c.coding == "done")).all())
    whole = measures.overall(found)
    return {
        "notes": len(found),
        "coded": coded,
        "kept": whole.acceptance,
        "found": whole.found,
        "median_seconds": measures.median([item.seconds for item in found if item.seconds]),
        "codes": [
            {"code": row.name, "suggested": row.suggested, "kept": row.kept, "final": row.final}
            for row in measures.by_code(found)
        ],
        "drift": [{"name": row.name, "then": row.then, "now": row.now, "index": row.index} for row in drift],
    }
