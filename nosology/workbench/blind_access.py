"""Who may see which coding of a note that two people code without knowledge of each other's codes.

A pair is a note and its copy (`notes.double_of`), which has the same text and suggestions and its own decisions. While
one of the two is not finished, each is open to its assignee only, or, if nobody has coded it, to people who do not know
the other one. Who has coded a note or has seen codes of it knows it; decisions and the audit log say who has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    Row,
    Select,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    union_all,
)

from nosology.core import NosologyError, ReviewError
from nosology.workbench.append_only import DELETED
from nosology.workbench.database import audit, decisions, notes
from nosology.workbench.review import SHARED_ACTIONS

CHOICE = "double coding"  # audit entries about pairs, of people who saw no code
CLOSED = "closed"
_WITHOUT_CODES = ("assign", *SHARED_ACTIONS)  # decisions of people who need not have seen a code
_original, _copy = notes.alias("original"), notes.alias("copy")
_is_open = and_(_copy.c.double_of > 0, _copy.c.status.not_in((CLOSED, DELETED)))  # by the index, unlike IS NOT NULL
_in_coding = and_(_is_open, or_(_copy.c.status != "done", _original.c.status != "done"))
_is_pair = _copy.c.double_of == _original.c.id
_SIDE = ("id", "ref", "status", "version", "assignee_id")
_note_of_copy = (
    select(func.coalesce(notes.c.double_of, notes.c.id)).where(notes.c.id == bindparam("note")).scalar_subquery()
)
_SIDES = [side.c[name].label(f"{prefix}_{name}") for prefix, side in (("o", _original), ("c", _copy)) for name in _SIDE]
_PAIR = select(*_SIDES).join(_copy, _is_pair).where(_copy.c.double_of == _note_of_copy, _copy.c.status != DELETED)


class BlindNote(NosologyError):
    """The codes of the note are hidden from the user until both codings are finished."""


@dataclass(frozen=True)
class CodingSide:
    """One coding of a pair."""

    id: int
    ref: str
    status: str
    version: int
    assignee: int | None


@dataclass(frozen=True)
class CodingPair:
    """A note and its copy."""

    original: CodingSide
    copy: CodingSide

    @property
    def phase(self) -> str:
        """coding, adjudication (both are finished) or closed."""
        if self.copy.status == CLOSED:
            return CLOSED
        return "adjudication" if self.original.status == self.copy.status == "done" else "coding"


def _pair(row: Row) -> CodingPair:
    values = row._mapping
    return CodingPair(*(CodingSide(*(values[f"{side}_{name}"] for name in _SIDE)) for side in ("o", "c")))


def load_pair(connection: Connection, note_id: int) -> CodingPair | None:
    """The pair of a note or a copy; None if it is not coded twice."""
    row = connection.execute(_PAIR, {"note": note_id}).first()
    return _pair(row) if row is not None else None


def list_pairs(connection: Connection) -> list[CodingPair]:
    """All pairs that are not closed, oldest first."""
    query = select(*_SIDES).join(_copy, _is_pair).where(_is_open).order_by(_copy.c.id)
    return [_pair(row) for row in connection.execute(query)]


def open_originals() -> Select[Any]:
    """The ids of notes whose final codes are not known: their double coding is not closed."""
    return select(_copy.c.double_of).where(_is_open)


def has_coded(side: FromClause, user: int) -> ColumnElement[bool]:
    """Whether a user is the assignee of a note or has decided on it."""
    decided = select(decisions.c.id).where(
        decisions.c.note_id == side.c.id, decisions.c.user_id == user, decisions.c.action.not_in(_WITHOUT_CODES)
    )
    return or_(side.c.assignee_id == user, decided.exists())


def _knows(side: FromClause, user: int) -> ColumnElement[bool]:
    """Whether a user has coded a note, or opened it when it had codes of somebody else."""
    since = select(func.min(decisions.c.at)).where(
        decisions.c.note_id == side.c.id,
        or_(decisions.c.user_id.is_(None), decisions.c.user_id != user),
        decisions.c.action.not_in(_WITHOUT_CODES),
    )
    opened = select(audit.c.id).where(
        audit.c.note_id == side.c.id,
        audit.c.user_id == user,
        audit.c.what != CHOICE,
        audit.c.at >= since.scalar_subquery(),
    )
    return or_(has_coded(side, user), opened.exists())


def barred_notes(user: int) -> CompoundSelect[Any]:
    """The ids of notes that a user must not code, because the user knows the other coding."""
    pairs = ((_original, _copy), (_copy, _original))
    return union_all(
        *(
            select(side.c.id).select_from(_copy.join(_original, _is_pair)).where(_is_open, _knows(other, user))
            for side, other in pairs
        )
    )


def is_barred(connection: Connection, note_id: int, user: int) -> bool:
    """Whether a user must not code a note."""
    found = barred_notes(user).subquery()
    return connection.scalar(select(found.c.id).where(found.c.id == note_id)) is not None


def is_listed(user: int) -> ColumnElement[bool]:
    """Whether the queue of a user has a note: copies are there only for people who can code them."""
    for_user = or_(notes.c.assignee_id == user, notes.c.assignee_id.is_(None))
    is_work = and_(notes.c.status.not_in(("done", CLOSED)), for_user, notes.c.id.not_in(barred_notes(user)))
    return or_(notes.c.double_of.is_(None), is_work)


def hidden_notes() -> CompoundSelect[Any]:
    """The ids of notes and copies of which one is not finished: each is open to its own coder only."""
    sides = (_original, _copy)
    return union_all(
        *(select(side.c.id).select_from(_copy.join(_original, _is_pair)).where(_in_coding) for side in sides)
    )


def shown_codes(user: int) -> ColumnElement[int]:
    """The number of codes of a note in the queue; 0 if they are hidden from the user."""
    is_hidden = and_(notes.c.id.in_(hidden_notes()), func.coalesce(notes.c.assignee_id, 0) != user)
    return case((is_hidden, 0), else_=notes.c.codes)


def check_readable(connection: Connection, note_id: int, user: int) -> CodingPair | None:
    """The pair of a note, if it has one; BlindNote if the user must not see the codes of the note yet."""
    pair = load_pair(connection, note_id)
    if pair is None or pair.phase != "coding":
        return pair
    side = pair.copy if note_id == pair.copy.id else pair.original
    if side.assignee == user:  # also if a new document has opened both codings again, when people had seen both
        return pair
    if is_barred(connection, side.id, user):
        raise BlindNote("you know the other coding of this note; it opens when both codings are finished")
    others = select(decisions.c.id).where(
        decisions.c.note_id == side.id,
        or_(decisions.c.user_id.is_(None), decisions.c.user_id != user),
        decisions.c.action.not_in(_WITHOUT_CODES),
    )
    if side.assignee is not None or connection.scalar(others.limit(1)) is not None:
        raise BlindNote("two people code this note independently; it opens when both codings are finished")
    return pair


def check_decision(
    connection: Connection, pair: CodingPair | None, note_id: int, action: str, assignee: int | None
) -> None:
    """Raises ReviewError for a decision that a note of a pair does not allow."""
    if pair is None:
        return
    if pair.phase == "adjudication" and action not in SHARED_ACTIONS:
        raise ReviewError("both codings are finished: the note waits for adjudication")
    if pair.phase == CLOSED and note_id == pair.copy.id:
        raise ReviewError("this copy is closed: its note has the final codes")
    if pair.phase == "coding" and action == "second":
        raise ReviewError("two people code this note already: their codes are compared when both are finished")
    if action == "assign" and assignee is not None and is_barred(connection, note_id, assignee):
        raise ReviewError("that person knows the other coding of this note")
