"""The web application: routes, middleware, health checks, metrics, and the server process."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sqlalchemy import func, select
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nosology.core import ConfigError, __version__
from nosology.models.bundle import is_day_one, read_manifest
from nosology.serving.coder import release_translator
from nosology.workbench import (
    administration,
    api,
    api_bulk,
    api_conversation,
    api_documents,
    api_double,
    pages,
    pages_accounts,
    pages_audit,
    pages_conversation,
    pages_double,
    pages_gaps,
    pages_search,
    pages_triage,
)
from nosology.workbench.accounts import ONE_TIME_HOURS, create_admin
from nosology.workbench.cases import count_by_status
from nosology.workbench.database import check_store, read_transaction, store_errors
from nosology.workbench.error_responses import ERROR_HANDLERS, expected_error, respond_to
from nosology.workbench.openapi_security import describe_security
from nosology.workbench.page_html import STATIC_FOLDER, static_path, template_environment
from nosology.workbench.security import (
    OIDC_COOKIE,
    AuthenticationMiddleware,
    SecurityMiddleware,
    ServicesDep,
)
from nosology.workbench.server_settings import ServerSettings
from nosology.workbench.services import Services
from nosology.workbench.store_lock import StoreLock
from nosology.workbench.store_tables import notes
from nosology.workbench.warm_up import freeze_tables

log = logging.getLogger("nosology.workbench")
THREADS = 6  # concurrent requests; more threads would only compete for the interpreter
SHUTDOWN_SECONDS = 30  # that running requests may take at the end
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
router = APIRouter(tags=["health"])


class CachedStaticFiles(StaticFiles):
    """Static files that browsers cache forever; their URL changes with their content."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def create_app(settings: ServerSettings, services: Services | None = None) -> FastAPI:
    """The application of a server. Without services it starts its own; in both cases it stops them at the end."""

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
        docs_url=None,  # these pages load scripts from other servers
        redoc_url=None,
    )
    app.state.templates = template_environment()
    parts = (
        *(router, api.router, api_bulk.router, api_documents.router, api_double.router, api_conversation.router),
        *(pages_accounts.router, administration.router, pages_double.router, pages_conversation.router),
        *(pages_audit.router, pages_gaps.router, pages_search.router, pages_triage.router, pages.router),
    )
    for part in parts:
        app.include_router(part)
    describe_security(app, parts)
    app.mount(static_path(), CachedStaticFiles(directory=STATIC_FOLDER), name="static")
    app.add_middleware(AuthenticationMiddleware, refuse=expected_error)
    app.add_middleware(MetricsMiddleware)
    if settings.oidc is not None:
        from starlette.middleware.sessions import SessionMiddleware

        app.add_middleware(
            SessionMiddleware,
            secret_key=secrets.token_urlsafe(32),
            session_cookie=OIDC_COOKIE,
            max_age=600,
            path="/oidc",
            https_only=settings.secure,
        )
    limits = {"secure": settings.secure, "behind_proxy": settings.behind_proxy, "hosts": settings.hosts}
    app.add_middleware(SecurityMiddleware, **limits)
    for kind, handler in ERROR_HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


class ServerMetrics:
    """Prometheus metrics of one application, with a registry of their own: tests run several in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ["route", "method", "status"]
        self.requests = Counter("nosology_requests", "Requests answered", labels, registry=registry)
        self.seconds = Histogram(
            "nosology_request_seconds", "Time to answer", ["route"], registry=registry, buckets=_BUCKETS
        )
        self.waiting = Gauge("nosology_coder_waiting", "Tasks at the coder", registry=registry)
        self.notes = Gauge("nosology_notes", "Notes by status", ["status"], registry=registry)
        self.uncoded = Gauge("nosology_notes_uncoded", "Notes that wait for the coder", registry=registry)


class MetricsMiddleware:
    """ASGI middleware that counts requests and responds to unexpected errors.

    Requests are counted by route, because paths contain ids of notes. Errors end here, because the log of the ASGI
    server would show their values, such as text of a note.
    """

    def __init__(self, app: ASGIApp):
        self.app, self.metrics = app, ServerMetrics()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["nosology.metrics"] = self.metrics
        started, status = time.perf_counter(), 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception as error:
            response = respond_to(Request(scope, receive), error)
            if not status:  # no response has started
                await response(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(route, scope["method"], str(status or 500)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)


@router.get("/health/live")
async def live() -> dict[str, str]:
    """Whether the process responds."""
    return {"status": "live"}


@router.get("/health/ready", responses={503: {"description": "not ready"}})
async def ready(services: ServicesDep, response: Response) -> dict[str, Any]:
    """Whether the database takes writes and the coder is loaded."""
    has_database = await run_in_threadpool(services.takes_writes)
    is_ready = has_database and services.ready
    response.status_code = 200 if is_ready else 503
    return {"status": "ready" if is_ready else "not ready", "store": has_database, "coder": services.ready}


@router.get("/metrics", response_class=PlainTextResponse)
def prometheus_metrics(services: ServicesDep, request: Request) -> Response:
    """The metrics in Prometheus' format: counts and times only, nothing about a patient."""
    metrics: ServerMetrics = request.scope["nosology.metrics"]
    with read_transaction(services.engine) as connection:
        counts = count_by_status(connection)
        uncoded = connection.scalar(select(func.count()).where(notes.c.coding == "waiting"))
    metrics.waiting.set(services.pool.pending)
    metrics.uncoded.set(uncoded or 0)
    for status, count in counts.items():
        metrics.notes.labels(status).set(count)
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def serve(settings: ServerSettings, *, reset_admin: bool = False) -> None:
    """Serves until Ctrl-C, SIGTERM or, unless it is ignored, SIGHUP, the end of the terminal.

    reset_admin: gives the user admin a new one-time password.
    """
    import uvicorn

    # force: the command line has silenced libraries with a handler of its own.
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    _check_settings(settings)
    if settings.demo:
        from nosology.workbench.demo import prepare_demo

        prepare_demo(settings.store)
    is_new = "://" not in settings.store and not Path(settings.store).exists()
    services = Services.start(settings)
    freeze_tables()
    if is_new:
        print(f"Created the store {settings.store}", flush=True)
    with store_errors():
        password = create_admin(services.engine, reset=reset_admin)
    if password is not None:
        occasion = "New password" if reset_admin else "First start"
        limits = f"(it is shown only now, and valid for {ONE_TIME_HOURS} hours)"
        print(f"{occasion}: sign in as admin with the one-time password {password} {limits}.", flush=True)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    scheme = "https" if settings.tls_cert is not None else "http"
    print(f"Workbench at {scheme}://{settings.host}:{settings.port}", flush=True)
    uvicorn.run(
        create_app(settings, services),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,  # the audit log records accesses; paths contain ids of notes
        server_header=False,
        ws="none",
        proxy_headers=False,  # SecurityMiddleware reads them
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def _check_settings(settings: ServerSettings) -> None:
    """Raises NosologyError if the server cannot start with these settings, before anything is written."""
    _check_port(settings.host, settings.port)
    _check_certificate(settings)
    check_store(settings.store)
    StoreLock(settings.store).check()
    if settings.release is not None:
        release_translator(settings.release)
    if not is_day_one(settings.bundle):
        read_manifest(settings.bundle)


def _check_port(host: str, port: int) -> None:
    """Raises ConfigError if the port is not free, before the coder is loaded, which takes a while."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = (error.strerror or "the address is not one of this machine").partition(" (")[0]
        raise ConfigError(f"--host and --port must be free to listen at; got {host}:{port} ({reason})") from error


def _check_certificate(settings: ServerSettings) -> None:
    """Raises ConfigError if the server could not use the certificate and its key."""
    if settings.tls_cert is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: b"")  # a key without a password
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        files = f"{settings.tls_cert} and {settings.tls_key}"
        raise ConfigError(
            f"--tls-cert and --tls-key must be a PEM certificate and its key; got {files} ({reason})"
        ) from error
