"""Cases: notes in the database with their suggestions and decisions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Engine, Row, RowMapping, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from nosology.core import Code, ConflictError, EvidenceSpan, Note, ReviewError, Span, Suggestion
from nosology.workbench.append_only import DELETED
from nosology.workbench.database import (
    batches,
    coders,
    codings,
    decisions,
    insert_row,
    notes,
    read_transaction,
    texts,
    users,
    write_transaction,
)
from nosology.workbench.review import Details, NotFound, Review, apply_decision, parse_code, replay

# Statements of every request are built once: building them takes SQLAlchemy longer than SQLite needs to run them.
_NOTE = select(notes, texts.c.text).join(texts, texts.c.note_id == notes.c.id).where(notes.c.id == bindparam("note"))
_CODING = (
    select(codings.c.suggestions, codings.c.made, *(c.label(f"coder_{c.name}") for c in coders.c))
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
_SUMMARY = update(notes).where(notes.c.id == bindparam("note"))
_STATUS_COUNTS = (
    select(notes.c.status, func.count().label("number")).where(notes.c.status != DELETED).group_by(notes.c.status)
)
_ASSIGNEES = select(users.c.id, users.c.name, users.c.role).where(users.c.disabled.is_(False)).order_by(users.c.name)
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
    """A note: its row with text, its newest suggestions, the coder that made them, and the state of its review."""

    note: RowMapping
    suggestions: Sequence[Suggestion]
    coder: RowMapping | None
    review: Review

    @property
    def suggested(self) -> dict[Code, Suggestion]:
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
            known[:] = [it for it in known if all(it.end <= span.start or span.end <= it.start for span in gone)]
            known.extend(span for span in item.evidence if span not in known)
        return spans


def create_batch(
    connection: Connection, name: str, user: int | None, total: int = 0, *, now: float | None = None
) -> int:
    """The id of a new batch."""
    created = time.time() if now is None else now
    row = {"name": name[:200], "user_id": user, "created": created, "status": "waiting", "total": total}
    return insert_row(connection, batches, row | {"known": 0})


def add_notes(
    connection: Connection, incoming: Sequence[Note], batch: int | None, *, now: float | None = None
) -> tuple[int, int]:
    """(notes added, notes skipped because their id exists already)."""
    by_ref: dict[str, Note] = {}
    for note in incoming:
        by_ref.setdefault(note.id[:200], note)
    refs = list(by_ref)
    for first in range(0, len(refs), 500):
        for ref in connection.scalars(select(notes.c.ref).where(notes.c.ref.in_(refs[first : first + 500]))):
            del by_ref[ref]
    if by_ref:
        rows = [
            {
                "ref": ref,
                "patient": note.patient,
                "site": note.site,
                "lang": note.lang,
                "encounter": dict(note.extra),
                "batch_id": batch,
                "received": time.time() if now is None else now,
                "coding": "waiting",
                "status": "new",
                "version": 0,
                "codes": 0,
            }
            for ref, note in by_ref.items()
        ]
        inserted = connection.execute(insert(notes).returning(notes.c.id, notes.c.ref), rows).all()
        values = [(row.id, by_ref[row.ref].text) for row in inserted]
        connection.execute(insert(texts), [{"note_id": i, "text": text, "length": len(text)} for i, text in values])
    return len(by_ref), len(incoming) - len(by_ref)


def load_case(connection: Connection, note_id: int) -> Case:
    """The case of a note; NotFound if there is no such note."""
    note = connection.execute(_NOTE, {"note": note_id}).mappings().first()
    if note is None:
        is_deleted = connection.scalar(select(notes.c.status).where(notes.c.id == note_id)) == DELETED
        raise NotFound("the note was deleted" if is_deleted else "there is no such note")
    coding = connection.execute(_CODING, {"note": note_id}).mappings().first()
    past = [(row.action, row.details, row.user_id) for row in connection.execute(_DECISIONS, {"note": note_id})]
    review = replay(past, length=len(note["text"]), stored=True)
    suggestions = [suggestion_from_json(value, note["text"]) for value in coding["suggestions"]] if coding else []
    return Case(note, suggestions, coding, review)


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
) -> Case:
    """The case after decisions (action, details), all of which are then committed, or none.

    ConflictError if `version` is not the note's newest. The new state is computed before the database is locked. If
    two people decide on the same version, the unique pair (note, version) lets only one of them write.
    """
    with read_transaction(engine) as connection:
        case, states = _decide(connection, note_id, taken, user=user, version=version)
    try:
        with write_transaction(engine) as connection:
            for (action, details), after in zip(taken, states):
                _write_decision(connection, note_id, action, details, after, user=user, at=at)
    except IntegrityError as error:  # somebody wrote the same version after our read
        with read_transaction(engine) as connection:
            raise ConflictError(_conflict_message(connection, note_id, states[0].version)) from error
    return replace(case, review=states[-1])


def record_decision_in(
    connection: Connection, note_id: int, action: str, details: Details, *, user: int | None, version: int
) -> None:
    """Writes a decision within the caller's transaction."""
    _, (after,) = _decide(connection, note_id, [(action, details)], user=user, version=version)
    _write_decision(connection, note_id, action, details, after, user=user)


def _decide(
    connection: Connection, note_id: int, taken: Sequence[tuple[str, Details]], *, user: int | None, version: int
) -> tuple[Case, list[Review]]:
    """The case before the decisions, and the state after each."""
    case = load_case(connection, note_id)
    if case.review.version != version:
        raise ConflictError(_conflict_message(connection, note_id, case.review.version))
    after, states = case.review, []
    for action, details in taken:
        after = apply_decision(after, action, details, user, length=len(case.note["text"]))
        states.append(after)
        if action == "assign" and after.assignee is not None:
            active = select(users.c.id).where(users.c.id == after.assignee, users.c.disabled.is_(False))
            if not connection.scalar(active):
                raise ReviewError("user must be the id of somebody who can sign in; got another number")
        if action == "accept" and parse_code(details) not in case.suggested:
            raise ReviewError("only what the coder has suggested can be accepted; add any other code")
    return case, states


def _write_decision(
    connection: Connection,
    note_id: int,
    action: str,
    details: Details,
    after: Review,
    *,
    user: int | None,
    at: float | None = None,
) -> None:
    """Appends the decision and updates the note's row in the queue."""
    now = time.time() if at is None else at
    row = {"note_id": note_id, "version": after.version, "user_id": user, "at": now, "action": action}
    connection.execute(_ADD_DECISION, {**row, "details": dict(details)})
    summary = {
        "version": after.version,
        "status": after.status,
        "assignee_id": after.assignee,
        "codes": len(after.chosen),
        "finished": now if after.status == "done" else None,
    }
    connection.execute(_SUMMARY, {"note": note_id, **summary})


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
    """The number of notes per status."""
    return {row.status: row.number for row in connection.execute(_STATUS_COUNTS)}


def list_assignees(connection: Connection) -> list[Row]:
    """The users to whom a note can be assigned: id, name, role."""
    return list(connection.execute(_ASSIGNEES))


def list_sites(connection: Connection) -> list[str]:
    """The sites of all notes."""
    return list(connection.scalars(_SITES))
