"""Pages of accounts: sign-in, password, OpenID Connect, users, API tokens, the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from nosology.core import NosologyError, ReviewError
from nosology.workbench import accounts
from nosology.workbench.audit_log import log_access, read_log
from nosology.workbench.database import users
from nosology.workbench.page_html import AdminPage, PageContext, PageDep, render_page
from nosology.workbench.security import (
    MAX_ID,
    SESSION_COOKIE,
    AddressDep,
    RowId,
    ServicesDep,
    client_address,
    redirect_to_provider,
    sign_in_user,
)
from nosology.workbench.services import Forbidden, Services

LOG_PAGE_SIZE = 200
Password = Annotated[str, Form(max_length=accounts.MAX_PASSWORD_LENGTH)]
ShortName = Annotated[str, Form(max_length=80)]
ShortWord = Annotated[str, Form(max_length=10)]
OptionalId = Annotated[int | None, Query(ge=1, le=MAX_ID)]
router = APIRouter(include_in_schema=False)


def _start_session(request: Request, services: Services, user: int) -> RedirectResponse:
    """A redirect to the queue with the cookie of a new session."""
    log_access(services.engine, user, "sign in", None, client_address(request))
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        SESSION_COOKIE,
        accounts.create_session(services.engine, user),
        max_age=accounts.SESSION_HOURS * 3600,
        httponly=True,
        samesite="lax",
        secure=services.settings.secure,
        path="/",
    )
    return response


def _render_login(request: Request, services: Services, error: str = "", status: int = 200) -> HTMLResponse:
    has_oidc = services.settings.oidc is not None
    return render_page(request, "login.html", None, status=status, error=error, oidc=has_oidc)


@router.get("/login")
def login_page(request: Request, services: ServicesDep) -> HTMLResponse:
    """The sign-in form."""
    return _render_login(request, services)


@router.post("/login")
def login(
    request: Request,
    services: ServicesDep,
    address: AddressDep,
    name: Annotated[str, Form(max_length=200)] = "",
    password: Password = "",
) -> Response:
    """Signs in. Attempts are limited per address, and wrong passwords per account."""
    # The Origin header does not help: under our referrer policy browsers send null even for our own form.
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Forbidden("another site must not sign you in")
    if not services.sign_in_limit.allows(address):
        message = "Too many attempts from this address. Wait a minute, then try again."
        return _render_login(request, services, message, 429)
    user = accounts.check_password(services.engine, name, password)
    if user is None:
        log_access(services.engine, None, "sign in refused", None, address)
        message = "Name or password is wrong, or the account is locked for 15 minutes."
        return _render_login(request, services, message, 401)
    return _start_session(request, services, user)


@router.post("/logout")
def logout(page: PageDep) -> RedirectResponse:
    """Signs out."""
    accounts.delete_session(page.services.engine, page.request.cookies.get(SESSION_COOKIE, ""))
    page.log("sign out")
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/password")
def password_page(page: PageDep) -> HTMLResponse:
    """The form to change the password."""
    return page.render("password.html", error="")


@router.post("/password")
def change_password(page: PageDep, old: Password = "", new: Password = "", again: Password = "") -> Response:
    """Changes the password and ends all other sessions of the user."""
    try:
        if new != again:
            raise ReviewError("the new password and its repetition differ")
        accounts.change_password(page.services.engine, page.user.id, old, new)
    except ReviewError as error:
        return page.render("password.html", error=str(error))
    return _start_session(page.request, page.services, page.user.id)


@router.get("/oidc/start")
async def oidc_start(request: Request, services: ServicesDep) -> Response:
    """A redirect to the OpenID Connect provider."""
    if services.settings.oidc is None:
        return RedirectResponse("/login", status_code=303)
    return await redirect_to_provider(services.settings.oidc, request, str(request.url_for("oidc_callback")))


@router.get("/oidc/back")
async def oidc_callback(request: Request, services: ServicesDep) -> Response:
    """Signs in the user whom the provider's response names."""
    if services.settings.oidc is None:
        return RedirectResponse("/login", status_code=303)
    try:
        user = await sign_in_user(services.settings.oidc, services.engine, request)
    except NosologyError as error:
        return _render_login(request, services, str(error), 401)
    return await run_in_threadpool(_start_session, request, services, user)


@router.get("/users")
def users_page(page: AdminPage) -> HTMLResponse:
    """All users."""
    return _render_users(page)


def _render_users(page: PageContext, *, message: str = "", secret: str = "", error: str = "") -> HTMLResponse:
    with page.reading() as connection:
        rows = connection.execute(select(users).order_by(users.c.name)).mappings().all()
    return page.render("users.html", rows=rows, message=message, secret=secret, error=error, roles=accounts.ROLES)


@router.post("/users")
def add_user(page: AdminPage, name: ShortName = "", role: ShortWord = "coder") -> HTMLResponse:
    """Adds a user and shows the one-time password."""
    try:
        with page.writing() as connection:
            secret = accounts.reset_password(connection, accounts.create_user(connection, name, role, None))
            page.log("add user", connection)
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
                accounts.update_user(connection, user_id)
                secret, message = accounts.reset_password(connection, user_id), "New one-time password:"
            elif act in ("disable", "enable"):
                accounts.update_user(connection, user_id, disabled=act == "disable")
            else:
                accounts.update_user(connection, user_id, role=role)
            page.log(f"user {act or 'role'}", connection)
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
    return page.render("tokens.html", rows=rows, error=error, secret=secret)


@router.post("/tokens")
def add_token(page: PageDep, name: ShortName = "") -> HTMLResponse:
    """Creates a token and shows it once."""
    try:
        with page.writing() as connection:
            secret = accounts.create_token(connection, page.user.id, name)
            page.log("add token", connection)
    except ReviewError as error:
        return _render_tokens(page, error=f"{error}.")
    return _render_tokens(page, secret=secret)


@router.post("/tokens/{token}/revoke")
def revoke_token(page: PageDep, token: RowId) -> RedirectResponse:
    """Revokes a token."""
    with page.writing() as connection:
        accounts.revoke_token(connection, page.user.id, token)
        page.log("revoke token", connection)
    return RedirectResponse("/tokens", status_code=303)


@router.get("/audit")
def audit_page(page: AdminPage, note: OptionalId = None, before: OptionalId = None) -> HTMLResponse:
    """The audit log of all notes or of one; this access is logged, too."""
    page.log("audit log")
    with page.reading() as connection:
        rows = read_log(connection, note_id=note, before=before, limit=LOG_PAGE_SIZE)
    return page.render("audit.html", rows=rows, note=note, more=len(rows) == LOG_PAGE_SIZE)
