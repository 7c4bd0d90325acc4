"""Pages of the work: the queue, a note, its decisions, the code book, exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select

from nosology.codes import parse, table
from nosology.core import SYSTEMS, Code, CodeError, ConflictError, ReviewError
from nosology.workbench.accounts import User
from nosology.workbench.audit_log import log_read
from nosology.workbench.export import FORMATS, to_csv, to_fhir, to_json
from nosology.workbench.pages_sign_in import address
from nosology.workbench.panel import book, panel
from nosology.workbench.queue_rows import queue_rows
from nosology.workbench.render import evidence_spans, parts
from nosology.workbench.review import FIELDS, STATUSES, Missing
from nosology.workbench.security import AnyUser, Forbidden, Parts
from nosology.workbench.services import Services
from nosology.workbench.store.engine import reading
from nosology.workbench.store.schema import notes
from nosology.workbench.web import LARGEST_INT, Number, page
from nosology.workbench.work import (
    ORDERS,
    PAGE,
    Case,
    history,
    load_case,
    names,
    next_note,
    queue,
    record,
    sites,
    tally,
)

router = APIRouter(include_in_schema=False)
WORK = ("new", "open", "held", "second")


def _whole(text: str) -> int:
    """The number that a field of an address spells; 0 where it spells none that the store could hold."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


@router.get("/")
def queue_page(
    request: Request,
    services: Parts,
    user: AnyUser,
    status: str = "",
    mine: str = "",
    site: str = "",
    order: str = "oldest",
    batch: str = "",
    page_number: str = "0",
) -> HTMLResponse:
    """The work queue."""
    filters = {"status": status, "mine": mine, "site": site, "order": order, "batch": batch}
    return _queue(request, services, user, filters, number=min(_whole(page_number), 1_000_000))


@router.post("/find")
def find(request: Request, services: Parts, user: AnyUser, ref: Annotated[str, Form(max_length=200)] = "") -> Response:
    """The note of an id, or those whose id holds these characters; by POST, for an id may tell who somebody is."""
    ref = ref.strip()
    with reading(services.engine) as connection:
        found = connection.scalar(select(notes.c.id).where(notes.c.ref == ref)) if ref else None
    if found:
        return RedirectResponse(f"/notes/{found}", status_code=303)
    filters = {"status": "all", "mine": "", "site": "", "order": "newest", "batch": ""}
    return _queue(request, services, user, filters, ref=ref)


def _queue(
    request: Request, services: Services, user: User, filters: dict[str, str], *, number: int = 0, ref: str = ""
) -> HTMLResponse:
    """The queue as its filters say; any that is not as it must be is left out."""
    status, order = filters["status"], filters["order"] if filters["order"] in ORDERS else "oldest"
    with reading(services.engine) as connection:
        rows = queue(
            connection,
            statuses=[status] if status in STATUSES else () if status == "all" else WORK,
            assignee=user.id if filters["mine"] == "me" else None,
            unassigned=filters["mine"] == "nobody",
            site=filters["site"] or None,
            batch=_whole(filters["batch"]) or None,
            ref=ref or None,
            order=order,
            page=number,
        )
        counts, places = tally(connection), sites(connection)
    log_read(services.engine, user.id, "queue", None, address(request))
    values = {"body": queue_rows(rows), "counts": counts, "sites": places, "number": number, "ref": ref}
    return page(
        request, "queue.html", user, {**values, "filters": {**filters, "order": order}, "more": len(rows) == PAGE}
    )


@router.get("/next")
def next_page(services: Parts, user: AnyUser, after: str = "", order: str = "oldest") -> RedirectResponse:
    """Sends on to the next note to work on, in the order that was chosen in the queue."""
    order = order if order in ORDERS else "oldest"
    with reading(services.engine) as connection:
        found = next_note(connection, user.id, after=_whole(after), order=order)
    asked = "" if order == "oldest" else f"?order={order}"
    return RedirectResponse(f"/notes/{found}{asked}" if found else "/", status_code=303)


@router.get("/notes/{note_id}")
def note_page(request: Request, services: Parts, user: AnyUser, note_id: Number, order: str = "oldest") -> HTMLResponse:
    """A note with its suggestions; that somebody looked at it is kept."""
    with reading(services.engine) as connection:
        case = load_case(connection, note_id)
        people = names(connection)
    log_read(services.engine, user.id, "note", note_id, address(request))
    evidence = evidence_spans(case.suggestions, case.review)
    loud = {*case.review.codes, *(Code(s["system"], s["code"]) for s in case.suggestions if s["accepted"])}
    text = parts(case.note["text"], evidence, loud - case.review.rejected.keys())
    values = {"case": case, "panel": panel(case), "parts": text, "people": people}
    values["order"] = order if order in ORDERS else "oldest"
    return page(request, "note.html", user, values | {"message": "", "conflict": False})


@router.get("/notes/{note_id}/coded")
def is_coded(services: Parts, user: AnyUser, note_id: Number) -> Response:
    """Nothing while the coder has not read the note, which it now does first; then, that the page is to be loaded."""
    with reading(services.engine) as connection:
        coding = connection.scalar(select(notes.c.coding).where(notes.c.id == note_id))
    if coding != "waiting":
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    services.background.hurry(note_id)
    return Response(status_code=204)


@router.post("/notes/{note_id}/decide")
def decide(
    request: Request,
    services: Parts,
    user: AnyUser,
    note_id: Number,
    action: Annotated[str, Form(max_length=20)],
    version: Annotated[int, Form(ge=0, le=LARGEST_INT)],
    code: Annotated[str, Form(max_length=40)] = "",
    to: Annotated[str, Form(max_length=40)] = "",
    reason: Annotated[str, Form(max_length=40)] = "",
    poa: Annotated[str, Form(max_length=4)] = "",
    start: Annotated[int | None, Form(ge=0, le=LARGEST_INT)] = None,
    end: Annotated[int | None, Form(ge=0, le=LARGEST_INT)] = None,
    codes: Annotated[str, Form(max_length=20_000)] = "",
    assignee: Annotated[str, Form(max_length=20)] = "",
) -> HTMLResponse:
    """Makes a decision and shows the panel as it is then; a conflict shows it as somebody else left it."""
    given = {"code": code, "to": to, "reason": reason, "poa": poa, "codes": _list(codes)}
    given |= {name: place for name, place in (("start", start), ("end", end)) if place is not None}
    given["user"] = _whole(assignee) or None
    try:
        case = decide_on(services, user, note_id, action, given, version)
    except ReviewError as error:
        conflict = isinstance(error, ConflictError)
        with reading(services.engine) as connection:
            case = load_case(connection, note_id)
        log_read(services.engine, user.id, "panel", note_id, address(request))  # words of the note are on it
        words = f"{error}." if conflict else f"{str(error)[:1].upper()}{str(error)[1:]}."  # a name stays as it is
        return _panel(request, services, user, case, words, status=409 if conflict else 422)
    return _panel(request, services, user, case)


def _panel(
    request: Request, services: Services, user: User, case: Case, message: str = "", status: int = 200
) -> HTMLResponse:
    with reading(services.engine) as connection:
        people = names(connection)
    values = {"case": case, "panel": panel(case), "people": people, "message": message, "conflict": status == 409}
    asked = parse_qs(urlsplit(request.headers.get("hx-current-url", "")).query).get("order", ["oldest"])[0]
    return page(request, "panel.html", user, values | {"order": asked if asked in ORDERS else "oldest"}, status=status)


def decide_on(
    services: Services, user: User, note_id: int, action: str, given: Mapping[str, Any], version: int
) -> Case:
    """The note after a decision of a user, whose role must allow it; of `given` only what the action reads is kept."""
    if action == "approve" and not user.may("reviewer"):
        raise Forbidden("a second review is for people with the role reviewer")
    if action == "preaccept":
        raise Forbidden("only the triage rule pre-accepts notes")
    details = {name: given[name] for name in FIELDS.get(action, ()) if name in given}
    return record(services.engine, note_id, action, details, user=user.id, version=version)


def _list(raw: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


@router.get("/notes/{note_id}/history")
def history_page(request: Request, services: Parts, user: AnyUser, note_id: Number) -> HTMLResponse:
    """Who did what when, and what the coder had suggested."""
    with reading(services.engine) as connection:
        case, rows = load_case(connection, note_id), history(connection, note_id)
        people = {row.id: row.name for row in names(connection)}
    log_read(services.engine, user.id, "history", note_id, address(request))
    return page(request, "history.html", user, {"case": case, "rows": rows, "people": people})


@router.get("/notes/{note_id}/export/{form}")
def export(request: Request, services: Parts, user: AnyUser, note_id: Number, form: str) -> Response:
    """The coded encounter as a file."""
    return exported(services, user, note_id, form, address(request))


def exported(services: Services, user: User, note_id: int, form: str, where: str) -> Response:
    """The coded encounter in a form of FORMATS; that it left the house is kept."""
    if form not in FORMATS:
        raise Missing(f"format must be one of {', '.join(FORMATS)}")
    with reading(services.engine) as connection:
        case, rows = load_case(connection, note_id), history(connection, note_id)
    log_read(services.engine, user.id, f"export {form}", note_id, where)
    if form == "csv":
        body = to_csv(case)
    else:
        body = json.dumps(to_fhir(case, rows) if form == "fhir" else to_json(case, rows), ensure_ascii=False, indent=2)
    suffix = {"csv": "csv", "fhir": "fhir.json", "json": "json"}[form]
    name = f'attachment; filename="note-{note_id}.{suffix}"'
    return Response(body, media_type=FORMATS[form], headers={"content-disposition": name})


@router.post("/codes/search")
def search(
    request: Request,
    user: AnyUser,
    query: Annotated[str, Form(max_length=200)] = "",
    system: Annotated[str, Form(max_length=10)] = "icd10cm",
) -> HTMLResponse:
    """Codes that fit some words, or a code itself; by POST, for the words may be a note's."""
    system = system if system in SYSTEMS else "icd10cm"
    return page(request, "hits.html", user, {"hits": hits(query, system), "system": system, "query": query})


def hits(query: str, system: str, limit: int = 12) -> list[dict[str, Any]]:
    """Codes for a query: the code it spells first, then those whose words fit."""
    if not query.strip():
        return []
    codes = table(system)
    found: list[dict[str, Any]] = []
    try:
        spelled = parse(query, system).code.code
        if spelled in codes:
            lines = [spelled, *codes.children(spelled)[: limit - 1]]
            found = [_hit(codes, line, "") for line in lines]
    except CodeError:
        pass
    if not found and len(query.strip()) > 1:  # a single letter is somebody who goes on typing
        found = [_hit(codes, hit.code, hit.matched) for hit in codes.search(query, limit)]
    return found


def _hit(codes: Any, line: str, matched: str) -> dict[str, Any]:
    words = codes.description(line)
    return {"code": line, "description": words, "billable": codes.billable(line), "matched": matched}


@router.get("/codes/{system}/{code}")
def book_page(request: Request, user: AnyUser, system: str, code: str, instead_of: str = "") -> HTMLResponse:
    """A page of the code book."""
    found = book(system, code) if system in SYSTEMS else None
    if found is None:
        raise Missing("the code book has no such line")
    return page(request, "book.html", user, found | {"instead_of": instead_of[:40]})
