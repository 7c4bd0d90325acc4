"""The page of settings that only admins change: sessions, retention, double coding, deletion of a note."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select

from nosology.core import NosologyError
from nosology.workbench.accounts import apply_session_limits
from nosology.workbench.double_coding import DoubleCodingRule, load_double_coding_rule
from nosology.workbench.page_html import AdminPage, PageContext
from nosology.workbench.retention import count_deleted, delete_expired, delete_note, forget_deleted
from nosology.workbench.review import NotFound
from nosology.workbench.store_settings import (
    RetentionRule,
    SessionLimits,
    changes,
    load_retention,
    load_session_limits,
    save_setting,
)
from nosology.workbench.store_tables import notes

router = APIRouter(include_in_schema=False)


@router.get("/settings")
def settings_page(page: AdminPage) -> HTMLResponse:
    """The settings."""
    return _render(page)


def _render(page: PageContext, *, message: str = "", error: str = "") -> HTMLResponse:
    with page.reading() as connection:
        limits, rule, deleted = load_session_limits(connection), load_retention(connection), count_deleted(connection)
        values = {"limits": limits, "rule": rule, "deleted": deleted, "double": load_double_coding_rule(connection)}
    return page.render("settings.html", **values, message=message, error=error)


@router.post("/settings/sessions")
def set_sessions(
    page: AdminPage, hours: Annotated[int, Form()] = 12, idle_minutes: Annotated[int, Form()] = 120
) -> Response:
    """Sets the length of sessions; open ones are shortened."""
    try:
        limits = SessionLimits(hours, idle_minutes)
    except NosologyError as error:
        return _render(page, error=f"{error}.")
    with page.writing() as connection:
        before = load_session_limits(connection)
        save_setting(connection, "sessions", limits)
        apply_session_limits(connection, limits)
        page.log("session limits", connection, object=changes(before, limits))
    return _render(page, message="Saved.")


@router.post("/settings/retention")
def set_retention(page: AdminPage, days: Annotated[int, Form()] = 0) -> Response:
    """Sets the retention, and deletes the notes that are older."""
    try:
        rule = RetentionRule(days)
    except NosologyError as error:
        return _render(page, error=f"{error}.")
    with page.writing() as connection:
        before = load_retention(connection)
        save_setting(connection, "retention", rule)
        page.log("retention", connection, object=changes(before, rule))
    return _render(page, message=f"Saved. {delete_expired(page.services.engine):,} notes were deleted.")


@router.post("/settings/double")
def set_double_coding(page: AdminPage, percent: Annotated[float, Form()] = 0.0) -> Response:
    """Sets the share of new notes that are chosen for double coding."""
    try:
        rule = DoubleCodingRule(percent)
    except NosologyError as error:
        return _render(page, error=f"{error}.")
    with page.writing() as connection:
        before = load_double_coding_rule(connection)
        save_setting(connection, "double_coding", rule)
        page.log("double coding rule", connection, object=changes(before, rule))
    return _render(page, message="Saved.")


@router.post("/settings/delete")
def delete_one(
    page: AdminPage, ref: Annotated[str, Form(max_length=200)] = "", again: Annotated[str, Form(max_length=200)] = ""
) -> Response:
    """Deletes the note with an id, which must be given twice."""
    try:
        if ref.strip() != again.strip():
            raise NotFound("the id and its repetition differ")
        with page.writing() as connection:
            note_id = connection.scalar(select(notes.c.id).where(notes.c.ref == ref.strip()))
            delete_note(connection, note_id or 0, page.user.id, page.address, "by an admin")
    except NotFound as error:
        return _render(page, error=f"{error}.")
    forget_deleted(page.services.engine)
    return _render(page, message="The note was deleted.")
