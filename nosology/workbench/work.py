"""Notes in the store: how they come in, how people decide on them, and what the queue shows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Engine, Row, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from nosology.core import Code, ConflictError, Note, ReviewError
from nosology.workbench.review import Missing, Review, code_in, decide, replay
from nosology.workbench.store.engine import reading, writing
from nosology.workbench.store.schema import audit, batches, coders, codings, decisions, notes, texts, users

ORDERS = ("oldest", "uncertain", "newest")
PAGE = 50
IN_HANDS = 15 * 60  # seconds for which a note that somebody has opened is not offered to others

# Statements of every request, made once: SQLAlchemy takes longer to put one together than SQLite to run it.
_NOTE = select(notes, texts.c.text).join(texts, texts.c.note_id == notes.c.id).where(notes.c.id == bindparam("note"))
_CODING = (
    select(codings.c.suggestions, codings.c.made, *(c.label(f"coder_{c.name}") for c in coders.c))
    .join(coders, coders.c.id == codings.c.coder_id)
    .where(codings.c.note_id == bindparam("note"))
    .order_by(codings.c.id.desc())
    .limit(1)
)
_PAST = (
    select(decisions.c.action, decisions.c.details, decisions.c.user_id)
    .where(decisions.c.note_id == bindparam("note"))
    .order_by(decisions.c.version)
)
_DECISION = insert(decisions)
_SUMMARY = update(notes).where(notes.c.id == bindparam("note"))
_TALLY = select(notes.c.status, func.count()).group_by(notes.c.status)
_NAMES = select(users.c.id, users.c.name, users.c.role).where(users.c.disabled.is_(False)).order_by(users.c.name)
_SITES = select(notes.c.site).where(notes.c.site.is_not(None)).distinct().order_by(notes.c.site)


@dataclass(frozen=True)
class Case:
    """A note as the workbench shows it: its row, the original suggestions, who coded it, and the state of review."""

    note: Mapping[str, Any]
    suggestions: Sequence[Mapping[str, Any]]
    coder: Mapping[str, Any] | None
    review: Review


def add_notes(
    connection: Connection, incoming: Sequence[Note], batch: int | None, *, now: float | None = None
) -> tuple[int, int]:
    """How many notes were added, and how many were known by their id already and stay as they are."""
    refs = [note.id[:200] for note in incoming]
    known: set[str] = set()
    for first in range(0, len(refs), 500):
        part = refs[first : first + 500]
        known.update(connection.scalars(select(notes.c.ref).where(notes.c.ref.in_(part))))
    rows, words = [], {}
    for ref, note in zip(refs, incoming):
        if ref in known:
            continue
        known.add(ref)
        words[ref] = note.text
        rows.append(
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
        )
    if rows:
        made = connection.execute(insert(notes).returning(notes.c.id, notes.c.ref), rows).all()
        values = [{"note_id": row.id, "text": words[row.ref], "length": len(words[row.ref])} for row in made]
        connection.execute(insert(texts), values)
    return len(rows), len(incoming) - len(rows)


def load_case(connection: Connection, note_id: int) -> Case:
    """The note with its newest suggestions and the state that its decisions make; Missing if there is none."""
    row = connection.execute(_NOTE, {"note": note_id}).mappings().first()
    if row is None:
        raise Missing("there is no such note")
    coding = connection.execute(_CODING, {"note": note_id}).mappings().first()
    past = [(act.action, act.details, act.user_id) for act in connection.execute(_PAST, {"note": note_id})]
    review = replay(past, length=len(row["text"]))
    return Case(row, coding["suggestions"] if coding else (), coding, review)


def record(
    engine: Engine,
    note_id: int,
    action: str,
    details: Mapping[str, Any],
    *,
    user: int | None,
    version: int,
    at: float | None = None,
) -> Case:
    """The note after a decision that is kept for good; ConflictError if `version` is not the note's any more.

    What the decision makes of the note is worked out before the store is locked. Of two people who decided on the same
    version, the unique pair (note, version) lets one write.
    """
    with reading(engine) as connection:
        case, after = _decided(connection, note_id, action, details, user=user, version=version)
    try:
        with writing(engine) as connection:
            _write(connection, note_id, action, details, after, user=user, at=at)
    except IntegrityError as error:  # somebody wrote the same version since we read
        with reading(engine) as connection:
            raise ConflictError(_who_was_faster(connection, note_id, after.version)) from error
    return replace(case, review=after)


def record_in(
    connection: Connection,
    note_id: int,
    action: str,
    details: Mapping[str, Any],
    *,
    user: int | None,
    version: int,
) -> None:
    """As `record`, within a transaction of the caller."""
    _, after = _decided(connection, note_id, action, details, user=user, version=version)
    _write(connection, note_id, action, details, after, user=user)


def _decided(
    connection: Connection, note_id: int, action: str, details: Mapping[str, Any], *, user: int | None, version: int
) -> tuple[Case, Review]:
    """The note as it is, and the state after the decision."""
    case = load_case(connection, note_id)
    if case.review.version != version:
        raise ConflictError(_who_was_faster(connection, note_id, case.review.version))
    after = decide(case.review, action, details, user, length=len(case.note["text"]))
    if action == "assign" and after.assignee is not None:
        _check_user(connection, after.assignee)
    if action == "accept" and code_in(details) not in {Code(s["system"], s["code"]) for s in case.suggestions}:
        raise ReviewError("only what the coder has suggested can be accepted; add any other code")
    return case, after


def _write(
    connection: Connection,
    note_id: int,
    action: str,
    details: Mapping[str, Any],
    after: Review,
    *,
    user: int | None,
    at: float | None = None,
) -> None:
    """Appends the decision, and brings the note's row in the queue to the state after it."""
    now = time.time() if at is None else at
    row = {"note_id": note_id, "version": after.version, "user_id": user, "at": now, "action": action}
    connection.execute(_DECISION, {**row, "details": dict(details)})
    summary = {
        "version": after.version,
        "status": after.status,
        "assignee_id": after.assignee,
        "codes": len(after.chosen),
        "finished": now if after.status == "done" else None,
    }
    connection.execute(_SUMMARY, {"note": note_id, **summary})


def _check_user(connection: Connection, user: int) -> None:
    if not connection.scalar(select(users.c.id).where(users.c.id == user, users.c.disabled.is_(False))):
        raise ReviewError("user must be somebody who can sign in; got another number")


def _who_was_faster(connection: Connection, note_id: int, version: int) -> str:
    """The sentence that a person reads whose decision came second."""
    last = connection.execute(
        select(decisions.c.action, decisions.c.at, users.c.name)
        .join(users, users.c.id == decisions.c.user_id, isouter=True)
        .where(decisions.c.note_id == note_id, decisions.c.version == version)
    ).first()
    if last is None:
        return "the note has no such version"
    seconds = max(0, round(time.time() - last.at))
    ago = f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} min ago"
    who = last.name or "the triage rule"
    return f"{who} changed this note {ago} ({last.action}); your decision was not made. Here is the note as it is now"


def history(connection: Connection, note_id: int) -> list[Mapping[str, Any]]:
    """Who did what when, oldest first."""
    found = connection.execute(
        select(decisions, users.c.name.label("user"))
        .join(users, users.c.id == decisions.c.user_id, isouter=True)
        .where(decisions.c.note_id == note_id)
        .order_by(decisions.c.version)
    )
    return list(found.mappings())


def queue(
    connection: Connection,
    *,
    statuses: Sequence[str] = (),
    assignee: int | None = None,
    unassigned: bool = False,
    site: str | None = None,
    batch: int | None = None,
    ref: str | None = None,
    order: str = "oldest",
    page: int = 0,
) -> list[Row]:
    """A page of the work queue; order: oldest, newest, or uncertain (the lowest confidence first)."""
    wanted = select(notes, users.c.name.label("assignee"))
    wanted = wanted.join(users, users.c.id == notes.c.assignee_id, isouter=True)
    if statuses:
        wanted = wanted.where(notes.c.status.in_(statuses))
    if assignee is not None:
        wanted = wanted.where(notes.c.assignee_id == assignee)
    if unassigned:
        wanted = wanted.where(notes.c.assignee_id.is_(None))
    if site:
        wanted = wanted.where(notes.c.site == site)
    if batch is not None:
        wanted = wanted.where(notes.c.batch_id == batch)
    if ref:
        wanted = wanted.where(notes.c.ref.icontains(ref, autoescape=True))
    return list(connection.execute(wanted.order_by(*_by(order)).limit(PAGE).offset(page * PAGE)))


def _by(order: str) -> tuple[Any, ...]:
    return {
        "oldest": (notes.c.received, notes.c.id),
        "newest": (notes.c.received.desc(), notes.c.id.desc()),
        # Notes that are not coded yet have no confidence: they come last.
        "uncertain": (notes.c.confidence.asc().nulls_last(), notes.c.id),
    }[order]


def next_note(connection: Connection, user: int, *, after: int = 0, order: str = "oldest") -> int | None:
    """The note to work on next: one's own before those of nobody, but none that somebody else has just opened."""
    wanted = select(notes.c.id).where(notes.c.status.in_(("new", "open")), notes.c.id != after)
    wanted = wanted.order_by(*_by(order)).limit(1)
    own = connection.scalar(wanted.where(notes.c.assignee_id == user))
    if own is not None:
        return int(own)
    opened = select(audit.c.note_id).where(audit.c.at > time.time() - IN_HANDS, audit.c.what == "note")
    opened = opened.where(audit.c.user_id != user, audit.c.note_id.is_not(None))
    free = wanted.where(notes.c.assignee_id.is_(None))
    return connection.scalar(free.where(notes.c.id.not_in(opened))) or connection.scalar(free)


def tally(connection: Connection) -> dict[str, int]:
    """How many notes have each status."""
    return dict(connection.execute(_TALLY).all())


def names(connection: Connection) -> list[Row]:
    """Everybody a note can be assigned to."""
    return list(connection.execute(_NAMES))


def sites(connection: Connection) -> list[str]:
    """The sites that notes come from."""
    return list(connection.scalars(_SITES))


def new_batch(connection: Connection, name: str, user: int | None, total: int = 0) -> int:
    """The number of a new batch."""
    found = connection.execute(
        insert(batches).values(name=name[:200], user_id=user, created=time.time(), status="waiting", total=total)
    )
    return int(found.inserted_primary_key[0])
