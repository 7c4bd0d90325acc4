"""Pages of the door: sign in and out, change a password, OpenID Connect."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from nosology.core import NosologyError, ReviewError
from nosology.workbench import oidc
from nosology.workbench.accounts import SESSION_HOURS, change_password, close_session, open_session, sign_in
from nosology.workbench.audit_log import log_read
from nosology.workbench.security import COOKIE, AnyUser, Forbidden, Parts
from nosology.workbench.web import page

router = APIRouter(include_in_schema=False)


def address(request: Request) -> str:
    """The address a request comes from."""
    return request.client.host if request.client else ""


def _signed_in(request: Request, parts: Parts, user: int, target: str = "/") -> RedirectResponse:
    """Opens a session and sends the browser on."""
    log_read(parts.engine, user, "sign in", None, address(request))
    answer = RedirectResponse(target, status_code=303)
    answer.set_cookie(
        COOKIE,
        open_session(parts.engine, user),
        max_age=SESSION_HOURS * 3600,
        httponly=True,
        samesite="lax",
        secure=parts.settings.secure,
        path="/",
    )
    return answer


@router.get("/login")
def login_page(request: Request, parts: Parts) -> HTMLResponse:
    """The form to sign in."""
    return page(request, "login.html", None, {"trouble": "", "oidc": parts.settings.oidc is not None})


@router.post("/login")
def login(
    request: Request,
    parts: Parts,
    name: Annotated[str, Form(max_length=200)] = "",
    password: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Signs in; after many tries from one address, or wrong passwords of one account, nobody gets in for a while."""
    # Not by the Origin: under our referrer policy browsers say null even for our own form.
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Forbidden("another site must not sign you in")
    values = {"oidc": parts.settings.oidc is not None}
    if not parts.sign_ins.allows(address(request)):
        values["trouble"] = "Too many attempts from this address. Wait a minute, then try again."
        return page(request, "login.html", None, values, status=429)
    user = sign_in(parts.engine, name, password)
    if user is None:
        log_read(parts.engine, None, "sign in refused", None, address(request))
        values["trouble"] = "Name or password is not right, or the account is locked for a quarter of an hour."
        return page(request, "login.html", None, values, status=401)
    return _signed_in(request, parts, user)


@router.post("/logout")
def logout(request: Request, parts: Parts, user: AnyUser) -> RedirectResponse:
    """Signs out."""
    close_session(parts.engine, request.cookies.get(COOKIE, ""))
    log_read(parts.engine, user.id, "sign out", None, address(request))
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


@router.get("/password")
def password_page(request: Request, user: AnyUser) -> HTMLResponse:
    """The form to change one's password."""
    return page(request, "password.html", user, {"trouble": ""})


@router.post("/password")
def password(
    request: Request,
    parts: Parts,
    user: AnyUser,
    old: Annotated[str, Form(max_length=500)] = "",
    new: Annotated[str, Form(max_length=500)] = "",
    again: Annotated[str, Form(max_length=500)] = "",
) -> Response:
    """Changes one's password; every other session of the user ends."""
    try:
        if new != again:
            raise ReviewError("the new password and its repetition differ")
        change_password(parts.engine, user.id, old, new)
    except ReviewError as error:
        return page(request, "password.html", user, {"trouble": str(error)}, status=422)
    return _signed_in(request, parts, user.id)


@router.get("/oidc/start")
async def oidc_start(request: Request, parts: Parts) -> Response:
    """Sends the browser to the provider."""
    if parts.settings.oidc is None:
        return RedirectResponse("/login", status_code=303)
    where, cookie = await oidc.begin(parts.settings.oidc, str(request.url_for("oidc_back")))
    answer = RedirectResponse(where, status_code=303)
    answer.set_cookie(
        oidc.COOKIE, cookie, max_age=600, httponly=True, samesite="lax", secure=parts.settings.secure, path="/oidc"
    )
    return answer


@router.get("/oidc/back")
async def oidc_back(request: Request, parts: Parts, code: str = "", state: str = "") -> Response:
    """Takes the provider's answer and signs in the person it names."""
    if parts.settings.oidc is None:
        return RedirectResponse("/login", status_code=303)
    try:
        user = await oidc.finish(
            parts.settings.oidc,
            parts.engine,
            code=code,
            state=state,
            cookie=request.cookies.get(oidc.COOKIE, ""),
            back=str(request.url_for("oidc_back")),
        )
    except NosologyError as error:
        return page(request, "login.html", None, {"trouble": str(error), "oidc": True}, status=401)
    answer = await run_in_threadpool(_signed_in, request, parts, user)
    answer.delete_cookie(oidc.COOKIE, path="/oidc")
    return answer
