"""The conversation in the JSON API: queries to physicians and comments. The role physician has no API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from nosology.workbench import query_service
from nosology.workbench.api_errors import CONFLICT, ERRORS, ErrorBody
from nosology.workbench.api_fields import ClientKey, NoNul, RequestBody, ResponseBody, Text, example_body
from nosology.workbench.audit_log import log_access, shown_notes
from nosology.workbench.blind_access import check_readable
from nosology.workbench.cases import load_case
from nosology.workbench.conversation import (
    MAX_OPTION,
    MAX_OPTIONS,
    MAX_TEXT,
    AskedQuery,
    list_queries,
    load_conversation,
    load_query,
)
from nosology.workbench.database import read_transaction
from nosology.workbench.security import MAX_ID, AddressDep, DecideUser, ReadUser, RowId, ServicesDep

LongText = Annotated[Text, Field(min_length=1, max_length=MAX_TEXT)]
Position = Annotated[int | None, Field(ge=0, le=MAX_ID)]
QUERY_CLOSED: dict[int | str, dict[str, Any]] = {
    409: {"description": "the query is answered or withdrawn already", "model": ErrorBody}
}
router = APIRouter(prefix="/api/v1", tags=["conversation"], responses=ERRORS)


class NewQuery(RequestBody):
    """A question to a physician. physician: the id of a user; none: any physician.

    options: answers to choose from; "other" and "unable to determine" are always offered. hold: the note waits on hold
    for the answer. key: a name that the client chooses; a query that is sent again with its key is stored once.
    """

    model_config = example_body(question="Which kind of heart failure was treated?", options=["systolic", "diastolic"])

    question: LongText
    options: list[Annotated[NoNul, Field(max_length=MAX_OPTION)]] = Field([], max_length=MAX_OPTIONS)
    code: str | None = Field(None, max_length=40)
    start: Position = None
    end: Position = None
    physician: int | None = Field(None, ge=1, le=MAX_ID)
    hold: bool = False
    key: ClientKey = None


class NewAnswer(RequestBody):
    """The answer that a physician gave; choice: one of the query's choices. text: needed for "other"."""

    model_config = example_body(physician="Dr. West", choice="unable to determine")

    physician: Annotated[NoNul, Field(min_length=1, max_length=80)]
    choice: Annotated[NoNul, Field(min_length=1, max_length=MAX_OPTION)]
    text: Text = Field("", max_length=MAX_TEXT)


class NewComment(RequestBody):
    """A comment on a note; code: the code that it mentions."""

    model_config = example_body(text="The echo is in the next document.")

    text: LongText
    code: str | None = Field(None, max_length=40)
    key: ClientKey = None


class QueryDetail(ResponseBody):
    """A query; closed_by: who answered, recorded the answer or withdrew it. addressee null: any physician."""

    id: int
    note_id: int
    asked: float
    author: str
    question: str
    choices: list[str]
    code: str | None
    start: int | None
    end: int | None
    addressee: str | None
    state: Literal["open", "answered", "withdrawn"]
    closed: float | None
    closed_by: str | None
    physician: str | None
    answer: str | None
    text: str | None


class CommentDetail(ResponseBody):
    """A comment on a note."""

    id: int
    author: str
    at: float
    code: str | None
    text: str


def _detail(query: AskedQuery) -> QueryDetail:
    return QueryDetail.model_validate(query)


@router.get("/queries")
def read_queries(
    services: ServicesDep,
    user: ReadUser,
    address: AddressDep,
    state: Literal["open", "answered", "withdrawn", ""] = "",
    note: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    page: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> list[QueryDetail]:
    """A page of 100 queries, oldest first; of one note, or of all without double codings in progress."""
    with read_transaction(services.engine) as connection:
        if note is not None:
            check_readable(connection, note, user.id)
        found = list_queries(connection, state=state, note_id=note, page=page)
    log_access(services.engine, user.id, "queries", note, address, shown_notes({query.note_id for query in found}))
    return [_detail(query) for query in found]


@router.post("/notes/{note_id}/queries", status_code=201, responses=CONFLICT)
def ask_query(
    services: ServicesDep, user: DecideUser, address: AddressDep, note_id: RowId, body: NewQuery
) -> QueryDetail:
    """Asks a physician about a note."""
    number = query_service.ask(services, user, note_id, body.model_dump(), address)
    with read_transaction(services.engine) as connection:
        return _detail(load_query(connection, number))


@router.post("/queries/{query_id}/answer", responses=QUERY_CLOSED)
def answer_query(
    services: ServicesDep, user: DecideUser, address: AddressDep, query_id: RowId, body: NewAnswer
) -> QueryDetail:
    """Records the answer of a physician. A note that waits on hold for it is in work again."""
    text, physician = body.text, body.physician
    return _detail(query_service.answer(services, user, query_id, body.choice, address, text=text, physician=physician))


@router.post("/queries/{query_id}/withdraw", responses=QUERY_CLOSED)
def withdraw_query(services: ServicesDep, user: DecideUser, address: AddressDep, query_id: RowId) -> QueryDetail:
    """Withdraws a query."""
    return _detail(query_service.withdraw(services, user, query_id, address))


@router.get("/notes/{note_id}/comments")
def read_comments(services: ServicesDep, user: ReadUser, address: AddressDep, note_id: RowId) -> list[CommentDetail]:
    """The comments on a note, oldest first."""
    with read_transaction(services.engine) as connection:
        load_case(connection, note_id)
        check_readable(connection, note_id, user.id)
        found = load_conversation(connection, note_id).comments
    log_access(services.engine, user.id, "comments", note_id, address)
    return [CommentDetail.model_validate(comment) for comment in found]


@router.post("/notes/{note_id}/comments", status_code=201)
def write_comment(
    services: ServicesDep, user: DecideUser, address: AddressDep, note_id: RowId, body: NewComment
) -> CommentDetail:
    """Adds a comment to a note. The version of its review stays."""
    code, key = body.code or "", body.key or ""
    number = query_service.add_comment(services, user, note_id, body.text, address, code=code, key=key)
    with read_transaction(services.engine) as connection:
        found = load_conversation(connection, note_id).comments
    return CommentDetail.model_validate(next(comment for comment in found if comment.id == number))
