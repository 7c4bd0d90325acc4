"""Pages for reviewers: queue, note, history, code book, import, measures, triage."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select

from nosology.core import SYSTEMS, Code, ConflictError, NosologyError, Note, ReviewError
from nosology.workbench import cases, coding, measures, triage
from nosology.workbench.accounts import User
from nosology.workbench.audit_log import log_access, log_access_in
from nosology.workbench.database import notes, read_transaction, write_transaction
from nosology.workbench.page_html import annotate_note, queue_rows, render_page
from nosology.workbench.review import STATUSES, NotFound
from nosology.workbench.security import (
    MAX_ID,
    AddressDep,
    AdminUser,
    CurrentUser,
    ReviewerUser,
    RowId,
    ServicesDep,
    client_address,
)
from nosology.workbench.services import Services
from nosology.workbench.uploads import normalize_encounter, read_upload
from nosology.workbench.views import build_panel, code_book_page, search_codes

TO_DO = ("new", "open", "held", "second")  # statuses that the queue shows first
router = APIRouter(include_in_schema=False)


def _number(text: str) -> int:
    """The number in a query parameter; 0 if it is none that the database can store."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _valid_order(order: str) -> str:
    return order if order in cases.ORDERS else "oldest"


@router.get("/")
def queue_page(
    request: Request,
    services: ServicesDep,
    user: CurrentUser,
    status: str = "",
    mine: str = "",
    site: str = "",
    order: str = "oldest",
    batch: str = "",
    page_number: str = "0",
) -> HTMLResponse:
    """The work queue."""
    filters = {"status": status, "mine": mine, "site": site, "order": order, "batch": batch}
    return _render_queue(request, services, user, filters, number=min(_number(page_number), 1_000_000))


@router.post("/find")
def find_note(
    request: Request, services: ServicesDep, user: CurrentUser, ref: Annotated[str, Form(max_length=200)] = ""
) -> Response:
    """The note with an id, or all notes whose id contains it. A POST, because an id may identify a patient."""
    ref = ref.strip()
    with read_transaction(services.engine) as connection:
        note_id = connection.scalar(select(notes.c.id).where(notes.c.ref == ref)) if ref else None
    if note_id:
        return RedirectResponse(f"/notes/{note_id}", status_code=303)
    filters = {"status": "all", "mine": "", "site": "", "order": "newest", "batch": ""}
    return _render_queue(request, services, user, filters, ref=ref)


def _render_queue(
    request: Request, services: Services, user: User, filters: dict[str, str], *, number: int = 0, ref: str = ""
) -> HTMLResponse:
    """The queue with filters; invalid filters are ignored."""
    status, order = filters["status"], _valid_order(filters["order"])
    with read_transaction(services.engine) as connection:
        rows = cases.select_queue(
            connection,
            statuses=[status] if status in STATUSES else () if status == "all" else TO_DO,
            assignee=user.id if filters["mine"] == "me" else None,
            unassigned=filters["mine"] == "nobody",
            site=filters["site"] or None,
            batch=_number(filters["batch"]) or None,
            ref=ref or None,
            order=order,
            page=number,
        )
        counts, sites = cases.count_by_status(connection), cases.list_sites(connection)
    log_access(services.engine, user.id, "queue", None, client_address(request))
    values = {"body": queue_rows(rows), "counts": counts, "sites": sites, "number": number, "ref": ref}
    values |= {"filters": {**filters, "order": order}, "more": len(rows) == cases.PAGE_SIZE}
    return render_page(request, "queue.html", user, values)


@router.get("/next")
def next_page(services: ServicesDep, user: CurrentUser, after: str = "", order: str = "oldest") -> RedirectResponse:
    """A redirect to the next note in the order of the queue."""
    order = _valid_order(order)
    with read_transaction(services.engine) as connection:
        note_id = cases.next_note(connection, user.id, after=_number(after), order=order)
    query = "" if order == "oldest" else f"?order={order}"
    return RedirectResponse(f"/notes/{note_id}{query}" if note_id else "/", status_code=303)


@router.get("/notes/{note_id}")
def note_page(
    request: Request, services: ServicesDep, user: CurrentUser, note_id: RowId, order: str = "oldest"
) -> HTMLResponse:
    """A note with its suggestions; the access is logged."""
    case = services.read_case(user, note_id, client_address(request))
    accepted = {Code(item.system, item.code) for item in case.suggestions if item.accepted}
    highlighted = {*case.review.codes, *accepted} - case.review.rejected.keys()
    sections = annotate_note(case.note["text"], case.evidence(), highlighted)
    return _render_case(request, services, user, case, "note.html", order=order, more={"sections": sections})


def _render_case(
    request: Request,
    services: Services,
    user: User,
    case: cases.Case,
    template: str,
    *,
    order: str,
    message: str = "",
    status: int = 200,
    more: dict[str, Any] | None = None,
) -> HTMLResponse:
    with read_transaction(services.engine) as connection:
        people = cases.list_assignees(connection)
    values = {"case": case, "panel": build_panel(case), "people": people, "order": _valid_order(order)}
    values |= {"message": message, "conflict": status == 409} | (more or {})
    return render_page(request, template, user, values, status=status)


@router.get("/notes/{note_id}/coded")
def is_coded(services: ServicesDep, user: CurrentUser, note_id: RowId) -> Response:
    """A reload of the page once the note is coded. While it waits, the note is coded before all others."""
    with read_transaction(services.engine) as connection:
        coding = connection.scalar(select(notes.c.coding).where(notes.c.id == note_id))
    if coding != "waiting":
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    services.background.prioritize(note_id)
    return Response(status_code=204)


@router.post("/notes/{note_id}/decide")
def decide(
    request: Request,
    services: ServicesDep,
    user: CurrentUser,
    note_id: RowId,
    action: Annotated[str, Form(max_length=20)],
    version: Annotated[int, Form(ge=0, le=MAX_ID)],
    code: Annotated[str, Form(max_length=40)] = "",
    to: Annotated[str, Form(max_length=40)] = "",
    reason: Annotated[str, Form(max_length=40)] = "",
    poa: Annotated[str, Form(max_length=4)] = "",
    start: Annotated[int | None, Form(ge=0, le=MAX_ID)] = None,
    end: Annotated[int | None, Form(ge=0, le=MAX_ID)] = None,
    codes: Annotated[str, Form(max_length=20_000)] = "",
    assignee: Annotated[str, Form(max_length=20)] = "",
) -> HTMLResponse:
    """The panel after a decision; after a conflict, the panel with the other person's decision."""
    values = {"code": code, "to": to, "reason": reason, "poa": poa, "codes": _parse_list(codes)}
    values |= {name: value for name, value in (("start", start), ("end", end)) if value is not None}
    values["user"] = _number(assignee) or None
    message, status = "", 200
    try:
        case = services.decide(user, note_id, action, values, version)
    except ReviewError as error:
        is_conflict = isinstance(error, ConflictError)
        message, status = f"{error}.", 409 if is_conflict else 422
        if not is_conflict:  # the message of a conflict starts with a name
            message = message[:1].upper() + message[1:]
        case = services.read_case(user, note_id, client_address(request), "panel")  # it shows text of the note
    order = parse_qs(urlsplit(request.headers.get("hx-current-url", "")).query).get("order", ["oldest"])[0]
    return _render_case(request, services, user, case, "panel.html", order=order, message=message, status=status)


def _parse_list(raw: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


@router.get("/notes/{note_id}/history")
def history_page(request: Request, services: ServicesDep, user: CurrentUser, note_id: RowId) -> HTMLResponse:
    """The decisions on a note, and the coder's suggestions."""
    case = services.read_case(user, note_id, client_address(request), "history")
    with read_transaction(services.engine) as connection:
        rows = cases.decision_history(connection, note_id)
        people = {row.id: row.name for row in cases.list_assignees(connection)}
    return render_page(request, "history.html", user, {"case": case, "rows": rows, "people": people})


@router.get("/notes/{note_id}/export/{form}")
def export_note(services: ServicesDep, user: CurrentUser, address: AddressDep, note_id: RowId, form: str) -> Response:
    """The coded encounter as a file."""
    return services.export(user, note_id, form, address).response()


@router.post("/codes/search")
def code_search(
    request: Request,
    user: CurrentUser,
    query: Annotated[str, Form(max_length=200)] = "",
    system: Annotated[str, Form(max_length=10)] = "icd10cm",
) -> HTMLResponse:
    """Codes for words or a code. A POST, because the words may be those of a note."""
    system = system if system in SYSTEMS else "icd10cm"
    values = {"lines": search_codes(query, system), "system": system, "query": query}
    return render_page(request, "search_results.html", user, values)


@router.get("/codes/{system}/{code}")
def book_page(request: Request, user: CurrentUser, system: str, code: str, instead_of: str = "") -> HTMLResponse:
    """A page of the code book."""
    values = {"book": code_book_page(system, code), "instead_of": instead_of[:40]}
    return render_page(request, "book.html", user, values)


@router.get("/batches")
def batches_page(request: Request, services: ServicesDep, user: CurrentUser) -> HTMLResponse:
    """The import form, and the progress of batches."""
    return _render_batches(request, services, user)


def _render_batches(request: Request, services: Services, user: User, error: str = "") -> HTMLResponse:
    values = {"batches": coding.batch_progress(services.engine), "error": error}
    return render_page(request, "batches.html", user, values, status=422 if error else 200)


@router.get("/batches/rows")
def batch_rows(request: Request, services: ServicesDep, user: CurrentUser) -> HTMLResponse:
    """The table of batches, which the page polls."""
    return render_page(request, "batch_rows.html", user, {"batches": coding.batch_progress(services.engine)})


@router.post("/batches")
def upload_notes(
    request: Request,
    services: ServicesDep,
    user: CurrentUser,
    files: Annotated[list[UploadFile], File()] = [],  # noqa: B006 (FastAPI copies it)
    text: Annotated[str, Form(max_length=4_000_000)] = "",
    ref: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Imports files, or one note that was typed or pasted."""
    try:
        names = [file.filename for file in files if file.filename]
        incoming = [note for file in files if file.filename for note in read_upload(file.filename, file.file.read())]
        if text.strip():
            if not ref.strip():
                raise ReviewError("a pasted note needs an id")
            incoming.append(normalize_encounter(Note(ref.strip(), text.replace("\x00", " "))))
        if not incoming:
            raise ReviewError("choose a file, or paste a note")
        services.import_notes(user, names[0] if names else ref, incoming, client_address(request))
    except NosologyError as error:
        return _render_batches(request, services, user, f"{error}.")
    return RedirectResponse("/batches", status_code=303)


@router.post("/batches/{batch}/{act}")
def change_batch(services: ServicesDep, user: CurrentUser, batch: RowId, act: str) -> Response:
    """Cancels or resumes a batch."""
    if act not in ("cancel", "resume"):
        raise NotFound("there is no such page")
    (coding.cancel_batch if act == "cancel" else coding.resume_batch)(services.engine, batch)
    services.background.notify()
    return RedirectResponse("/batches", status_code=303)


@router.get("/measures")
def measures_page(request: Request, services: ServicesDep, user: CurrentUser) -> HTMLResponse:
    """Agreement between coder and reviewers, review time, drift."""
    with read_transaction(services.engine) as connection:
        reviewed = measures.load_reviewed_notes(connection)
        drift = measures.measure_drift(connection)
    days, chapters = measures.agreement_by_day(reviewed), measures.agreement_by_chapter(reviewed)
    values = {
        "notes": len(reviewed),
        "total": measures.total_agreement(reviewed),
        "seconds": measures.median([note.seconds for note in reviewed if note.seconds]),
        "codes": measures.agreement_by_code(reviewed),
        "chapters": chapters,
        "chapter_bars": [(row.title, row.precision, row.recall) for row in chapters[:12]],
        "drift": drift,
        "daily_precision": [(day, value) for day, _, value, _ in days if value is not None],
        "daily_seconds": [(day, value) for day, _, _, value in days],
    }
    return render_page(request, "measures.html", user, values)


@router.get("/triage")
def triage_page(request: Request, services: ServicesDep, user: ReviewerUser) -> HTMLResponse:
    """The triage rule, and the effect of each threshold."""
    return _render_triage(request, services, user)


def _render_triage(request: Request, services: Services, user: User, error: str = "") -> HTMLResponse:
    with read_transaction(services.engine) as connection:
        reviewed = measures.load_reviewed_notes(connection)
        rule, stored = triage.load_triage_rule(connection), triage.load_calibration(connection)
        raw = triage.raw_confidences(connection)
    calibration = measures.fit_calibration(reviewed)
    if calibration != stored:
        with write_transaction(services.engine) as connection:
            triage.save_calibration(connection, calibration)
    observed = [
        (calibration.apply(note.raw_confidence), triage.code_f1(note.suggested, note.final))
        for note in reviewed
        if note.by_person
    ]
    effects = triage.threshold_effects([calibration.apply(value) for value in raw], observed)
    errors = [(f"{row.threshold:.2f}", row.expected_error) for row in effects if row.expected_error is not None]
    values = {"effects": effects, "rule": rule, "calibration": calibration, "error": error, "coded": len(raw)}
    values |= {"expected_errors": errors}
    return render_page(request, "triage.html", user, values, status=422 if error else 200)


@router.post("/triage")
def set_triage(
    request: Request,
    services: ServicesDep,
    user: AdminUser,
    threshold: Annotated[float, Form()] = 0.9,
    sample: Annotated[float, Form()] = 0.1,
    on: Annotated[str, Form(max_length=5)] = "",
) -> Response:
    """Puts a rule in force for notes that are coded from now on."""
    try:
        rule = triage.TriageRule(on == "yes", threshold, sample)
    except NosologyError as error:
        return _render_triage(request, services, user, f"{error}.")
    with write_transaction(services.engine) as connection:
        triage.save_triage_rule(connection, rule)
        log_access_in(connection, user.id, "triage", None, client_address(request))
    return RedirectResponse("/triage", status_code=303)
