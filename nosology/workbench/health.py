"""Whether the server lives, whether it can work, and its numbers for Prometheus."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sqlalchemy import func, select
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nosology.workbench.security import Parts
from nosology.workbench.store.engine import alive, reading
from nosology.workbench.store.schema import notes

router = APIRouter(tags=["health"])
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)


class Numbers:
    """The numbers of one application; each has a registry of its own, so that two can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "nosology_requests", "Requests answered", ["route", "method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "nosology_request_seconds", "Time to answer", ["route"], registry=self.registry, buckets=_BUCKETS
        )
        self.waiting = Gauge("nosology_coder_waiting", "Pieces of work at the coder", registry=self.registry)
        self.notes = Gauge("nosology_notes", "Notes by status", ["status"], registry=self.registry)
        self.uncoded = Gauge("nosology_notes_uncoded", "Notes that wait for the coder", registry=self.registry)


class Watch:
    """Counts requests by route (never by path, which has numbers of notes in it)."""

    def __init__(self, app: ASGIApp):
        self.app, self.numbers = app, Numbers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on and counts it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["nosology.numbers"] = self.numbers
        begun, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.numbers.requests.labels(route, scope["method"], str(status)).inc()
            self.numbers.seconds.labels(route).observe(time.perf_counter() - begun)


@router.get("/health/live", response_class=JSONResponse)
async def live() -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "live"}


@router.get("/health/ready", responses={503: {"description": "not ready"}})
async def ready(services: Parts, response: Response) -> dict[str, Any]:
    """Whether the store answers and the coder is loaded."""
    store = await run_in_threadpool(alive, services.engine)
    fine = store and services.ready
    response.status_code = 200 if fine else 503
    return {"status": "ready" if fine else "not ready", "store": store, "coder": services.ready}


def _gather(numbers: Numbers, services: Any) -> bytes:
    with reading(services.engine) as connection:
        by_status = connection.execute(select(notes.c.status, func.count()).group_by(notes.c.status)).all()
        uncoded = connection.scalar(select(func.count()).where(notes.c.coding == "waiting"))
    numbers.waiting.set(services.workers.waiting)
    numbers.uncoded.set(uncoded or 0)
    for status, count in by_status:
        numbers.notes.labels(status).set(count)
    return generate_latest(numbers.registry)


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(services: Parts, request: Request) -> Response:
    """The numbers in Prometheus' format: counts and times alone, nothing about a patient."""
    return Response(_gather(request.scope["nosology.numbers"], services), media_type=CONTENT_TYPE_LATEST)
