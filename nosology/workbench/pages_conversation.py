"""Pages of the conversation: queries and comments on the page of a note, and the pages of physicians."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from nosology.core import Code, NosologyError, Span
from nosology.workbench import query_service
from nosology.workbench.accounts import Forbidden
from nosology.workbench.cases import Case, load_case
from nosology.workbench.conversation import MAX_OPTION, MAX_OPTIONS, MAX_TEXT, AskedQuery, load_query
from nosology.workbench.document_views import show_documents
from nosology.workbench.page_html import PageContext, PageDep, capitalized
from nosology.workbench.pages import render_panel
from nosology.workbench.review import NotFound
from nosology.workbench.security import MAX_ID, RowId
from nosology.workbench.views import visible_text

PASSAGE = Code("icd10cm", "passage")  # marks the passage of a query in the text
Key = Annotated[str, Form(max_length=64, pattern="^[A-Za-z0-9-]*$")]
ShortCode = Annotated[str, Form(max_length=40)]
LongText = Annotated[str, Form(max_length=MAX_TEXT)]
Choice = Annotated[str, Form(max_length=MAX_OPTION)]
OptionalNumber = Annotated[int | None, Form(ge=0, le=MAX_ID)]
router = APIRouter(include_in_schema=False)


async def _physician_page(page: PageDep) -> PageContext:
    if page.user.role != "physician":
        raise Forbidden("that is for people with the role physician; queries of coders are on the page of their note")
    return page


PhysicianPage = Annotated[PageContext, Depends(_physician_page)]


def _panel(page: PageContext, note_id: int) -> HTMLResponse:
    with page.reading() as connection:
        case = load_case(connection, note_id)
    return render_panel(page, case)


@router.post("/notes/{note_id}/comments")
def add_comment(page: PageDep, note_id: RowId, text: LongText, code: ShortCode = "", key: Key = "") -> HTMLResponse:
    """The panel with a new comment."""
    query_service.add_comment(page.services, page.user, note_id, text, page.address, code=code, key=key)
    return _panel(page, note_id)


@router.post("/notes/{note_id}/queries")
def ask(
    page: PageDep,
    note_id: RowId,
    question: LongText,
    options: Annotated[str, Form(max_length=2 * MAX_OPTIONS * MAX_OPTION)] = "",
    code: ShortCode = "",
    start: OptionalNumber = None,
    end: OptionalNumber = None,
    physician: OptionalNumber = None,
    hold: Annotated[str, Form(max_length=5)] = "",
    key: Key = "",
) -> HTMLResponse:
    """The panel with a new query; options: one answer per line."""
    values = {"question": question, "options": options.splitlines(), "code": code, "start": start, "end": end}
    values |= {"physician": physician or None, "hold": hold == "yes", "key": key}
    query_service.ask(page.services, page.user, note_id, values, page.address)
    return _panel(page, note_id)


@router.post("/notes/{note_id}/queries/{query_id}/answer")
def record_answer(
    page: PageDep,
    note_id: RowId,
    query_id: RowId,
    choice: Choice = "",
    text: LongText = "",
    physician: Annotated[str, Form(max_length=80)] = "",
) -> HTMLResponse:
    """The panel after a coder recorded the answer of a physician."""
    _check_note(page, note_id, query_id)
    query_service.answer(page.services, page.user, query_id, choice, page.address, text=text, physician=physician)
    return _panel(page, note_id)


@router.post("/notes/{note_id}/queries/{query_id}/withdraw")
def withdraw(page: PageDep, note_id: RowId, query_id: RowId) -> HTMLResponse:
    """The panel after a query was withdrawn."""
    _check_note(page, note_id, query_id)
    query_service.withdraw(page.services, page.user, query_id, page.address)
    return _panel(page, note_id)


def _check_note(page: PageContext, note_id: int, query_id: int) -> None:
    with page.reading() as connection:
        if load_query(connection, query_id).note_id != note_id:
            raise NotFound("the note has no such query")


@router.get("/queries")
def queries_page(page: PhysicianPage) -> HTMLResponse:
    """The queries of a physician: open ones, then those they answered."""
    found = query_service.list_as_physician(page.services, page.user, page.address)
    waiting = [query for query in found if query.state == "open"]
    answered = [query for query in found if query.state == "answered"]
    return page.render("queries.html", waiting=waiting, answered=answered)


@router.get("/queries/{query_id}")
def query_page(page: PhysicianPage, query_id: RowId) -> HTMLResponse:
    """A query with the text it is about, and the form for its answer."""
    query, case = query_service.read_as_physician(page.services, page.user, query_id, page.address)
    return _render_query(page, query, case)


def _render_query(
    page: PageContext, query: AskedQuery, case: Case, *, choice: str = "", text: str = "", error: str = ""
) -> HTMLResponse:
    """The page of a query about the documents of a case; choice, text: what was typed into the form."""
    spans = [] if query.start is None or query.end is None else [Span(query.start, query.end)]
    documents = show_documents(case, {PASSAGE: spans}, [PASSAGE])
    sections = [section for shown in documents for section in shown.sections]
    at = next((part.number for part in sections if any(piece.highlighted for piece in part.pieces)), None)
    passage = visible_text(case.note["text"][query.start : query.end]) if at is not None else ""
    typed = {"choice": choice, "text": text, "error": error}
    is_gone = bool(spans) and at is None
    return page.render("query.html", query=query, documents=documents, at=at, passage=passage, is_gone=is_gone, **typed)


@router.post("/queries/{query_id}/answer")
def answer(page: PhysicianPage, query_id: RowId, choice: Choice = "", text: LongText = "") -> Response:
    """Answers a query; after an error the form has what was typed."""
    try:
        query_service.answer(page.services, page.user, query_id, choice, page.address, text=text)
    except NotFound:
        raise
    except NosologyError as error:
        if page.request.headers.get("hx-request"):
            raise
        query, case = query_service.read_as_physician(page.services, page.user, query_id, page.address)
        sentence = capitalized(f"{error}.")
        return _render_query(page, query, case, choice=choice, text=text, error=sentence)
    return RedirectResponse("/queries", status_code=303)
