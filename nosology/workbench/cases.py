"""Cases: notes in the database with their suggestions and decisions."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Row, RowMapping, Text, bindparam, cast, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from nosology.core import Code, ConflictError, EvidenceSpan, ReviewError, Span, Suggestion
from nosology.workbench.accounts import LADDER
from nosology.workbench.append_only import DELETED
from nosology.workbench.change_clock import change_clock
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.documents import Document, encounter_text, load_documents, to_document
from nosology.workbench.encounter_data import complete_encounter
from nosology.workbench.replay import apply_decision, replay, stored_decisions
from nosology.workbench.review import SHARED_ACTIONS, Details, NotFound, Review, parse_code, spans_outside
from nosology.workbench.store_tables import coders, codings, decisions, notes, users

# Statements of every request are built once: building them takes SQLAlchemy longer than SQLite needs to run them.
_NOTE = select(notes).where(notes.c.id == bindparam("note"))
_CODING = (
    select(
        cast(codings.c.suggestions, Text).label("suggestions"),  # not parsed: see _suggestions
        cast(codings.c.claim, Text).label("claim"),
        codings.c.made,
        *(c.label(f"coder_{c.name}") for c in coders.c),
    )
    .join(coders, coders.c.id == codings.c.coder_id)
    .where(codings.c.note_id == bindparam("note"))
    .order_by(codings.c.id.desc())
    .limit(1)
)
_DECISIONS = (
    select(decisions.c.action, decisions.c.details, decisions.c.user_id)
    .where(decisions.c.note_id == bindparam("note"))
    .order_by(decisions.c.version)
)
_ADD_DECISION = insert(decisions)
_twin = notes.alias("twin")
_OTHER_CODING = (
    select(_twin.c.id)
    .join(notes, or_(_twin.c.double_of == notes.c.id, _twin.c.id == notes.c.double_of))
    .where(notes.c.id == bindparam("note"), _twin.c.status != DELETED)
)
_SUMMARY = update(notes).where(notes.c.id == bindparam("note"))
_STATUS_COUNTS = (
    select(notes.c.status, func.count().label("number")).where(notes.c.status != DELETED).group_by(notes.c.status)
)
_COPIES = select(notes.c.status).where(notes.c.double_of > 0)  # few; counted by SQLite, it would read all notes
_CAN_CODE = (users.c.disabled.is_(False), users.c.role.in_(LADDER))
_ASSIGNEES = select(users.c.id, users.c.name, users.c.role).where(*_CAN_CODE).order_by(users.c.name)
_SITES = select(notes.c.site).where(notes.c.site.is_not(None)).distinct().order_by(notes.c.site)


@dataclass(frozen=True, slots=True)
class EvidenceInContext(EvidenceSpan):
    """Evidence with its context in the note: negated, family, historical, uncertain, hypothetical."""

    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UncertainSuggestion(Suggestion):
    """A code that is accepted only where uncertain diagnoses count, which the proposed claim decides."""


def suggestion_to_json(suggestion: Suggestion) -> dict[str, Any]:
    """A suggestion for the database. The evidence has no text, which the note has."""
    evidence = []
    for span in suggestion.evidence:
        value: dict[str, Any] = {"start": span.start, "end": span.end, "score": span.score}
        if isinstance(span, EvidenceInContext) and span.context:
            value["context"] = list(span.context)
        evidence.append(value)
    return {
        "system": suggestion.system,
        "code": suggestion.code,
        "description": suggestion.description,
        "probability": suggestion.probability,
        "accepted": suggestion.accepted,
        "evidence": evidence,
    } | ({"uncertain": True} if isinstance(suggestion, UncertainSuggestion) else {})


def suggestion_from_json(value: Mapping[str, Any], text: str = "") -> Suggestion:
    """The suggestion that the database stores for a note with this text."""
    evidence = tuple(
        EvidenceInContext(s["start"], s["end"], text[s["start"] : s["end"]], s["score"], tuple(s.get("context", ())))
        for s in value["evidence"]
    )
    fields = (value[name] for name in ("system", "code", "description", "probability", "accepted"))
    return (UncertainSuggestion if value.get("uncertain") else Suggestion)(*fields, evidence=evidence)


@dataclass(frozen=True)
class Case:
    """An encounter: its row, its newest suggestions, the coder that made them, the state of its review, its documents.

    note["text"] is the text of all documents, see documents.py; note["encounter"] has what people have changed, too.
    """

    note: Mapping[str, Any]
    suggestions: Sequence[Suggestion]
    coder: RowMapping | None
    review: Review
    documents: tuple[Document, ...] = ()

    @property
    def current(self) -> list[Document]:
        """The documents that are neither corrected nor withdrawn."""
        return [document for document in self.documents if document.is_current]

    def is_blanked(self, start: int, end: int) -> bool:
        """Whether characters are in no current document."""
        return not any(start < part.end and part.start < end for part in self.current)

    @cached_property
    def suggested(self) -> Mapping[Code, Suggestion]:
        """The suggestions by code."""
        return {Code(item.system, item.code): item for item in self.suggestions}

    def evidence(self) -> dict[Code, list[Span]]:
        """The evidence spans of each code: those of the coder, then those that people marked."""
        spans = {
            code: [Span(span.start, span.end) for span in suggestion.evidence]
            for code, suggestion in self.suggested.items()
        }
        for item in self.review.chosen:
            replaced = spans.get(item.instead_of, []) if item.instead_of else []
            known = spans.setdefault(item.code, list(replaced))
            gone = self.review.removed.get(item.code, ())
            known[:] = spans_outside(known, gone)
            known.extend(span for span in item.evidence if span not in known)
        return spans


@lru_cache(maxsize=256)  # every decision loads the case again
def _suggestions(stored: str, text: str) -> tuple[Suggestion, ...]:
    return tuple(suggestion_from_json(value, text) for value in json.loads(stored))


def load_case(connection: Connection, note_id: int) -> Case:
    """The case of a note; NotFound if there is no such note."""
    note = connection.execute(_NOTE, {"note": note_id}).mappings().first()
    if note is None or note["status"] == DELETED:
        raise NotFound("there is no such note" if note is None else "the note was deleted")
    original = note  # whose documents, data and codings a copy for double coding has
    if note["double_of"] is not None:
        original = connection.execute(_NOTE, {"note": note["double_of"]}).mappings().one()
    rows = load_documents(connection, original["id"])
    coding = connection.execute(_CODING, {"note": original["id"]}).mappings().first()
    past = stored_decisions(connection.execute(_DECISIONS, {"note": note_id}).mappings())
    length = rows[-1]["start"] + rows[-1]["length"] if rows else 0
    review = replay(past, length=length, stored=True)
    text = encounter_text(rows, review.documents)
    parts = tuple(to_document(row, review.documents.get(row["id"], "current")) for row in rows)
    suggestions = _suggestions(coding["suggestions"], text) if coding else ()
    gone = [part for part in parts if not part.is_current]
    encounter = complete_encounter({**original["encounter"], **review.encounter})
    shown = [_outside(item, gone) for item in suggestions] if gone else suggestions
    row = {str(name): value for name, value in note.items()} | {"text": text, "encounter": encounter}
    row |= {name: original[name] for name in ("patient", "site", "lang")}
    return Case(row, shown, coding, review, parts)


def _outside(suggestion: Suggestion, gone: Sequence[Document]) -> Suggestion:
    """The suggestion without evidence in documents that do not count any more."""
    return replace(suggestion, evidence=spans_outside(suggestion.evidence, gone))


def record_decision(
    engine: Engine,
    note_id: int,
    action: str,
    details: Details,
    *,
    user: int | None,
    version: int,
    at: float | None = None,
) -> Case:
    """The case after a decision, which is then committed; see `record_decisions`."""
    return record_decisions(engine, note_id, [(action, details)], user=user, version=version, at=at)


def record_decisions(
    engine: Engine,
    note_id: int,
    taken: Sequence[tuple[str, Details]],
    *,
    user: int | None,
    version: int,
    at: float | None = None,
    case: Case | None = None,
) -> Case:
    """The case after decisions (action, details), all of which are then committed, or none.

    ConflictError if `version` is not the note's newest. The new state is computed before the database is locked. If
    two people decide on the same version, the unique pair (note, version) lets only one of them write. case: the note,
    if it is loaded already.
    """
    with read_transaction(engine) as connection:
        case = case or load_case(connection, note_id)
        states = _decide(connection, case, taken, user=user, version=version)
    try:
        with write_transaction(engine) as connection:
            for (action, details), after in zip(taken, states):
                _write_decision(connection, note_id, TakenDecision(action, details, user, at), after)
    except IntegrityError as error:  # somebody wrote the same version after our read
        with read_transaction(engine) as connection:
            raise ConflictError(_conflict_message(connection, note_id, states[0].version)) from error
    return replace(case, review=states[-1])


def record_decision_in(
    connection: Connection, note_id: int, action: str, details: Details, *, user: int | None, version: int
) -> None:
    """Writes a decision within the caller's transaction."""
    case = load_case(connection, note_id)
    (after,) = _decide(connection, case, [(action, details)], user=user, version=version)
    _write_decision(connection, note_id, TakenDecision(action, details, user), after)


def _decide(
    connection: Connection, case: Case, taken: Sequence[tuple[str, Details]], *, user: int | None, version: int
) -> list[Review]:
    """The state after each of the decisions on a case."""
    check_version(connection, case, version)
    after, states = case.review, []
    for action, details in taken:
        after = apply_decision(after, action, details, user, length=len(case.note["text"]))
        states.append(after)
        if action == "assign" and after.assignee is not None:
            can_code = select(users.c.id).where(users.c.id == after.assignee, *_CAN_CODE)
            if connection.scalar(can_code) is None:
                raise ReviewError("user must be the id of somebody who can sign in and code; got another number")
        if action == "accept" and parse_code(details) not in case.suggested:
            raise ReviewError("only what the coder has suggested can be accepted; add any other code")
    return states


class TakenDecision(NamedTuple):
    """A decision to write; user None: the triage rule. at: its time; None: now."""

    action: str
    details: Details
    user: int | None
    at: float | None = None


def _write_decision(connection: Connection, note_id: int, taken: TakenDecision, after: Review) -> None:
    """Appends the decision and updates the note's row in the queue.

    A decision about the documents or the data of an encounter is also one on its other coding, if there are two.
    """
    _append_decision(connection, note_id, taken, after)
    if taken.action not in SHARED_ACTIONS:
        return
    for other in connection.scalars(_OTHER_CODING, {"note": note_id}).all():
        case = load_case(connection, other)
        changed = apply_decision(case.review, *taken[:3], length=len(case.note["text"]))
        _append_decision(connection, other, taken, changed)


def _append_decision(connection: Connection, note_id: int, taken: TakenDecision, after: Review) -> None:
    """Appends the decision on one coding; after: the state that follows from it."""
    action, now = taken.action, change_clock.now() if taken.at is None else taken.at
    row = {"note_id": note_id, "version": after.version, "user_id": taken.user, "at": now, "action": action}
    connection.execute(_ADD_DECISION, {**row, "details": dict(taken.details)})
    summary: dict[str, Any] = {
        "version": after.version,
        "status": after.status,
        "assignee_id": after.assignee,
        "codes": len(after.chosen),
        "finished": now if after.status == "done" else None,
        "sent_back": bool(after.sent_back),
    }
    is_copy = action in SHARED_ACTIONS and connection.scalar(select(notes.c.double_of).where(notes.c.id == note_id))
    if action in ("document", "withdraw") and not is_copy:
        summary["coding"] = "waiting"
    if action == "encounter":
        known = connection.scalar(select(notes.c.encounter).where(notes.c.id == note_id)) or {}
        summary["encounter"] = {k: v for k, v in {**known, **after.encounter}.items() if v is not None}
    connection.execute(_SUMMARY, {"note": note_id, **summary})


def check_version(connection: Connection, case: Case, version: int) -> None:
    """Raises ConflictError if a version is not the newest of a note."""
    if case.review.version != version:
        raise ConflictError(_conflict_message(connection, case.note["id"], case.review.version))


def _conflict_message(connection: Connection, note_id: int, version: int) -> str:
    """The message for the person whose decision came second."""
    last = connection.execute(
        select(decisions.c.action, decisions.c.at, users.c.name)
        .join(users, users.c.id == decisions.c.user_id, isouter=True)
        .where(decisions.c.note_id == note_id, decisions.c.version == version)
    ).first()
    if last is None:
        return "the note has no such version"
    seconds = max(0, round(time.time() - last.at))
    ago = f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} min ago"
    name = last.name or "the triage rule"
    return f"{name} changed this note {ago} ({last.action}); your decision was not saved. This is the note as it is now"


def decision_history(connection: Connection, note_id: int) -> list[RowMapping]:
    """All decisions on a note with the name of the user, oldest first."""
    query = (
        select(decisions, users.c.name.label("user"))
        .join(users, users.c.id == decisions.c.user_id, isouter=True)
        .where(decisions.c.note_id == note_id)
        .order_by(decisions.c.version)
    )
    return list(connection.execute(query).mappings())


def count_by_status(connection: Connection) -> dict[str, int]:
    """The number of notes per status, without copies for double coding."""
    counts = {row.status: row.number for row in connection.execute(_STATUS_COUNTS)}
    copies = Counter(connection.scalars(_COPIES))
    return {status: left for status, number in counts.items() if (left := number - copies[status])}


def list_assignees(connection: Connection) -> tuple[Row, ...]:
    """The users to whom a note can be assigned: id, name, role."""
    return tuple(connection.execute(_ASSIGNEES))


def list_sites(connection: Connection) -> list[str]:
    """The sites of all notes."""
    return list(connection.scalars(_SITES))
