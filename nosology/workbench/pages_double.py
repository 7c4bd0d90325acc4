"""Pages of double coding: the pairs, their adjudication, the agreement of coders."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from nosology.core import ReviewError
from nosology.workbench import double_coding
from nosology.workbench.adjudication import adjudicate, show_pair
from nosology.workbench.blind_access import list_pairs
from nosology.workbench.cases import list_assignees
from nosology.workbench.coder_agreement import MAX_PAIRS, agreement_tables, load_double_codings
from nosology.workbench.conversation import load_conversation
from nosology.workbench.decision_checks import UnfinishedCodes
from nosology.workbench.document_views import merge_evidence, show_documents
from nosology.workbench.page_html import PageContext, ReviewerPage, parse_id
from nosology.workbench.review import NotFound
from nosology.workbench.security import RowId
from nosology.workbench.store_tables import notes

router = APIRouter(include_in_schema=False)
PREFIX = "choice "  # of the form's fields, before the name of a difference


@router.get("/double")
def pairs_page(page: ReviewerPage) -> HTMLResponse:
    """The pairs that wait for adjudication, and those in work."""
    return _render_pairs(page)


def _render_pairs(page: PageContext, *, error: str = "", message: str = "") -> HTMLResponse:
    finished = double_coding.finished_pairs(page.services.engine, page.user.id)
    with page.reading() as connection:
        pairs = [pair for pair in list_pairs(connection) if pair.phase == "coding"]
        people = list_assignees(connection)
    values = {"finished": finished, "pairs": pairs, "people": people, "error": error, "message": message}
    return page.render("double.html", **values)


@router.post("/double")
def choose(
    page: ReviewerPage, ref: Annotated[str, Form(max_length=200)] = "", coder: Annotated[str, Form(max_length=10)] = ""
) -> Response:
    """Chooses the note with an id for double coding. A POST, because an id may identify a patient."""
    with page.reading() as connection:
        note_id = connection.scalar(select(notes.c.id).where(notes.c.ref == ref.strip()))
    try:
        double_coding.choose_note(
            page.services.engine, page.user.id, note_id or 0, page.address, parse_id(coder) or None
        )
    except ReviewError as error:
        return _render_pairs(page, error=f"{error}.")
    return _render_pairs(page, message="The note is chosen: a second person codes it.")


@router.post("/double/{note_id}/assign")
def assign(page: ReviewerPage, note_id: RowId, coder: Annotated[str, Form(max_length=10)] = "") -> Response:
    """Assigns one coding of a pair, without showing its codes."""
    try:
        double_coding.assign_coding(page.services.engine, page.user.id, note_id, parse_id(coder) or None, page.address)
    except NotFound:
        raise
    except ReviewError as error:
        return _render_pairs(page, error=f"{error}.")
    return RedirectResponse("/double", status_code=303)


@router.get("/double/{note_id}")
def adjudication_page(page: ReviewerPage, note_id: RowId) -> HTMLResponse:
    """Both codings of a note side by side."""
    return _render_adjudication(page, note_id)


def _render_adjudication(
    page: PageContext, note_id: int, *, choices: dict[str, str] | None = None, error: str = "", override: bool = False
) -> HTMLResponse:
    shown = show_pair(page.services, page.user, note_id, page.address)
    evidence = merge_evidence(shown.first.evidence(), shown.second.evidence())
    coded = {*shown.first.review.codes, *shown.second.review.codes}
    documents = show_documents(shown.first, {code: evidence[code] for code in coded if code in evidence}, ())
    with page.reading() as connection:
        talks = [load_conversation(connection, case.note["id"]) for case in (shown.first, shown.second)]
    values = {"shown": shown, "documents": documents, "choices": choices or {}, "override": override, "talks": talks}
    return page.render("adjudicate.html", **values, error=error)


@router.post("/double/{note_id}")
async def decide_differences(page: ReviewerPage, note_id: RowId) -> Response:
    """Makes the choices the final codes of the note."""
    form = {name: value for name, value in (await page.request.form()).items() if isinstance(value, str)}
    choices = {name.removeprefix(PREFIX): value for name, value in form.items() if name.startswith(PREFIX)}
    return await run_in_threadpool(_decide, page, note_id, choices, form.get("version", ""), form.get("override", ""))


def _decide(page: PageContext, note_id: int, choices: dict[str, str], version: str, override: str) -> Response:
    try:
        adjudicate(page.services, page.user, note_id, choices, parse_id(version), override.strip()[:500])
    except NotFound:
        raise
    except ReviewError as error:
        needs_reason = isinstance(error, UnfinishedCodes)
        return _render_adjudication(page, note_id, choices=choices, error=f"{error}.", override=needs_reason)
    return RedirectResponse(f"/notes/{note_id}", status_code=303)


@router.get("/agreement")
def agreement_page(page: ReviewerPage) -> HTMLResponse:
    """The agreement of people who coded the same notes."""
    with page.reading() as connection:
        found = load_double_codings(connection)
    return page.render("agreement.html", tables=agreement_tables(tuple(found)), max_pairs=MAX_PAIRS)
