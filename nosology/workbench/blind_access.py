"""Who may see which coding of a note that two people code without knowledge of each other's codes.

A pair is a note and its copy (`notes.double_of`), which has the same text and suggestions and its own decisions. While
one of the two is not finished, each is open to its assignee only, or, if nobody has coded it, to people who do not know
the other one. Who has coded a note or has seen codes of it knows it; decisions and the audit log say who has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    and_,
    bindparam,
    func,
    or_,
    select,
)

from nosology.core import NosologyError, ReviewError
from nosology.workbench.append_only import DELETED
from nosology.workbench.review import SHARED_ACTIONS
from nosology.workbench.store_tables import audit, decisions, notes

CHOICE = "double coding"  # audit entries about pairs
FOUND = "find document"
_SAW_NO_CODE = (CHOICE, FOUND, "withdraw", "encounter")  # audit entries of people and programs that saw no code
CLOSED_PAIR = "closed"
_WITHOUT_CODES = ("assign", *SHARED_ACTIONS)  # decisions of people who need not have seen a code
_original, _copy = notes.alias("original"), notes.alias("copy")
_is_open = and_(
    _copy.c.double_of > 0, _copy.c.status.not_in((CLOSED_PAIR, DELETED))
)  # by the index, unlike IS NOT NULL
_is_pair = _copy.c.double_of == _original.c.id
_OPEN = select(_copy.c.double_of).where(_is_open)
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
        if self.copy.status == CLOSED_PAIR:
            return CLOSED_PAIR
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
    open_pairs = connection.scalars(_OPEN).all()
    query = select(*_SIDES).join(_copy, _is_pair).where(_original.c.id.in_(open_pairs)).order_by(_copy.c.id)
    return [_pair(row) for row in connection.execute(query)] if open_pairs else []


def open_originals() -> Select[Any]:
    """The ids of notes whose final codes are not known: their double coding is not closed."""
    return _OPEN


def has_coded(side: FromClause, user: int | BindParameter[int]) -> ColumnElement[bool]:
    """Whether a user is the assignee of a note or has decided on its codes."""
    decided = select(decisions.c.id).where(
        decisions.c.note_id == side.c.id, decisions.c.user_id == user, decisions.c.action.not_in(_WITHOUT_CODES)
    )
    return or_(side.c.assignee_id == user, decided.exists())


def _by_others(side_id: Any, user: int | BindParameter[int]) -> tuple[ColumnElement[bool], ...]:
    """The conditions of decisions of others on the codes of a note."""
    others = or_(decisions.c.user_id.is_(None), decisions.c.user_id != user)
    return decisions.c.note_id == side_id, others, decisions.c.action.not_in(_WITHOUT_CODES)


def _knows(side: FromClause, user: BindParameter[int]) -> ColumnElement[bool]:
    """Whether a user has coded a note, or opened it when it had codes of somebody else."""
    since = select(func.min(decisions.c.at)).where(*_by_others(side.c.id, user))
    opened = select(audit.c.id).where(
        audit.c.note_id == side.c.id,
        audit.c.user_id == user,
        audit.c.what.not_in(_SAW_NO_CODE),
        audit.c.at >= since.scalar_subquery(),
    )
    return or_(has_coded(side, user), opened.exists())


_KNOWN = (  # built once, as it is part of every request of the queue
    select(
        *_SIDES,
        _knows(_original, bindparam("user")).label("knows_original"),
        _knows(_copy, bindparam("user")).label("knows_copy"),
    )
    .join(_copy, _is_pair)
    .where(_is_open)
)
_KNOWN_OF_NOTES = _KNOWN.where(_original.c.id.in_(bindparam("notes", expanding=True)))
_KNOWN_OF_NOTE = _KNOWN.where(_copy.c.double_of == _note_of_copy)


@dataclass(frozen=True)
class PairAccess:
    """What double coding means for a user's queue.

    copies: that the user can code. barred: notes and copies that the user must not code. hidden: those whose number of
    codes the user must not see.
    """

    copies: frozenset[int] = frozenset()
    barred: frozenset[int] = frozenset()
    hidden: frozenset[int] = frozenset()


def load_access(connection: Connection, user: int) -> PairAccess:
    """The access of a user to the pairs that are not closed."""
    copies, barred, hidden = set(), set(), set()
    open_pairs = connection.scalars(open_originals()).all()  # usually few: their ids make the next query fast
    for row in connection.execute(_KNOWN_OF_NOTES, {"user": user, "notes": open_pairs}) if open_pairs else ():
        pair = _pair(row)
        barred |= {pair.original.id} if row.knows_copy else set()
        barred |= {pair.copy.id} if row.knows_original else set()
        if pair.copy.status != "done" and pair.copy.assignee in (None, user) and not row.knows_original:
            copies.add(pair.copy.id)
        if pair.phase == "coding":
            hidden |= {side.id for side in (pair.original, pair.copy) if side.assignee != user}
    return PairAccess(frozenset(copies), frozenset(barred), frozenset(hidden))


def hidden_notes(connection: Connection) -> set[int]:
    """The ids of notes and copies of which one is not finished: each is open to its own coder only."""
    in_coding = [pair for pair in list_pairs(connection) if pair.phase == "coding"]
    return {side.id for pair in in_coding for side in (pair.original, pair.copy)}


def is_barred(connection: Connection, note_id: int, user: int) -> bool:
    """Whether a user must not code a note, because the user knows the other coding."""
    row = connection.execute(_KNOWN_OF_NOTE, {"user": user, "note": note_id}).first()
    return row is not None and bool(row.knows_original if note_id == row.c_id else row.knows_copy)


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
    others = select(decisions.c.id).where(*_by_others(side.id, user))
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
    if pair.phase == CLOSED_PAIR and note_id == pair.copy.id:
        raise ReviewError("this copy is closed: its note has the final codes")
    if pair.phase == "coding" and action == "second":
        raise ReviewError("two people code this note already: their codes are compared when both are finished")
    if action == "assign" and assignee is not None and is_barred(connection, note_id, assignee):
        raise ReviewError("that person knows the other coding of this note")
