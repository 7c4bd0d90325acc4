"""The door: who is asking, whether the request is their own will, and what a browser may do with the answer."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nosology.core import NosologyError
from nosology.workbench.accounts import User, user_of_cookie, user_of_token
from nosology.workbench.services import Services

COOKIE = "nosology_session"
SAFE = ("GET", "HEAD", "OPTIONS")
LARGEST = 64 * 1024 * 1024  # bytes of a request
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class SignInNeeded(NosologyError):
    """Nobody is signed in."""


class Forbidden(NosologyError):
    """Somebody is, but may not do this."""


class PasswordDue(Forbidden):
    """Somebody has signed in with a one-time password and has not changed it yet."""


class TooLarge(NosologyError):
    """The request is larger than any this server takes."""


def services_of(request: Request) -> Services:
    """The services of the server that answers."""
    return request.app.state.services


async def current_user(request: Request) -> User:
    """Who is asking, by API token or session; an unsafe request of a session must carry the session's CSRF token."""
    engine = services_of(request).engine
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        user = await run_in_threadpool(user_of_token, engine, token.strip())
        if user is None:
            raise SignInNeeded("the API token is not known")
        return user
    cookie = request.cookies.get(COOKIE)
    user = await run_in_threadpool(user_of_cookie, engine, cookie) if cookie else None
    if user is None:
        raise SignInNeeded("sign in first")
    if request.method not in SAFE:
        await _check_csrf(request, user)
    if user.must_change and request.url.path not in ("/password", "/logout"):
        raise PasswordDue("change the one-time password first")
    return user


async def _check_csrf(request: Request, user: User) -> None:
    """Raises Forbidden unless the request carries the session's token, in a header or in its form."""
    given = request.headers.get("x-csrf-token")
    if given is None and "form" in request.headers.get("content-type", ""):
        given = (await request.form()).get("csrf")
    if not isinstance(given, str) or not secrets.compare_digest(given.encode(), (user.csrf or "").encode()):
        raise Forbidden("the form is too old; load the page again")


def _needs(role: str) -> User:
    def check(user: Annotated[User, Depends(current_user)]) -> User:
        if not user.may(role):
            raise Forbidden(f"that is for people with the role {role}")
        return user

    return Depends(check)


AnyUser = Annotated[User, Depends(current_user)]
Reviewer = Annotated[User, _needs("reviewer")]
Admin = Annotated[User, _needs("admin")]
Parts = Annotated[Services, Depends(services_of)]


class Door:
    """Adds the security headers to every answer, and refuses requests that are too large before they are read.

    Behind a proxy, a request comes by HTTPS from the last address of X-Forwarded-For, which is the one that the proxy
    has seen; those before it are what the client says of itself.
    """

    def __init__(self, app: ASGIApp, secure: bool, behind_proxy: bool = False):
        self.app, self.secure, self.behind_proxy = app, secure, behind_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if self.secure:
                    headers["strict-transport-security"] = "max-age=31536000"
            await send(message)

        if self.behind_proxy:
            seen = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).rpartition(",")[2].strip()
            scope = {**scope, "scheme": "https", "client": (seen, 0) if seen else scope.get("client")}
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdigit() or int(length) > LARGEST:
            words = f"A request may have {LARGEST >> 20} MB. Bring in fewer notes at a time."
            await PlainTextResponse(words, status_code=413)(scope, receive, guarded)
            return
        await self.app(scope, _bounded(receive), guarded)


def _bounded(receive: Receive) -> Receive:
    """The receiver of a request that ends it where it is larger than it may be, whatever its header says."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > LARGEST:
            raise TooLarge(f"a request may have {LARGEST >> 20} MB; bring in fewer notes at a time")
        return message

    return bounded
