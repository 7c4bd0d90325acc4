"""Pages of the work: the queue, a note, its decisions, the code book, exports."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select

from nosology.codes import parse, table
from nosology.core import SYSTEMS, Code, CodeError, ConflictError, ReviewError
from nosology.workbench.accounts import User
from nosology.workbench.export import FORMATS, to_csv, to_fhir, to_json
from nosology.workbench.pages_sign_in import address
from nosology.workbench.panel import book, panel
from nosology.workbench.render import evidence_spans, parts
from nosology.workbench.review import STATUSES
from nosology.workbench.security import AnyUser, Forbidden, Parts
from nosology.workbench.services import Services
from nosology.workbench.store.engine import reading
from nosology.workbench.store.schema import notes
from nosology.workbench.web import page
from nosology.workbench.work import ORDERS, PAGE, history, load_case, log_read, names, queue, record, sites, tally

router = APIRouter(include_in_schema=False)
REVIEWER_ACTIONS = ("approve",)
WORK = ("new", "open", "held", "second")


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
    chosen = [status] if status in STATUSES else list(WORK) if status != "all" else []
    number = int(page_number) if page_number.isdigit() and len(page_number) < 7 else 0
    order = order if order in ORDERS else "oldest"
    with reading(services.engine) as connection:
        rows = queue(
            connection,
            statuses=chosen,
            assignee=user.id if mine == "me" else None,
            unassigned=mine == "nobody",
            site=site or None,
            batch=int(batch) if batch.isdigit() and len(batch) < 10 else None,
            order=order,
            page=number,
        )
        counts, places, people = tally(connection), sites(connection), names(connection)
    filters = {"status": status, "mine": mine, "site": site, "order": order, "batch": batch}
    values = {"rows": rows, "counts": counts, "sites": places, "people": people, "number": number, "filters": filters}
    log_read(services.engine, user.id, "queue", None, address(request))
    return page(request, "queue.html", user, values | {"more": len(rows) == PAGE, "orders": ORDERS})


@router.get("/next")
def next_note(services: Parts, user: AnyUser, after: int = 0) -> RedirectResponse:
    """The next note to work on: one's own before those of nobody, the oldest first."""
    with reading(services.engine) as connection:
        wanted = select(notes.c.id).where(notes.c.status.in_(("new", "open")), notes.c.id != after)
        wanted = wanted.order_by(notes.c.received, notes.c.id).limit(1)
        own = connection.scalar(wanted.where(notes.c.assignee_id == user.id))
        free = own or connection.scalar(wanted.where(notes.c.assignee_id.is_(None)))
    return RedirectResponse(f"/notes/{free}" if free else "/", status_code=303)


@router.get("/notes/{note_id}")
def note_page(request: Request, services: Parts, user: AnyUser, note_id: int) -> HTMLResponse:
    """A note with its suggestions; that somebody looked at it is kept."""
    with reading(services.engine) as connection:
        case = load_case(connection, note_id)
        people = names(connection)
    log_read(services.engine, user.id, "note", note_id, address(request))
    evidence = evidence_spans(case.suggestions, case.review)
    loud = {*case.review.codes, *(Code(s["system"], s["code"]) for s in case.suggestions if s["accepted"])}
    text = parts(case.note["text"], evidence, loud - case.review.rejected.keys())
    values = {"case": case, "panel": panel(case), "parts": text, "people": people}
    return page(request, "note.html", user, values | {"message": "", "conflict": False})


@router.get("/notes/{note_id}/panel")
def note_panel(request: Request, services: Parts, user: AnyUser, note_id: int) -> HTMLResponse:
    """The right side alone, for a page that waits for the coder; once it has read the note, the whole page is due."""
    answer = _panel(request, services, user, note_id)
    with reading(services.engine) as connection:
        if connection.scalar(select(notes.c.coding).where(notes.c.id == note_id)) != "waiting":
            answer.headers["HX-Refresh"] = "true"
    return answer


def _panel(
    request: Request, services: Services, user: User, note_id: int, message: str = "", status: int = 200
) -> HTMLResponse:
    with reading(services.engine) as connection:
        case, people = load_case(connection, note_id), names(connection)
    values = {"case": case, "panel": panel(case), "people": people, "message": message, "conflict": status == 409}
    return page(request, "panel.html", user, values, status=status)


@router.post("/notes/{note_id}/decide")
def decide(
    request: Request,
    services: Parts,
    user: AnyUser,
    note_id: int,
    action: Annotated[str, Form(max_length=20)],
    version: Annotated[int, Form()],
    code: Annotated[str, Form(max_length=40)] = "",
    to: Annotated[str, Form(max_length=40)] = "",
    reason: Annotated[str, Form(max_length=40)] = "",
    poa: Annotated[str, Form(max_length=4)] = "",
    start: Annotated[int | None, Form()] = None,
    end: Annotated[int | None, Form()] = None,
    codes: Annotated[str, Form(max_length=20_000)] = "",
    assignee: Annotated[str, Form(max_length=20)] = "",
) -> HTMLResponse:
    """Makes a decision and shows the panel as it is then; a conflict shows it as somebody else left it."""
    details = _details(action, code=code, to=to, reason=reason, poa=poa, start=start, end=end, codes=codes)
    if action == "assign":
        details["user"] = int(assignee) if assignee.isdigit() and len(assignee) < 10 else None
    try:
        check_role(user, action)
        record(services.engine, note_id, action, details, user=user.id, version=version)
    except ConflictError as error:
        return _panel(request, services, user, note_id, f"{error}.", status=409)
    except ReviewError as error:
        return _panel(request, services, user, note_id, f"{str(error)[:1].upper()}{str(error)[1:]}.", status=422)
    return _panel(request, services, user, note_id)


def check_role(user: User, action: str) -> None:
    """Raises Forbidden where a decision is not for this user's role."""
    if action in REVIEWER_ACTIONS and not user.may("reviewer"):
        raise Forbidden("a second review is for people with the role reviewer")
    if action == "preaccept":
        raise Forbidden("only the triage rule pre-accepts notes")


def _details(action: str, **given: Any) -> dict[str, Any]:
    """The details of a decision from the fields of a form: those that its action reads."""
    wanted = {
        "accept": ("code",),
        "reject": ("code", "reason"),
        "change": ("code", "to"),
        "add": ("code", "start", "end"),
        "clear": ("code",),
        "evidence": ("code", "start", "end"),
        "poa": ("code", "poa"),
        "order": ("codes",),
    }.get(action, ())
    details = {name: given[name] for name in wanted if given[name] is not None}
    if "codes" in details:
        details["codes"] = _list(details["codes"])
    return details


def _list(raw: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


@router.get("/notes/{note_id}/history")
def history_page(request: Request, services: Parts, user: AnyUser, note_id: int) -> HTMLResponse:
    """Who did what when, and what the coder had suggested."""
    with reading(services.engine) as connection:
        case, rows = load_case(connection, note_id), history(connection, note_id)
        people = {row.id: row.name for row in names(connection)}
    log_read(services.engine, user.id, "history", note_id, address(request))
    return page(request, "history.html", user, {"case": case, "rows": rows, "people": people})


@router.get("/notes/{note_id}/export/{form}")
def export(request: Request, services: Parts, user: AnyUser, note_id: int, form: str) -> Response:
    """The coded encounter as a file."""
    return exported(services, user, note_id, form, address(request))


def exported(services: Services, user: User, note_id: int, form: str, where: str) -> Response:
    """The coded encounter in a form of FORMATS; that it left the house is kept."""
    if form not in FORMATS:
        raise ReviewError(f"format must be one of {', '.join(FORMATS)}")
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
    if not found:
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
        raise ReviewError("the code book has no such line")
    return page(request, "book.html", user, found | {"instead_of": instead_of[:40]})
