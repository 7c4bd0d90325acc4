"""The OpenAPI description: FastAPI's, with the security of each operation and the scope that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from nosology.workbench.accounts import SCOPES
from nosology.workbench.security import CSRF_HEADER, SAFE_METHODS, SESSION_COOKIE

SCHEMES: dict[str, Any] = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "nos_...",
        "description": "An API token of the page API tokens. Its scopes: "
        + "; ".join(f"`{name}`: {allows}" for name, allows in SCOPES.items())
        + ".",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "The session of a browser; it has all scopes.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": CSRF_HEADER,
        "description": "The CSRF token of the session, which requests other than GET need.",
    },
}


def describe_security(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Adds the security schemes to the description of an application with these routers."""
    create: Callable[[], dict[str, Any]] = app.openapi
    needed = {(route.path_format, method): scope for route, method, scope in _operations(routers)}

    def described() -> dict[str, Any]:
        schema = create()
        if "securitySchemes" not in schema["components"]:
            schema["components"]["securitySchemes"] = SCHEMES
            for (path, method), scope in needed.items():
                csrf: dict[str, list[str]] = {} if method in SAFE_METHODS else {"csrf": []}
                schema["paths"][path][method.lower()]["security"] = [{"token": [scope]}, {"session": [], **csrf}]
        return schema

    app.openapi = described  # pyrefly: ignore[bad-assignment]


def _operations(routers: Iterable[APIRouter]) -> Iterator[tuple[APIRoute, str, str]]:
    """Each operation of the description that needs a scope: route, method, scope."""
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute) and route.include_in_schema:
            for scope in _scopes(route.dependant):
                yield from ((route, method, scope) for method in route.methods or ())


def _scopes(dependant: Dependant) -> Iterator[str]:
    """The scopes that the dependencies of an operation require."""
    for part in dependant.dependencies:
        if scope := getattr(part.call, "scope", None):
            yield scope
        yield from _scopes(part)
