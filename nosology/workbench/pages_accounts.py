"""Pages of accounts: sign-in, password, OpenID Connect, users, API tokens, the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from nosology.core import NosologyError, ReviewError
from nosology.workbench import accounts, oidc
from nosology.workbench.accounts import User
from nosology.workbench.audit_log import log_access, log_access_in, read_log
from nosology.workbench.database import read_transaction, users, write_transaction
from nosology.workbench.page_html import render_page
from nosology.workbench.security import (
    MAX_ID,
    SESSION_COOKIE,
    AddressDep,
    AdminUser,
    CurrentUser,
    RowId,
    ServicesDep,
    client_address,
)
from nosology.workbench.services import Forbidden, Services

LOG_PAGE_SIZE = 200
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
    values = {"error": error, "oidc": services.settings.oidc is not None}
    return render_page(request, "login.html", None, values, status=status)


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
    password: Annotated[str, Form(max_length=500)] = "",
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
def logout(request: Request, services: ServicesDep, user: CurrentUser, address: AddressDep) -> RedirectResponse:
    """Signs out."""
    accounts.delete_session(services.engine, request.cookies.get(SESSION_COOKIE, ""))
    log_access(services.engine, user.id, "sign out", None, address)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/password")
def password_page(request: Request, user: CurrentUser) -> HTMLResponse:
    """The form to change the password."""
    return render_page(request, "password.html", user, {"error": ""})


@router.post("/password")
def change_password(
    request: Request,
    services: ServicesDep,
    user: CurrentUser,
    old: Annotated[str, Form(max_length=500)] = "",
    new: Annotated[str, Form(max_length=500)] = "",
    again: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Changes the password and ends all other sessions of the user."""
    try:
        if new != again:
            raise ReviewError("the new password and its repetition differ")
        accounts.change_password(services.engine, user.id, old, new)
    except ReviewError as error:
        return render_page(request, "password.html", user, {"error": str(error)}, status=422)
    return _start_session(request, services, user.id)


@router.get("/oidc/start")
async def oidc_start(request: Request, services: ServicesDep) -> Response:
    """A redirect to the OpenID Connect provider."""
    if services.settings.oidc is None:
        return RedirectResponse("/login", status_code=303)
    return await oidc.redirect_to_provider(services.settings.oidc, request, str(request.url_for("oidc_callback")))


@router.get("/oidc/back")
async def oidc_callback(request: Request, services: ServicesDep) -> Response:
    """Signs in the user whom the provider's response names."""
    if services.settings.oidc is None:
        return RedirectResponse("/login", status_code=303)
    try:
        user = await oidc.sign_in_user(services.settings.oidc, services.engine, request)
    except NosologyError as error:
        return _render_login(request, services, str(error), 401)
    return await run_in_threadpool(_start_session, request, services, user)


@router.get("/users")
def users_page(request: Request, services: ServicesDep, user: AdminUser) -> HTMLResponse:
    """All users."""
    return _render_users(request, services, user)


def _render_users(
    request: Request, services: Services, user: User, *, message: str = "", secret: str = "", error: str = ""
) -> HTMLResponse:
    with read_transaction(services.engine) as connection:
        rows = connection.execute(select(users).order_by(users.c.name)).mappings().all()
    values = {"rows": rows, "message": message, "secret": secret, "error": error, "roles": accounts.ROLES}
    return render_page(request, "users.html", user, values, status=422 if error else 200)


@router.post("/users")
def add_user(
    request: Request,
    services: ServicesDep,
    user: AdminUser,
    name: Annotated[str, Form(max_length=80)] = "",
    role: Annotated[str, Form(max_length=10)] = "coder",
) -> HTMLResponse:
    """Adds a user and shows the one-time password."""
    try:
        with write_transaction(services.engine) as connection:
            secret = accounts.reset_password(connection, accounts.create_user(connection, name, role, None))
            log_access_in(connection, user.id, "add user", None, client_address(request))
    except ReviewError as error:
        return _render_users(request, services, user, error=f"{error}.")
    return _render_users(request, services, user, message=f"One-time password of {name}:", secret=secret)


@router.post("/users/{user_id}")
def change_user(
    request: Request,
    services: ServicesDep,
    user: AdminUser,
    user_id: RowId,
    act: Annotated[str, Form(max_length=10)] = "",
    role: Annotated[str, Form(max_length=10)] = "",
) -> HTMLResponse:
    """Changes a role, enables or disables an account, or resets a password."""
    secret, message = "", ""
    try:
        with write_transaction(services.engine) as connection:
            if act == "reset":
                accounts.update_user(connection, user_id)
                secret, message = accounts.reset_password(connection, user_id), "New one-time password:"
            elif act in ("disable", "enable"):
                accounts.update_user(connection, user_id, disabled=act == "disable")
            else:
                accounts.update_user(connection, user_id, role=role)
            log_access_in(connection, user.id, f"user {act or 'role'}", None, client_address(request))
    except ReviewError as error:
        return _render_users(request, services, user, error=f"{error}.")
    return _render_users(request, services, user, message=message, secret=secret)


@router.get("/tokens")
def tokens_page(request: Request, services: ServicesDep, user: CurrentUser) -> HTMLResponse:
    """The user's API tokens."""
    return _render_tokens(request, services, user)


def _render_tokens(
    request: Request, services: Services, user: User, *, error: str = "", secret: str = ""
) -> HTMLResponse:
    with read_transaction(services.engine) as connection:
        rows = accounts.list_tokens(connection, user.id)
    values = {"rows": rows, "error": error, "secret": secret}
    return render_page(request, "tokens.html", user, values, status=422 if error else 200)


@router.post("/tokens")
def add_token(
    request: Request, services: ServicesDep, user: CurrentUser, name: Annotated[str, Form(max_length=80)] = ""
) -> HTMLResponse:
    """Creates a token and shows it once."""
    try:
        with write_transaction(services.engine) as connection:
            secret = accounts.create_token(connection, user.id, name)
            log_access_in(connection, user.id, "add token", None, client_address(request))
    except ReviewError as error:
        return _render_tokens(request, services, user, error=f"{error}.")
    return _render_tokens(request, services, user, secret=secret)


@router.post("/tokens/{token}/revoke")
def revoke_token(services: ServicesDep, user: CurrentUser, address: AddressDep, token: RowId) -> RedirectResponse:
    """Revokes a token."""
    with write_transaction(services.engine) as connection:
        accounts.revoke_token(connection, user.id, token)
        log_access_in(connection, user.id, "revoke token", None, address)
    return RedirectResponse("/tokens", status_code=303)


@router.get("/audit")
def audit_page(
    request: Request,
    services: ServicesDep,
    user: AdminUser,
    note: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> HTMLResponse:
    """The audit log of all notes or of one; this access is logged, too."""
    log_access(services.engine, user.id, "audit log", None, client_address(request))
    with read_transaction(services.engine) as connection:
        rows = read_log(connection, note_id=note, before=before, limit=LOG_PAGE_SIZE)
    values = {"rows": rows, "note": note, "more": len(rows) == LOG_PAGE_SIZE}
    return render_page(request, "audit.html", user, values)
