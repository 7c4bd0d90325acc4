"""Pages of accounts: sign-in, password, OpenID Connect, users, API tokens, the audit log."""

from __future__ import annotations

import math
import re
import time
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from nosology.core import NosologyError, ReviewError
from nosology.core.files import text_sha256
from nosology.workbench import accounts
from nosology.workbench.accounts import Forbidden
from nosology.workbench.audit_log import log_access, read_log
from nosology.workbench.database import read_transaction
from nosology.workbench.page_html import AdminPage, PageContext, PageDep, render_page
from nosology.workbench.passwords import MAX_PASSWORD_LENGTH
from nosology.workbench.security import (
    DEVICE_COOKIE,
    MAX_ID,
    SESSION_COOKIE,
    AddressDep,
    RowId,
    ServicesDep,
    client_address,
    redirect_to_provider,
    sign_in_user,
)
from nosology.workbench.services import Services
from nosology.workbench.sign_in import DEVICE_DAYS, account_key, device_cookie, device_of, name_digest
from nosology.workbench.store_settings import load_session_limits
from nosology.workbench.store_tables import users

LOG_PAGE_SIZE = 200
Password = Annotated[str, Form(max_length=MAX_PASSWORD_LENGTH)]
ShortName = Annotated[str, Form(max_length=80)]
ShortWord = Annotated[str, Form(max_length=10)]
OptionalId = Annotated[int | None, Query(ge=1, le=MAX_ID)]
router = APIRouter(include_in_schema=False)


def _local_path(path: str) -> str:
    """A path of this server to which a form may lead; the queue if it is anything else."""
    return path if re.fullmatch(r"/(?![/\\])[\w/?=&%.,+-]{0,300}", path, re.ASCII) else "/"


def _start_session(
    request: Request, services: Services, user: int, *, how: str, known_as: str = "", place: str = "/"
) -> RedirectResponse:
    """A redirect with the cookie of a new session, or of the user's locked session in this browser.

    known_as: the name with which somebody signed in; this browser's later attempts are counted on their own.
    """
    address = client_address(request)
    log_access(services.engine, user, "sign in", None, address, how)
    with read_transaction(services.engine) as connection:
        limits = load_session_limits(connection)
    resume = request.cookies.get(SESSION_COOKIE, "")
    cookie = accounts.create_session(services.engine, user, limits, address, resume=resume)
    response = RedirectResponse(_local_path(place), status_code=303)
    options: dict[str, Any] = {"httponly": True, "samesite": "lax", "secure": services.settings.secure}
    response.set_cookie(SESSION_COOKIE, cookie, max_age=limits.hours * 3600, path="/", **options)
    if known_as:
        device = device_cookie(services.server_key, known_as)
        response.set_cookie(DEVICE_COOKIE, device, max_age=DEVICE_DAYS * 86_400, path="/login", **options)
    return response


def _render_login(
    request: Request, services: Services, error: str = "", status: int = 200, place: str = "/", name: str = ""
) -> HTMLResponse:
    """The sign-in form; name: that somebody has typed already."""
    values = {"oidc": services.settings.oidc is not None, "place": _local_path(place), "name": name}
    return render_page(request, "login.html", None, status=status, error=error, **values)


@router.get("/login")
def login_page(request: Request, services: ServicesDep, next: str = "/") -> HTMLResponse:
    """The sign-in form; next: the page to open after it."""
    return _render_login(request, services, place=next)


@router.post("/login")
def login(
    request: Request,
    services: ServicesDep,
    address: AddressDep,
    name: Annotated[str, Form(max_length=200)] = "",
    password: Password = "",
    next: Annotated[str, Form(max_length=400)] = "/",
) -> Response:
    """Signs in. Wrong passwords delay the next attempt, and an address may have few of them per minute."""
    # The Origin header does not help: under our referrer policy browsers send null even for our own form.
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Forbidden("another site must not sign you in")
    device = device_of(services.server_key, name, request.cookies.get(DEVICE_COOKIE, ""))
    if device is None and not services.sign_in_limit.allows(address):
        message = "Too many wrong passwords from this address. Wait a minute, then try again."
        return _render_login(request, services, message, 429, next, name)
    key = f"{account_key(name)} {device or address}"
    wait = services.sign_in_delays.wait(key)
    check = accounts.check_password(services.engine, name, password)  # also during a delay: the same time for all names
    if check.user is not None and not wait:
        services.sign_in_delays.succeed(key)
        return _start_session(request, services, check.user, how="password", known_as=name, place=next)
    if not wait:
        services.sign_in_delays.fail(key)
    services.sign_in_limit.fail(address)
    who = check.account or f"unknown name {name_digest(services.server_key, name)}"
    reason = "delayed" if wait else check.reason
    log_access(services.engine, None, "sign in refused", None, address, f"{who}: {reason}" if check.account else who)
    if wait:
        message = f"Too many wrong passwords. Wait {math.ceil(wait)} seconds, then try again."
        response = _render_login(request, services, message, 429, next, name)
        response.headers["retry-after"] = str(math.ceil(wait))
        return response
    message = "Name or password is wrong, or the password has expired."
    return _render_login(request, services, message, 401, next, name)


@router.post("/logout")
def logout(page: PageDep) -> RedirectResponse:
    """Signs out."""
    accounts.delete_session(page.services.engine, page.request.cookies.get(SESSION_COOKIE, ""))
    page.log("sign out")
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.post("/lock")
def lock(page: PageDep, next: Annotated[str, Form(max_length=400)] = "/") -> RedirectResponse:
    """Locks the session. Who signs in again in this browser goes on with it, at the same place."""
    accounts.lock_session(page.services.engine, page.request.cookies.get(SESSION_COOKIE, ""))
    page.log("lock")
    return RedirectResponse(f"/login?next={quote(_local_path(next), safe='/')}", status_code=303)


@router.get("/sessions")
def sessions_page(page: PageDep) -> HTMLResponse:
    """The user's sessions."""
    with page.reading() as connection:
        rows = accounts.list_sessions(connection, page.user.id)
    own = text_sha256(page.request.cookies.get(SESSION_COOKIE, ""))
    return page.render("sessions.html", rows=rows, own=own, now=time.time())


@router.post("/sessions/end")
def end_session(page: PageDep, session: Annotated[str, Form(max_length=64)] = "") -> RedirectResponse:
    """Ends one of the user's sessions."""
    with page.writing() as connection:
        accounts.end_session(connection, page.user.id, session)
        page.log("end session", connection, object=f"session {session[:8]}")
    return RedirectResponse("/sessions", status_code=303)


@router.get("/password")
def password_page(page: PageDep) -> HTMLResponse:
    """The form to change the password."""
    return page.render("password.html", error="")


@router.post("/password")
def change_password(page: PageDep, old: Password = "", new: Password = "", again: Password = "") -> Response:
    """Changes the password and ends all other sessions of the user."""
    key, delays = f"password of {page.user.id}", page.services.sign_in_delays
    try:
        if wait := delays.wait(key):
            raise ReviewError(f"too many wrong passwords; wait {math.ceil(wait)} seconds")
        if new != again:
            raise ReviewError("the new password and its repetition differ")
        accounts.change_password(page.services.engine, page.user.id, old, new)
    except ReviewError as error:
        if isinstance(error, accounts.WrongPassword):
            delays.fail(key)
        return page.render("password.html", error=str(error))
    delays.succeed(key)
    page.log("change password")
    return _start_session(page.request, page.services, page.user.id, how="new password")


@router.get("/oidc/start")
async def oidc_start(request: Request, services: ServicesDep, next: str = "/") -> Response:
    """A redirect to the OpenID Connect provider."""
    if services.settings.oidc is None:
        return RedirectResponse("/login", status_code=303)
    request.session["next"] = _local_path(next)
    # The address comes from the settings: the Host header is the client's.
    callback = services.settings.address + request.app.url_path_for("oidc_callback")
    try:
        return await redirect_to_provider(services.settings.oidc, request, callback)
    except NosologyError as error:
        return _render_login(request, services, f"{error}.", 502, next)


@router.get("/oidc/back")
async def oidc_callback(request: Request, services: ServicesDep) -> Response:
    """Signs in the user whom the provider's response names."""
    if services.settings.oidc is None:
        return RedirectResponse("/login", status_code=303)
    try:
        user = await sign_in_user(services.settings.oidc, services.engine, request)
    except NosologyError as error:
        address = client_address(request)
        await run_in_threadpool(log_access, services.engine, None, "sign in refused", None, address, "OpenID Connect")
        return _render_login(request, services, f"{error}.", 401, request.session.get("next", "/"))
    place = request.session.pop("next", "/")
    return await run_in_threadpool(_start_session, request, services, user, how="OpenID Connect", place=place)


@router.get("/users")
def users_page(page: AdminPage) -> HTMLResponse:
    """All users."""
    return _render_users(page)


def _render_users(page: PageContext, *, message: str = "", secret: str = "", error: str = "") -> HTMLResponse:
    with page.reading() as connection:
        rows = connection.execute(select(users).order_by(users.c.name)).mappings().all()
    values = {"rows": rows, "message": message, "secret": secret, "error": error, "roles": accounts.ROLES}
    return page.render("users.html", rights=accounts.RIGHTS, now=time.time(), hours=accounts.ONE_TIME_HOURS, **values)


@router.post("/users")
def add_user(page: AdminPage, name: ShortName = "", role: ShortWord = "coder") -> HTMLResponse:
    """Adds a user and shows the one-time password."""
    try:
        with page.writing() as connection:
            secret = accounts.reset_password(connection, accounts.create_user(connection, name, role, None))
            page.log("add user", connection, object=f"{name}: {role}")
    except ReviewError as error:
        return _render_users(page, error=f"{error}.")
    return _render_users(page, message=f"One-time password of {name}:", secret=secret)


@router.post("/users/{user_id}")
def change_user(page: AdminPage, user_id: RowId, act: ShortWord = "", role: ShortWord = "") -> HTMLResponse:
    """Changes a role, enables or disables an account, or resets a password."""
    secret, message = "", ""
    try:
        with page.writing() as connection:
            if act == "reset":
                who = accounts.update_user(connection, user_id)
                secret, message = accounts.reset_password(connection, user_id), f"One-time password of {who}:"
            elif act in ("disable", "enable"):
                who = accounts.update_user(connection, user_id, disabled=act == "disable")
            else:
                who = accounts.update_user(connection, user_id, role=role)
            page.log(f"user {act or 'role'}", connection, object=who)
    except ReviewError as error:
        return _render_users(page, error=f"{error}.")
    return _render_users(page, message=message, secret=secret)


@router.get("/tokens")
def tokens_page(page: PageDep) -> HTMLResponse:
    """The user's API tokens."""
    return _render_tokens(page)


def _render_tokens(page: PageContext, *, error: str = "", secret: str = "") -> HTMLResponse:
    with page.reading() as connection:
        rows = accounts.list_tokens(connection, page.user.id)
    values = {"rows": rows, "error": error, "secret": secret, "scopes": accounts.SCOPES, "now": time.time()}
    return page.render("tokens.html", days=accounts.TOKEN_DAYS, most=accounts.MAX_TOKEN_DAYS, **values)


@router.post("/tokens")
def add_token(
    page: PageDep,
    name: ShortName = "",
    scope: Annotated[list[str], Form(max_length=20)] = [],  # noqa: B006 (FastAPI copies it)
    days: Annotated[int, Form(ge=1, le=accounts.MAX_TOKEN_DAYS)] = accounts.TOKEN_DAYS,
) -> HTMLResponse:
    """Creates a token and shows it once."""
    try:
        with page.writing() as connection:
            secret = accounts.create_token(connection, page.user.id, name, scope, days)
            page.log("add token", connection, object=f"{name}: {', '.join(scope)} for {days} days")
    except ReviewError as error:
        return _render_tokens(page, error=f"{error}.")
    return _render_tokens(page, secret=secret)


@router.post("/tokens/{token}/revoke")
def revoke_token(page: PageDep, token: RowId) -> RedirectResponse:
    """Revokes a token."""
    with page.writing() as connection:
        page.log("revoke token", connection, object=accounts.revoke_token(connection, page.user.id, token))
    return RedirectResponse("/tokens", status_code=303)


@router.get("/audit")
def audit_page(page: AdminPage, note: OptionalId = None, before: OptionalId = None) -> HTMLResponse:
    """The audit log of all notes or of one; this access is logged, too."""
    page.log("audit log", object=f"note {note}" if note else "all entries")
    with page.reading() as connection:
        rows = read_log(connection, note_id=note, before=before, limit=LOG_PAGE_SIZE)
    return page.render("audit.html", rows=rows, note=note, more=len(rows) == LOG_PAGE_SIZE)
