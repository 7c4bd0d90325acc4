"""What people do in the conversation about a note; pages and API call it. Every step has an audit entry.

Texts of questions, answers and comments are patient data: entries of the audit log have ids only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from nosology.workbench import conversation
from nosology.workbench.accounts import Forbidden, User
from nosology.workbench.audit_log import log_access, log_access_in, shown_notes
from nosology.workbench.blind_access import check_readable
from nosology.workbench.cases import Case, load_case, record_decision_in
from nosology.workbench.conversation import AskedQuery
from nosology.workbench.database import read_transaction, write_with_retries
from nosology.workbench.decision_checks import check_assignee
from nosology.workbench.review import NotFound
from nosology.workbench.services import Services

_CAN_BE_HELD = ("new", "open", "second")


def _readable_case(connection: Connection, user: User, note_id: int) -> Case:
    """The case of a note; BlindNote if the user must not see its codes yet."""
    case = load_case(connection, note_id)
    check_readable(connection, note_id, user.id)
    return case


def add_comment(
    services: Services, user: User, note_id: int, text: str, address: str, *, code: str = "", key: str = ""
) -> int:
    """The id of a new comment on a note."""

    def step(connection: Connection) -> int:
        _readable_case(connection, user, note_id)
        number, is_new = conversation.insert_comment(connection, note_id, user.id, text, code, key)
        if is_new:
            log_access_in(connection, user.id, "comment", note_id, address, f"comment {number}")
        return number

    return write_with_retries(services.engine, step)


def ask(services: Services, user: User, note_id: int, values: Mapping[str, Any], address: str) -> int:
    """The id of a new query; see conversation.insert_query. With `hold`, the note waits on hold for its answer."""

    def step(connection: Connection) -> int:
        case = _readable_case(connection, user, note_id)
        check_assignee(user, case)
        length = len(case.note["text"])
        number, is_new = conversation.insert_query(connection, note_id, user.id, values, length=length)
        if not is_new:
            return number
        log_access_in(connection, user.id, "ask query", note_id, address, f"query {number}")
        if values.get("hold") and case.review.status in _CAN_BE_HELD:
            _hold(connection, case, user, number)
        return number

    return write_with_retries(services.engine, step)


def _hold(connection: Connection, case: Case, user: User, query: int) -> None:
    """Puts a note on hold for the answer of a query. A note of nobody is then that of who asks."""
    note, version = case.note["id"], case.review.version
    if case.review.assignee is None and case.review.status != "second":
        record_decision_in(connection, note, "assign", {"user": user.id}, user=user.id, version=version)
        version += 1
    record_decision_in(connection, note, "hold", {"query": query}, user=user.id, version=version)


def answer(
    services: Services, user: User, query_id: int, choice: str, address: str, *, text: str = "", physician: str = ""
) -> AskedQuery:
    """The query after its answer, by a physician; or recorded by a coder, who then names the physician.

    A note that waits on hold for its queries is in work again after the last answer.
    """

    def step(connection: Connection) -> AskedQuery:
        query, name = _to_close(connection, user, query_id), physician
        if user.role == "physician":
            name = user.name
        conversation.insert_answer(connection, query, user.id, name, choice, text)
        log_access_in(connection, user.id, "answer query", query.note_id, address, f"query {query_id}")
        _resume(connection, user, query)
        return conversation.load_query(connection, query_id)

    return write_with_retries(services.engine, step)


def withdraw(services: Services, user: User, query_id: int, address: str) -> AskedQuery:
    """The query, which is then withdrawn."""
    if user.role == "physician":
        raise Forbidden("a query is withdrawn by coders")

    def step(connection: Connection) -> AskedQuery:
        query = _to_close(connection, user, query_id)
        conversation.insert_withdrawal(connection, query, user.id)
        log_access_in(connection, user.id, "withdraw query", query.note_id, address, f"query {query_id}")
        _resume(connection, user, query)
        return conversation.load_query(connection, query_id)

    return write_with_retries(services.engine, step)


def _to_close(connection: Connection, user: User, query_id: int) -> AskedQuery:
    """A query that a user may close."""
    query = conversation.load_query(connection, query_id)
    if user.role != "physician":
        check_assignee(user, _readable_case(connection, user, query.note_id))
    elif not conversation.is_addressed(user, query):
        raise NotFound("there is no such query")
    return query


def _resume(connection: Connection, user: User, query: AskedQuery) -> None:
    review = load_case(connection, query.note_id).review
    if review.status != "held" or review.held_for is None or conversation.has_open_query(connection, query.note_id):
        return
    details = {"query": query.id}
    record_decision_in(connection, query.note_id, "resume", details, user=user.id, version=review.version)


def read_as_physician(services: Services, user: User, query_id: int, address: str) -> tuple[AskedQuery, Case]:
    """A query to a physician, and the case it is about; the access is logged."""
    with read_transaction(services.engine) as connection:
        query = conversation.load_query(connection, query_id)
        if not conversation.may_see(user, query):
            raise NotFound("there is no such query")
        case = load_case(connection, query.note_id)
    log_access(services.engine, user.id, "query", query.note_id, address, f"query {query_id}")
    return query, case


def list_as_physician(services: Services, user: User, address: str) -> list[AskedQuery]:
    """The queries of a physician; the access is logged."""
    with read_transaction(services.engine) as connection:
        found = conversation.queries_of_physician(connection, user)
    log_access(services.engine, user.id, "queries", None, address, shown_notes({query.note_id for query in found}))
    return found
