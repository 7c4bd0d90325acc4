"""Authentication and authorisation of requests, CSRF protection, security headers, sign-in with OpenID Connect.

OpenID Connect is the work of Authlib: authorization code flow with PKCE, with signature and claims checked. Authlib
keeps state, nonce and PKCE verifier in the session of Starlette's SessionMiddleware, a signed cookie.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import httpx
from fastapi import Depends, Path, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nosology.core import NosologyError, ReviewError
from nosology.workbench.accounts import Forbidden, User, oidc_user, session_user, token_user
from nosology.workbench.server_settings import OidcSettings
from nosology.workbench.services import Services

if TYPE_CHECKING:
    from authlib.integrations.starlette_client import StarletteOAuth2App

SESSION_COOKIE = "nosology_session"
DEVICE_COOKIE = "nosology_device"
CSRF_HEADER = "x-csrf-token"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MAX_REQUEST_BYTES = 64 * 1024 * 1024
MAX_SIGN_IN_BYTES = 16 * 1024  # of a request of somebody who is not signed in
# Paths for which nobody has to be signed in. The body of any other request is not read before its user is known.
PUBLIC_PATHS = ("/login", "/oidc/", "/health/", "/metrics", "/static/", "/api/openapi.json")
PHYSICIAN_PATHS = ("queries", "password", "sessions", "lock", "logout")  # first parts of the paths of that role
POLLED = ("/coded", "/batches/rows")  # ends of paths that pages ask for by themselves
MAX_ID = 2**31 - 1  # of the database's integers
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class NotAuthenticated(NosologyError):
    """Nobody is signed in."""


class NotForPhysicians(Forbidden):
    """A page or a part of the API that the role physician does not have."""


class PasswordChangeRequired(Forbidden):
    """The user signed in with a one-time password and has not changed it yet."""


def client_address(request: Request) -> str:
    """The address from which a request comes."""
    return request.client.host if request.client else ""


# Dependencies are coroutines: FastAPI runs other functions in a thread, for which a request waits each time.
async def address_of(request: Request) -> str:
    """The address from which a request comes, as a dependency."""
    return client_address(request)


async def get_services(request: Request) -> Services:
    """The services of the running server."""
    return request.app.state.services


async def find_user(engine: Engine, headers: Headers, cookies: Mapping[str, str], *, is_poll: bool = False) -> User:
    """The user of the API token or session in the headers of a request; NotAuthenticated if there is none.

    is_poll: a page asks by itself; the idle time of its session goes on.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        user = await run_in_threadpool(token_user, engine, token.strip())
        if user is None:
            raise NotAuthenticated("the API token is not known, is revoked or has expired")
        return user
    cookie = cookies.get(SESSION_COOKIE)
    user = await run_in_threadpool(session_user, engine, cookie, is_poll=is_poll) if cookie else None
    if user is None:
        raise NotAuthenticated("sign in first")
    return user


async def current_user(request: Request) -> User:
    """The user of the request; an unsafe request of a session must carry the session's CSRF token."""
    user: User | None = request.scope.get("nosology.user")
    if user is None:
        raise NotAuthenticated("sign in first")
    if user.csrf is not None and request.method not in SAFE_METHODS:
        await _check_csrf(request, user)
    if user.must_change and request.url.path not in ("/password", "/logout"):
        raise PasswordChangeRequired("change the one-time password first")
    if user.role == "physician" and not _is_for_physicians(request.url.path):
        raise NotForPhysicians("physicians answer queries; everything else is for coders")
    return user


def _is_for_physicians(path: str) -> bool:
    """Whether a physician may open a path. What is not listed is refused, whatever is added later."""
    return path.partition("/")[2].partition("/")[0] in PHYSICIAN_PATHS


def _require_scope(scope: str) -> Any:
    async def check(user: CurrentUser) -> User:
        if scope not in user.scopes:
            raise Forbidden(f"the API token does not have the scope {scope}")
        return user

    vars(check)["scope"] = scope  # for the description of the API
    return Depends(check)


async def _check_csrf(request: Request, user: User) -> None:
    """Raises Forbidden unless a header or a form field has the session's CSRF token."""
    token: Any = request.headers.get(CSRF_HEADER)
    if token is None and "form" in request.headers.get("content-type", ""):
        token = (await request.form()).get("csrf")
    if not isinstance(token, str) or not secrets.compare_digest(token.encode(), (user.csrf or "").encode()):
        raise Forbidden("the form is too old; load the page again")


CurrentUser = Annotated[User, Depends(current_user)]
ReadUser = Annotated[User, _require_scope("read")]
ImportUser = Annotated[User, _require_scope("import")]
CodeUser = Annotated[User, _require_scope("code")]
DecideUser = Annotated[User, _require_scope("decide")]
ExportUser = Annotated[User, _require_scope("export")]
ServicesDep = Annotated[Services, Depends(get_services)]
AddressDep = Annotated[str, Depends(address_of)]
RowId = Annotated[int, Path(ge=1, le=MAX_ID)]


class SecurityMiddleware:
    """ASGI middleware that adds security headers to every response and refuses requests that are too large.

    Behind a proxy, the client is the last address of X-Forwarded-For, which the proxy wrote. The client can forge the
    addresses before it. hosts: the names in the Host header that are answered; empty: all. Health checks, which often
    use the address of a container, are answered under any name.
    """

    def __init__(self, app: ASGIApp, secure: bool, behind_proxy: bool = False, hosts: Collection[str] = ()):
        self.app, self.secure, self.behind_proxy, self.hosts = app, secure, behind_proxy, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if self.secure:
                    headers["strict-transport-security"] = "max-age=31536000"
            await send(message)

        headers = Headers(scope=scope)
        if self.behind_proxy:
            address = ",".join(headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
            scope = {**scope, "scheme": "https", "client": (address, 0) if address else scope.get("client")}
        if not self._is_known_host(headers.get("host", ""), scope["path"]):
            message = "This server has another name. Give it with --public-url."
            await _refusal(scope, 400, message)(scope, receive, send_with_headers)
            return
        is_public = scope["path"].startswith(PUBLIC_PATHS)
        limit = MAX_SIGN_IN_BYTES if is_public else MAX_REQUEST_BYTES
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            await _refusal(scope, 413, _too_large(limit))(scope, receive, send_with_headers)
            return
        await self.app(scope, _limit_body(receive, limit), send_with_headers)

    def _is_known_host(self, host: str, path: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return not self.hosts or name in self.hosts or path.startswith(("/health/", "/metrics"))


def _refusal(scope: Scope, status: int, message: str) -> Response:
    if scope["path"].startswith("/api/"):
        return JSONResponse({"detail": message}, status_code=status)
    return PlainTextResponse(message, status_code=status)


def _too_large(limit: int) -> str:
    size = f"{limit >> 20} MB" if limit >> 20 else f"{limit >> 10} KB"
    return f"A request may have {size}. Import fewer notes at a time."


def _limit_body(receive: Receive, limit: int) -> Receive:
    """The receiver of a request, which fails if the body is too large, whatever its header says."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, _too_large(limit))  # FastAPI passes on no other error while it reads a body
        return message

    return limited


class AuthenticationMiddleware:
    """ASGI middleware that finds the user of a request before its body is read.

    Without a user the response is sent at once and the connection is closed: not a byte of the body is read.
    """

    def __init__(self, app: ASGIApp, refuse: Callable[[Request, NotAuthenticated], Response]):
        self.app, self.refuse = app, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] == "http" and not scope["path"].startswith(PUBLIC_PATHS):
            request = Request(scope)
            try:
                engine = scope["app"].state.services.engine
                is_poll = scope["path"].endswith(POLLED)
                scope["nosology.user"] = await find_user(engine, request.headers, request.cookies, is_poll=is_poll)
            except NotAuthenticated as error:
                response = self.refuse(request, error)
                if request.method not in SAFE_METHODS:
                    response.headers["connection"] = "close"
                await response(scope, receive, send)
                return
        await self.app(scope, receive, send)


OIDC_COOKIE = "nosology_oidc"
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
ALGORITHMS = ("RS256", "ES256", "PS256")  # asymmetric ones only: neither "none" nor a shared secret


class ProviderError(NosologyError):
    """The provider did not respond, or its response is invalid."""


async def _client(settings: OidcSettings) -> StarletteOAuth2App:
    """An OAuth client with the provider's metadata."""
    from authlib.integrations.starlette_client import OAuth

    client = OAuth().register(
        "provider",
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        server_metadata_url=settings.issuer.rstrip("/") + "/.well-known/openid-configuration",
        client_kwargs={
            "scope": "openid profile",
            "code_challenge_method": "S256",
            "token_endpoint_auth_method": "client_secret_post",
            "timeout": 10,
        },
    )
    metadata = await client.load_server_metadata()
    if str(metadata.get("issuer")).rstrip("/") != settings.issuer.rstrip("/"):
        raise ProviderError("the provider names another issuer than the configured one")
    for name in ENDPOINTS:
        _check_endpoint(settings, name, str(metadata.get(name) or ""))
    metadata["id_token_signing_alg_values_supported"] = list(ALGORITHMS)  # Authlib accepts what this says
    return client


def _check_endpoint(settings: OidcSettings, name: str, address: str) -> None:
    """Raises ProviderError unless an endpoint is at a known host: the client's secret is sent to it."""
    issuer, url = urlsplit(settings.issuer), urlsplit(address)
    is_known = url.netloc == issuer.netloc or (url.hostname in settings.hosts and not url.port)
    if url.scheme != issuer.scheme or not is_known:
        raise ProviderError(f"the provider's {name} is at a host that is neither the issuer's nor given by --oidc-host")


async def redirect_to_provider(settings: OidcSettings, request: Request, callback: str) -> RedirectResponse:
    """The redirect to the provider's sign-in page."""
    try:
        return await (await _client(settings)).authorize_redirect(request, callback)
    except (httpx.HTTPError, ValueError, RuntimeError) as error:
        raise ProviderError("the sign-in provider does not respond as it must") from error


async def sign_in_user(settings: OidcSettings, engine: Engine, request: Request) -> int:
    """The id of the user whom the provider's response names; ProviderError if any check fails."""
    claims = await _claims(settings, request)
    name = claims.get("preferred_username") or claims.get("name") or claims["sub"]
    subject = f"{settings.issuer} {claims['sub']}"
    try:
        return await run_in_threadpool(oidc_user, engine, subject, str(name), settings.role)
    except ReviewError as error:
        raise ProviderError(f"this person cannot be signed in: {error}") from error


async def _claims(settings: OidcSettings, request: Request) -> dict[str, Any]:
    """The claims of the ID token. Authlib checks state, nonce, signature, issuer, audience and expiry."""
    from authlib.common.errors import AuthlibBaseError
    from joserfc.errors import JoseError

    expected = {"iss": settings.issuer, "aud": settings.client_id}
    options = {name: {"essential": True, "value": value} for name, value in expected.items()}
    try:
        client = await _client(settings)
        token = await client.authorize_access_token(request, claims_options=options)
        return token["userinfo"]
    except (AuthlibBaseError, JoseError, httpx.HTTPError, ValueError, KeyError, RuntimeError) as error:
        raise ProviderError("the sign-in failed or took too long; sign in again") from error
