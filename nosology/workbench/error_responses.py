"""Responses to errors: one sentence, as a page or as JSON, with the status of the kind of error."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError
from sqlalchemy.exc import DataError as InvalidValue
from starlette.exceptions import HTTPException

from nosology.core import ConflictError, NosologyError
from nosology.workbench.accounts import Forbidden
from nosology.workbench.blind_access import BlindNote
from nosology.workbench.coding import CoderBusyError
from nosology.workbench.database import StoreGoneError, is_damaged
from nosology.workbench.page_html import capitalized, render_page
from nosology.workbench.review import NotFound
from nosology.workbench.security import NotAuthenticated, NotForPhysicians, PasswordChangeRequired

log = logging.getLogger("nosology.workbench")
STATUS_CODES = {
    NotAuthenticated: 401,
    Forbidden: 403,
    BlindNote: 403,
    NotFound: 404,
    ConflictError: 409,
    CoderBusyError: 503,
    StoreGoneError: 503,
}
TITLES = {403: "Not allowed", 404: "Not found", 405: "Not found", 413: "Too large", 503: "Busy"}


def _is_api(request: Request) -> bool:
    return request.url.path.startswith(("/api/", "/health/", "/metrics"))


def _error_response(request: Request, status: int, message: str) -> Response:
    if not _is_api(request):
        message = capitalized(message)
    if _is_api(request) or request.headers.get("hx-request"):
        response: Response = JSONResponse({"detail": message}, status_code=status)
    else:
        title = TITLES.get(status, "That did not work")
        user = request.scope.get("nosology.user")
        shown = user if user is not None and user.csrf is not None else None  # the menu has forms of a session
        response = render_page(request, "message.html", shown, status=status, title=title, message=message)
    if status == 503:
        response.headers["retry-after"] = "2"
    return response


def expected_error(request: Request, error: NosologyError) -> Response:
    """An error whose message is for the user."""
    status = next((code for kind, code in STATUS_CODES.items() if isinstance(error, kind)), 422)
    if status == 401 and not _is_api(request) and not request.headers.get("hx-request"):
        place = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        is_place = request.method == "GET" and place != "/"
        return RedirectResponse(f"/login?next={quote(place, safe='/')}" if is_place else "/login", status_code=303)
    if isinstance(error, NotForPhysicians) and request.url.path in ("/", "/next"):
        return RedirectResponse("/queries", status_code=303)
    if isinstance(error, PasswordChangeRequired) and not _is_api(request):
        return RedirectResponse("/password", status_code=303)
    response = _error_response(request, status, f"{error}.")
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def _invalid_request(request: Request, error: RequestValidationError) -> Response:
    """A request with an invalid field: its place and what is expected. The value may be a note's text: not shown."""
    details = [{"loc": list(item["loc"]), "msg": item["msg"], "type": item["type"]} for item in error.errors()]
    if _is_api(request):
        return JSONResponse({"detail": details}, status_code=422)
    if any(item["loc"][0] == "path" for item in details):
        return _error_response(request, 404, "There is no such page.")
    return _error_response(request, 422, "A field of the form is missing or invalid.")


def _http_error(request: Request, error: HTTPException) -> Response:
    response = _error_response(request, error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return response


def _database_away(request: Request, error: OperationalError | InterfaceError) -> Response:
    kind = getattr(error.orig, "sqlite_errorname", type(error).__name__)
    log.error("the database does not respond: %s", kind)
    what = "disk of the database is full" if kind == "SQLITE_FULL" else "database does not respond"
    return _error_response(request, 503, f"The {what}; nothing was saved. Try again in a moment.")


def _database_error(request: Request, error: DatabaseError) -> Response:
    if not is_damaged(error):
        return unexpected_error(request, error)
    log.error("the store is damaged: restore a backup with `nosology workbench restore`")
    return _error_response(request, 503, "The store is damaged; nothing was saved.")


def _invalid_value(request: Request, error: InvalidValue) -> Response:
    return _error_response(request, 422, "A value cannot be stored, such as a character of code 0.")


def unexpected_error(request: Request, error: Exception) -> Response:
    """The log gets the kind and line of the error, without values."""
    trace, location = error.__traceback__, ""
    while trace is not None:
        location = f"{trace.tb_frame.f_code.co_filename.rpartition('nosology')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    log.error("request failed: %s at %s", type(error).__name__, location)
    return _error_response(request, 500, "Something failed on the server; nothing was saved in part.")


ERROR_HANDLERS: dict[Any, Any] = {
    NosologyError: expected_error,
    RequestValidationError: _invalid_request,
    HTTPException: _http_error,
    OperationalError: _database_away,
    InterfaceError: _database_away,
    InvalidValue: _invalid_value,
    DatabaseError: _database_error,
}


def respond_to(request: Request, error: Exception) -> Response:
    """The response to an error that was raised before the application, such as while the user is looked up."""
    handlers = (handler for kind, handler in ERROR_HANDLERS.items() if isinstance(error, kind))
    return next(handlers, unexpected_error)(request, error)
