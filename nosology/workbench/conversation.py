"""The conversation about a note: comments, and queries to physicians with their answers.

All three tables are append-only. Neither comments nor queries raise the version of the review, so they conflict with
nobody's decision. A query is open until its only event: answered or withdrawn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, bindparam, func, or_, select

from nosology.core import ConflictError, ReviewError
from nosology.workbench.accounts import User
from nosology.workbench.blind_access import CLOSED_PAIR, hidden_notes
from nosology.workbench.database import insert_row
from nosology.workbench.review import NotFound, evidence_spans, parse_code
from nosology.workbench.store_tables import comments, notes, queries, query_events, users

OTHER, UNABLE = "other", "unable to determine"
FIXED = (OTHER, UNABLE)  # answers that every query offers, so that none leads to the others
STATES = ("open", "answered", "withdrawn")
MAX_TEXT = 4_000  # characters of a question, an answer or a comment
MAX_OPTIONS, MAX_OPTION = 8, 200
QUERIES_PER_PAGE = 100


class QueryClosed(ConflictError):
    """The query is answered or withdrawn already."""


_author, _closer, _addressee = users.alias("author"), users.alias("closer"), users.alias("addressee")
_QUERIES = (
    select(
        queries,
        _author.c.name.label("author"),
        _addressee.c.name.label("addressee"),
        query_events.c.kind,
        query_events.c.at.label("closed"),
        query_events.c.physician,
        query_events.c.answer,
        query_events.c.text,
        _closer.c.name.label("closed_by"),
        _closer.c.id.label("closed_by_id"),
    )
    .join(_author, _author.c.id == queries.c.user_id)
    .join(_addressee, _addressee.c.id == queries.c.physician_id, isouter=True)
    .join(query_events, query_events.c.query_id == queries.c.id, isouter=True)
    .join(_closer, _closer.c.id == query_events.c.user_id, isouter=True)
    .order_by(queries.c.id)
)
# Statements of every page of a note are built once.
# A note whose double coding is closed has the conversation of its copy, too.
_copies = select(notes.c.id).where(notes.c.double_of == bindparam("note"), notes.c.status == CLOSED_PAIR)
_QUERIES_OF_NOTE = _QUERIES.where(or_(queries.c.note_id == bindparam("note"), queries.c.note_id.in_(_copies)))
_COMMENTS = (
    select(comments, users.c.name.label("author"))
    .join(users, users.c.id == comments.c.user_id)
    .where(or_(comments.c.note_id == bindparam("note"), comments.c.note_id.in_(_copies)))
    .order_by(comments.c.id)
)
_PHYSICIANS = (
    select(users.c.id, users.c.name)
    .where(users.c.role == "physician", users.c.disabled.is_(False))
    .order_by(users.c.name)
)


@dataclass(frozen=True)
class AskedQuery:
    """A query; closed_by: who answered, recorded the answer or withdrew it. addressee None: any physician."""

    id: int
    note_id: int
    asked: float
    author: str
    author_id: int
    question: str
    options: tuple[str, ...]
    code: str | None
    start: int | None
    end: int | None
    addressee: str | None
    addressee_id: int | None
    state: str
    closed: float | None
    closed_by: str | None
    closed_by_id: int | None
    physician: str | None
    answer: str | None
    text: str | None

    @property
    def choices(self) -> tuple[str, ...]:
        """All answers to choose from."""
        return (*self.options, *FIXED)

    @property
    def hours(self) -> float | None:
        """The time from question to answer; None without an answer."""
        return (self.closed - self.asked) / 3600 if self.closed is not None and self.state == "answered" else None


@dataclass(frozen=True)
class NoteComment:
    """A comment on a note; code: the code that it mentions."""

    id: int
    author: str
    at: float
    code: str | None
    text: str


@dataclass(frozen=True)
class Conversation:
    """Queries and comments of a note, oldest first, and the physicians who can be asked: (id, name)."""

    queries: Sequence[AskedQuery]
    comments: Sequence[NoteComment]
    physicians: Sequence[tuple[int, str]] = ()


_CLOSING = ("closed", "closed_by", "closed_by_id", "physician", "answer", "text")


def _query(row: RowMapping) -> AskedQuery:
    same = ("id", "note_id", "author", "question", "code", "start", "end", "addressee")
    values = {name: row[name] for name in (*same, *_CLOSING)}
    values |= {"asked": row["at"], "author_id": row["user_id"], "addressee_id": row["physician_id"]}
    return AskedQuery(**values, options=tuple(row["options"]), state=row["kind"] or "open")


def load_conversation(connection: Connection, note_id: int) -> Conversation:
    """The conversation about a note."""
    asked = [_query(row) for row in connection.execute(_QUERIES_OF_NOTE, {"note": note_id}).mappings()]
    rows = connection.execute(_COMMENTS, {"note": note_id}).mappings()
    said = [NoteComment(row["id"], row["author"], row["at"], row["code"], row["text"]) for row in rows]
    return Conversation(asked, said, [(row.id, row.name) for row in connection.execute(_PHYSICIANS)])


def load_query(connection: Connection, query_id: int) -> AskedQuery:
    """A query by its id; NotFound if there is none."""
    row = connection.execute(_QUERIES.where(queries.c.id == query_id)).mappings().first()
    if row is None:
        raise NotFound("there is no such query")
    return _query(row)


def list_queries(
    connection: Connection, *, state: str = "", note_id: int | None = None, page: int | None = 0
) -> list[AskedQuery]:
    """A page of queries, oldest first; state: one of STATES, or "" for all. page None: all of them.

    Of all notes, without those of double codings in progress.
    """
    query = _QUERIES
    if state:
        query = query.where(query_events.c.kind.is_(None) if state == "open" else query_events.c.kind == state)
    if note_id is not None:
        query = query.where(queries.c.note_id == note_id)
    elif page is not None:
        query = query.where(queries.c.note_id.not_in(hidden_notes(connection)))
    if page is not None:
        query = query.limit(QUERIES_PER_PAGE).offset(page * QUERIES_PER_PAGE)
    return [_query(row) for row in connection.execute(query).mappings()]


def queries_of_physician(connection: Connection, user: User) -> list[AskedQuery]:
    """The open queries to a physician or to any, and the newest that the physician answered."""
    to_them = queries.c.physician_id.is_(None) | (queries.c.physician_id == user.id)
    waiting = _QUERIES.where(query_events.c.kind.is_(None), to_them)
    answered = _QUERIES.where(query_events.c.kind == "answered", query_events.c.user_id == user.id)
    rows = [*connection.execute(waiting).mappings()]
    rows += connection.execute(
        answered.order_by(None).order_by(query_events.c.id.desc()).limit(QUERIES_PER_PAGE)
    ).mappings()
    return [_query(row) for row in rows]


def may_see(user: User, query: AskedQuery) -> bool:
    """Whether a physician sees a query: an open one to them or to any, or one that they answered."""
    if query.state == "open":
        return is_addressed(user, query)
    return query.state == "answered" and query.closed_by_id == user.id


def is_addressed(user: User, query: AskedQuery) -> bool:
    """Whether a query is one to this physician or to any."""
    return query.addressee_id in (None, user.id)


def clean_text(value: str, what: str, most: int = MAX_TEXT) -> str:
    """A text without space around it; ReviewError if it is empty or too long. The message never has the text."""
    value = value.replace("\x00", " ").strip()
    if not 1 <= len(value) <= most:
        raise ReviewError(f"{what} must have 1 to {most:,} characters; it has {len(value):,}")
    return value


def clean_options(values: Sequence[str]) -> list[str]:
    """The answers of a query, each once, without those that every query offers."""
    cleaned: dict[str, str] = {}
    for value in values:
        if value.strip():
            text = " ".join(clean_text(value, "an answer to choose from", MAX_OPTION).split())
            cleaned.setdefault(text.casefold(), text)
    options = [text for folded, text in cleaned.items() if folded not in FIXED]
    if len(options) > MAX_OPTIONS:
        raise ReviewError(f"a query offers at most {MAX_OPTIONS} answers of its own; got {len(options)}")
    return options


def clean_code(value: str) -> str | None:
    """A code such as icd10cm:I50.9, or None for an empty text."""
    return str(parse_code({"code": value})) if value else None


def insert_comment(
    connection: Connection, note_id: int, user: int, text: str, code: str = "", key: str = ""
) -> tuple[int, bool]:
    """(id of a comment, whether it is new): one that is sent again with its key is stored once."""
    row = {"text": clean_text(text, "a comment"), "code": clean_code(code), "key": key or None}
    return _insert_once(connection, comments, {"note_id": note_id, "user_id": user, **row})


def insert_query(
    connection: Connection, note_id: int, user: int, values: Mapping[str, Any], *, length: int
) -> tuple[int, bool]:
    """(id of a query, whether it is new): one that is sent again with its key is stored once.

    values: question, options, code, start, end, physician (an id), key. length: of the note's text.
    """
    spans = evidence_spans({name: values[name] for name in ("start", "end") if values.get(name) is not None}, length)
    physician = values.get("physician")
    if physician is not None and physician not in {row.id for row in connection.execute(_PHYSICIANS)}:
        raise ReviewError("physician must be the id of a physician who can sign in; got another number")
    row = {
        "question": clean_text(values["question"], "a question"),
        "options": clean_options(values.get("options") or ()),
        "code": clean_code(values.get("code") or ""),
        "start": spans[0].start if spans else None,
        "end": spans[0].end if spans else None,
        "physician_id": physician,
        "key": values.get("key") or None,
    }
    return _insert_once(connection, queries, {"note_id": note_id, "user_id": user, **row})


def _insert_once(connection: Connection, table: Any, row: dict[str, Any]) -> tuple[int, bool]:
    if row["key"]:
        sent = select(table.c.id).where(table.c.note_id == row["note_id"], table.c.key == row["key"])
        if (known := connection.scalar(sent)) is not None:
            return int(known), False
    return insert_row(connection, table, {**row, "at": time.time()}), True


def insert_answer(
    connection: Connection, query: AskedQuery, user: int, physician: str, answer: str, text: str = ""
) -> None:
    """Writes the answer of a physician, whose name is given. QueryClosed if the query is closed."""
    if answer not in query.choices:
        raise ReviewError("the answer must be one of those that the query offers")
    text = clean_text(text, "the words of the answer") if text.strip() or answer == OTHER else ""
    row = {"physician": clean_text(physician, "the name of the physician", 80), "answer": answer, "text": text or None}
    _close(connection, query, user, "answered", row)


def insert_withdrawal(connection: Connection, query: AskedQuery, user: int) -> None:
    """Withdraws a query. QueryClosed if it is closed."""
    _close(connection, query, user, "withdrawn", {})


def _close(connection: Connection, query: AskedQuery, user: int, kind: str, row: dict[str, Any]) -> None:
    now = load_query(connection, query.id)
    if now.state != "open":
        raise QueryClosed(f"the query was {now.state} already by {now.physician or now.closed_by}")
    about = {"query_id": query.id, "note_id": query.note_id, "user_id": user, "at": time.time(), "kind": kind}
    insert_row(connection, query_events, about | row)


def has_open_query(connection: Connection, note_id: int) -> bool:
    """Whether a note has an open query."""
    return bool(list_queries(connection, state="open", note_id=note_id))


# The conversation in the queue.
_answered_queries = (  # since the note was finished, if it is
    select(func.count())
    .where(query_events.c.note_id == notes.c.id, query_events.c.kind == "answered")
    .where(notes.c.finished.is_(None) | (query_events.c.at > notes.c.finished))
).scalar_subquery()
_open_queries = (
    select(func.count())
    .select_from(queries.outerjoin(query_events, query_events.c.query_id == queries.c.id))
    .where(queries.c.note_id == notes.c.id, query_events.c.id.is_(None))
).scalar_subquery()
_comment_count = select(func.count()).where(comments.c.note_id == notes.c.id).scalar_subquery()
QUEUE_COLUMNS = (
    _open_queries.label("open_queries"),
    _answered_queries.label("answered_queries"),
    _comment_count.label("comments"),
)
FILTERS: dict[str, ColumnElement[bool]] = {  # of the queue, by what is going on
    "query_open": _open_queries > 0,
    "query_answered": and_(_open_queries == 0, _answered_queries > 0),
    "sent_back": notes.c.sent_back,
}
