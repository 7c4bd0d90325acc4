"""Pages around the work: notes in and their progress, measures, triage, users, tokens, the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select

from nosology.core import NosologyError, Note, ReviewError
from nosology.workbench import accounts, batches, measures
from nosology.workbench.audit_log import log_in, log_read, read_log
from nosology.workbench.intake import notes_of, with_encounter
from nosology.workbench.pages_sign_in import address
from nosology.workbench.plots import bars, line
from nosology.workbench.review import Missing
from nosology.workbench.security import Admin, AnyUser, Parts, Reviewer
from nosology.workbench.services import Services
from nosology.workbench.store.engine import reading, writing
from nosology.workbench.store.schema import users
from nosology.workbench.triage import Triage, agreement, outlook
from nosology.workbench.web import LARGEST_INT, Number, page
from nosology.workbench.work import add_notes, new_batch

LOG_PAGE = 200  # entries of the audit log
router = APIRouter(include_in_schema=False)


def take_in(services: Services, user: int, name: str, incoming: list[Note], where: str) -> tuple[int, int, int]:
    """(batch, notes added, notes known already) of notes that come in together; the coder begins with them at once."""
    with writing(services.engine) as connection:
        batch = new_batch(connection, name, user)
        added, known = add_notes(connection, incoming, batch)
        connection.execute(batches.batches.update().where(batches.batches.c.id == batch).values(total=added))
        log_in(connection, user, "import", None, where)
    services.background.wake()
    return batch, added, known


@router.get("/batches")
def batches_page(request: Request, services: Parts, user: AnyUser) -> HTMLResponse:
    """Notes in, and how far the coder is with them."""
    return _batches(request, services, user)


def _batches(request: Request, services: Services, user: AnyUser, trouble: str = "", status: int = 200) -> HTMLResponse:
    values = {"batches": batches.progress(services.engine), "trouble": trouble}
    return page(request, "batches.html", user, values, status=status)


@router.get("/batches/rows")
def batch_rows(request: Request, services: Parts, user: AnyUser) -> HTMLResponse:
    """The table of batches alone, for a page that watches it."""
    return page(request, "batch_rows.html", user, {"batches": batches.progress(services.engine)})


@router.post("/batches")
def upload(
    request: Request,
    services: Parts,
    user: AnyUser,
    files: Annotated[list[UploadFile], File()] = [],  # noqa: B006 (FastAPI copies it)
    text: Annotated[str, Form(max_length=4_000_000)] = "",
    ref: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Takes in files, or one note that was typed or pasted."""
    try:
        found: list[Note] = []
        for file in files:
            if file.filename:
                found += notes_of(file.filename, file.file.read())
        if text.strip():
            if not ref.strip():
                raise ReviewError("a pasted note needs an id")
            found.append(with_encounter(Note(ref.strip(), text.replace("\x00", " "))))
        if not found:
            raise ReviewError("choose a file, or paste a note")
        name = files[0].filename if files and files[0].filename else ref
        take_in(services, user.id, str(name), found, address(request))
    except NosologyError as error:
        return _batches(request, services, user, f"{error}.", status=422)
    return RedirectResponse("/batches", status_code=303)


@router.post("/batches/{batch}/{act}")
def change_batch(request: Request, services: Parts, user: AnyUser, batch: Number, act: str) -> Response:
    """Cancels or resumes a batch."""
    if act not in ("cancel", "resume"):
        raise Missing("there is no such page")
    (batches.cancel if act == "cancel" else batches.resume)(services.engine, batch)
    services.background.wake()
    return RedirectResponse("/batches", status_code=303)


@router.get("/measures")
def measures_page(request: Request, services: Parts, user: AnyUser) -> HTMLResponse:
    """How coder and people agree."""
    with reading(services.engine) as connection:
        found = measures.reviewed(connection)
        drift = measures.drift(connection)
    days = measures.by_day(found)
    chapters = measures.by_chapter(found)
    values = {
        "found": found,
        "overall": measures.overall(found),
        "seconds": measures.median([item.seconds for item in found if item.seconds]),
        "codes": measures.by_code(found),
        "chapters": chapters,
        "drift": drift,
        "acceptance_plot": line([(day, rate) for day, _, rate, _ in days if rate is not None], "share of codes kept"),
        "time_plot": line(
            [(day, seconds) for day, _, _, seconds in days], "median seconds a note", top=None, unit=" s"
        ),
        "chapter_plot": bars([(row.title, row.acceptance, row.found) for row in chapters[:12]], ("kept", "found")),
    }
    return page(request, "measures.html", user, values)


@router.get("/triage")
def triage_page(request: Request, services: Parts, user: Reviewer) -> HTMLResponse:
    """What each threshold would do, and the rule in force."""
    return _triage(request, services, user)


def _triage(request: Request, services: Services, user: Reviewer, trouble: str = "") -> HTMLResponse:
    with reading(services.engine) as connection:
        found = measures.reviewed(connection)
        rule, kept = measures.triage_rule(connection), measures.confidence_curve(connection)
        raw = measures.raw_confidences(connection)
    curve = measures.curve_of(found)
    if curve != kept:
        with writing(services.engine) as connection:
            measures.set_curve(connection, curve)
    coded = [float(curve(value)) for value in raw]
    checked = [(float(curve(item.raw)), agreement(item.suggested, item.final)) for item in found if item.hand]
    rows = outlook(coded, checked)
    plot = line(
        [(f"{row.threshold:.2f}", row.expected_error) for row in rows if row.expected_error is not None], "error"
    )
    values = {"rows": rows, "rule": rule, "curve": curve, "trouble": trouble, "coded": len(coded), "plot": plot}
    return page(request, "triage.html", user, values, status=422 if trouble else 200)


@router.post("/triage")
def set_triage(
    request: Request,
    services: Parts,
    user: Admin,
    threshold: Annotated[float, Form()] = 0.9,
    sample: Annotated[float, Form()] = 0.1,
    on: Annotated[str, Form(max_length=5)] = "",
) -> Response:
    """Puts a rule in force for notes coded from now on."""
    try:
        rule = Triage(on == "yes", threshold, sample)
    except NosologyError as error:
        return _triage(request, services, user, f"{error}.")
    with writing(services.engine) as connection:
        measures.set_triage(connection, rule)
        log_in(connection, user.id, "triage", None, address(request))
    return RedirectResponse("/triage", status_code=303)


@router.get("/users")
def users_page(request: Request, services: Parts, user: Admin) -> HTMLResponse:
    """Everybody who may sign in."""
    return _users(request, services, user)


def _users(
    request: Request, services: Services, user: Admin, message: str = "", secret: str = "", status: int = 200
) -> HTMLResponse:
    with reading(services.engine) as connection:
        rows = connection.execute(select(users).order_by(users.c.name)).mappings().all()
    values = {"rows": rows, "message": message, "secret": secret, "roles": accounts.ROLES}
    return page(request, "users.html", user, values, status=status)


@router.post("/users")
def add_user(
    request: Request,
    services: Parts,
    user: Admin,
    name: Annotated[str, Form(max_length=80)] = "",
    role: Annotated[str, Form(max_length=10)] = "coder",
) -> HTMLResponse:
    """Adds somebody, with a one-time password that is shown once."""
    try:
        with writing(services.engine) as connection:
            made = accounts.create_user(connection, name, role, None)
            secret = accounts.reset_password(connection, made)
            log_in(connection, user.id, "add user", None, address(request))
    except ReviewError as error:
        return _users(request, services, user, f"{error}.", status=422)
    return _users(request, services, user, f"One-time password of {name}:", secret)


@router.post("/users/{who}")
def change_user(
    request: Request,
    services: Parts,
    user: Admin,
    who: Number,
    act: Annotated[str, Form(max_length=10)] = "",
    role: Annotated[str, Form(max_length=10)] = "",
) -> HTMLResponse:
    """Changes a role, lets somebody in or not, or gives a new one-time password."""
    secret, message = "", ""
    try:
        with writing(services.engine) as connection:
            if act == "reset":
                accounts.set_user(connection, who)
                secret, message = accounts.reset_password(connection, who), "New one-time password:"
            elif act in ("disable", "enable"):
                accounts.set_user(connection, who, disabled=act == "disable")
            else:
                accounts.set_user(connection, who, role=role)
            log_in(connection, user.id, f"user {act or 'role'}", None, address(request))
    except ReviewError as error:
        return _users(request, services, user, f"{error}.", status=422)
    return _users(request, services, user, message, secret)


@router.get("/tokens")
def tokens_page(request: Request, services: Parts, user: AnyUser) -> HTMLResponse:
    """One's API tokens."""
    return _tokens(request, services, user)


def _tokens(request: Request, services: Services, user: AnyUser, trouble: str = "", secret: str = "") -> HTMLResponse:
    with reading(services.engine) as connection:
        rows = accounts.tokens_of(connection, user.id)
    values = {"rows": rows, "trouble": trouble, "secret": secret}
    return page(request, "tokens.html", user, values, status=422 if trouble else 200)


@router.post("/tokens")
def add_token(
    request: Request, services: Parts, user: AnyUser, name: Annotated[str, Form(max_length=80)] = ""
) -> HTMLResponse:
    """Makes a token, shown once."""
    try:
        with writing(services.engine) as connection:
            secret = accounts.create_token(connection, user.id, name)
            log_in(connection, user.id, "add token", None, address(request))
    except ReviewError as error:
        return _tokens(request, services, user, f"{error}.")
    return _tokens(request, services, user, secret=secret)


@router.post("/tokens/{token}/revoke")
def revoke_token(request: Request, services: Parts, user: AnyUser, token: Number) -> RedirectResponse:
    """Ends a token."""
    with writing(services.engine) as connection:
        accounts.revoke_token(connection, user.id, token)
        log_in(connection, user.id, "revoke token", None, address(request))
    return RedirectResponse("/tokens", status_code=303)


@router.get("/audit")
def audit_page(
    request: Request,
    services: Parts,
    user: Admin,
    note: Annotated[int | None, Query(ge=1, le=LARGEST_INT)] = None,
    before: Annotated[int | None, Query(ge=1, le=LARGEST_INT)] = None,
) -> HTMLResponse:
    """Who looked at what, of one note or of all; this look is kept as well."""
    log_read(services.engine, user.id, "audit log", None, address(request))
    with reading(services.engine) as connection:
        rows = read_log(connection, note_id=note, before=before, limit=LOG_PAGE)
    return page(request, "audit.html", user, {"rows": rows, "note": note, "more": len(rows) == LOG_PAGE})
