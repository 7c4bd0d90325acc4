"""The application: pages, API, the door, and what every failure looks like."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import DataError as UnfitValue
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nosology.core import ConflictError, NosologyError, __version__
from nosology.workbench import api, health, pages, pages_office, pages_sign_in
from nosology.workbench.inference import Busy
from nosology.workbench.review import Missing
from nosology.workbench.security import Door, Forbidden, PasswordDue, SignInNeeded, TooLarge
from nosology.workbench.services import Services
from nosology.workbench.settings import ServerSettings
from nosology.workbench.web import STATIC, environment, page, static_path

log = logging.getLogger("nosology.workbench")
THREADS = 6  # requests worked on at once: more only take turns at one interpreter
STATUS = {SignInNeeded: 401, Forbidden: 403, Missing: 404, ConflictError: 409, TooLarge: 413, Busy: 503}
TITLES = {403: "Not for you", 404: "Not here", 405: "Not here", 413: "Too large", 503: "Busy"}


class Static(StaticFiles):
    """Files of the package; their address changes with what is in them, so that browsers may keep them for good."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file."""
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "public, max-age=31536000, immutable"
        return answer


def create_app(settings: ServerSettings, services: Services | None = None) -> FastAPI:
    """The application of a server; its parts, where they have not been started yet, start with it, and end with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        app.state.services = services or await run_in_threadpool(Services.start, settings)
        try:
            yield
        finally:
            await run_in_threadpool(app.state.services.stop)

    app = FastAPI(
        title="Nosology workbench",
        version=__version__,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.templates = environment()
    for part in (health, api, pages_sign_in, pages, pages_office):
        app.include_router(part.router)
    app.mount(static_path(), Static(directory=STATIC), name="static")
    app.add_middleware(Quiet)
    app.add_middleware(health.Watch)
    app.add_middleware(Door, secure=settings.secure, behind_proxy=settings.behind_proxy)
    app.add_exception_handler(NosologyError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _not_here)  # type: ignore[arg-type]
    for kind in (OperationalError, InterfaceError):
        app.add_exception_handler(kind, _store_away)  # type: ignore[arg-type]
    app.add_exception_handler(UnfitValue, _unfit)  # type: ignore[arg-type]
    return app


class Quiet:
    """Answers a failure of ours itself: left to the server, its log would show values, which are notes."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if scope["type"] != "http":
                raise
            answer = _failed(Request(scope, receive), error)
            if not begun:
                await answer(scope, receive, send)


def _is_api(request: Request) -> bool:
    return request.url.path.startswith(("/api/", "/health/", "/metrics"))


def _answer(request: Request, status: int, words: str) -> Response:
    if _is_api(request) or request.headers.get("hx-request"):
        return JSONResponse({"detail": words}, status_code=status)
    return page(
        request, "message.html", None, {"title": TITLES.get(status, "That did not work"), "words": words}, status=status
    )


def _refused(request: Request, error: NosologyError) -> Response:
    """An error meant for people."""
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 422)
    if status == 401 and not _is_api(request) and not request.headers.get("hx-request"):
        return RedirectResponse("/login", status_code=303)
    if isinstance(error, PasswordDue) and not _is_api(request):
        return RedirectResponse("/password", status_code=303)
    answer = _answer(request, status, f"{error}.")
    if status == 503:
        answer.headers["retry-after"] = "2"
    if status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


def _invalid(request: Request, error: RequestValidationError) -> Response:
    """A request with a wrong field: its place and what is wanted, never what was given, which may be a note's text."""
    found = [{"loc": list(item["loc"]), "msg": item["msg"], "type": item["type"]} for item in error.errors()]
    if _is_api(request):
        return JSONResponse({"detail": found}, status_code=422)
    if any(item["loc"][0] == "path" for item in found):
        return _answer(request, 404, "There is no such page.")
    return _answer(request, 422, "A field of the form is missing or not as it must be.")


def _not_here(request: Request, error: HTTPException) -> Response:
    answer = _answer(request, error.status_code, str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _store_away(request: Request, error: OperationalError | InterfaceError) -> Response:
    """The store does not answer; nothing was kept, and trying again is right."""
    log.error("the store does not answer: %s", type(error).__name__)
    answer = _answer(request, 503, "The store does not answer; nothing was kept. Try again in a moment.")
    answer.headers["retry-after"] = "2"
    return answer


def _unfit(request: Request, error: UnfitValue) -> Response:
    """A value that the store cannot keep, such as a character that is none."""
    return _answer(request, 422, "A value holds something that cannot be kept, such as a character of code 0.")


def _failed(request: Request, error: Exception) -> Response:
    """A failure of ours; the log names where, not what was in it."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        where = f"{trace.tb_frame.f_code.co_filename.rpartition('nosology')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    log.error("request failed: %s at %s", type(error).__name__, where)
    return _answer(request, 500, "Something failed on the server; nothing of it was kept half-way.")
