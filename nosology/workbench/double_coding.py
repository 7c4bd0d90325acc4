"""Double coding: the choice of notes for it, the assignment of both codings, the final codes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update
from sqlalchemy.exc import IntegrityError

from nosology.core import ConfigError, ConflictError, ReviewError
from nosology.workbench.append_only import DELETED
from nosology.workbench.audit_log import log_access_in
from nosology.workbench.blind_access import (
    CHOICE,
    CodingPair,
    check_decision,
    has_coded,
    is_barred,
    list_pairs,
    load_pair,
)
from nosology.workbench.cases import Case, load_case, record_decision_in
from nosology.workbench.change_clock import change_clock
from nosology.workbench.code_differences import code_to_json, compare_codes, final_codes
from nosology.workbench.database import insert_row, read_transaction, write_transaction
from nosology.workbench.review import SHARED_ACTIONS, STATUSES, Details, NotFound
from nosology.workbench.store_settings import load_server_key, load_setting
from nosology.workbench.store_tables import decisions, notes

CHOOSABLE = ("new", "open", "held", "done")  # statuses of a note that can be chosen
_SHARED = ("patient", "site", "lang", "encounter", "received", "coding", "confidence")  # by a note and its copy


@dataclass(frozen=True)
class DoubleCodingRule:
    """The share of new notes, in percent, that are chosen at random for double coding."""

    percent: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.percent <= 100:
            raise ConfigError(f"the share of notes for double coding must lie in 0 to 100 %; got {self.percent:g}")

    def takes(self, note_id: int, key: bytes) -> bool:
        """Whether a note is chosen. It depends on the key of the store, so that nobody can tell from the id."""
        digest = hashlib.blake2b(str(note_id).encode(), key=key, digest_size=8, person=b"double").digest()
        return int.from_bytes(digest) < self.percent / 100 * 2**64


def load_double_coding_rule(connection: Connection) -> DoubleCodingRule:
    """The rule in force."""
    return DoubleCodingRule(**load_setting(connection, "double_coding"))


def sample_coded_notes(connection: Connection, note_ids: Collection[int]) -> None:
    """Chooses a random share of notes that were coded just now and that people will review."""
    rule = load_double_coding_rule(connection)
    if not rule.percent:
        return
    key = load_server_key(connection)
    taken = [note_id for note_id in note_ids if rule.takes(note_id, key)]
    is_new = (notes.c.id.in_(taken), notes.c.status.in_(("new", "open")), notes.c.double_of.is_(None))
    for row in connection.execute(select(notes).where(*is_new).order_by(notes.c.id)).all():
        if load_pair(connection, row.id) is None and not _is_second_due(connection, row):
            _add_copy(connection, row, None, "", f"a random share of {rule.percent:g} %")


def choose_note(engine: Engine, user: int, note_id: int, address: str, second_coder: int | None = None) -> int:
    """The id of the copy of a note for a second coding; second_coder: to whom it is assigned."""
    try:
        with write_transaction(engine) as connection:
            row = connection.execute(select(notes).where(notes.c.id == note_id, notes.c.status != DELETED)).first()
            if row is None:
                raise NotFound("there is no such note")
            if row.double_of is not None:
                raise ReviewError("this is the copy of a note for double coding already")
            if row.status not in CHOOSABLE:
                raise ReviewError(f"a note for double coding must not be {STATUSES[row.status]}")
            if row.coding == "waiting":
                raise ReviewError("the note is still being coded: choose it when its suggestions are there")
            if _is_second_due(connection, row):
                raise ReviewError("the note waits for the end of its second review: choose it when that is approved")
            copy = _add_copy(connection, row, user, address, "chosen by a reviewer")
            if second_coder is not None:
                version = connection.scalar(select(notes.c.version).where(notes.c.id == copy)) or 0
                _assign(connection, copy, version, second_coder, user)
            return copy
    except IntegrityError as error:
        raise ReviewError("the note is coded twice already") from error


def _is_second_due(connection: Connection, row: Row) -> bool:
    """Whether the second review of a note is not approved yet, which nobody could do who must not see its codes."""
    return bool(row.version) and load_case(connection, row.id).review.second_of is not None


def _add_copy(connection: Connection, row: Row, user: int | None, address: str, why: str) -> int:
    values = {name: getattr(row, name) for name in _SHARED} | {"ref": _copy_ref(connection, row)}
    values |= {"status": "new", "codes": 0, "double_of": row.id}
    shared = decisions.c.note_id == row.id, decisions.c.action.in_(SHARED_ACTIONS)
    past = connection.execute(select(decisions).where(*shared).order_by(decisions.c.version)).mappings().all()
    copy = insert_row(connection, notes, values | {"version": len(past)})
    for version, decision in enumerate(past, 1):
        known = {name: decision[name] for name in ("user_id", "at", "action", "details")}
        insert_row(connection, decisions, known | {"note_id": copy, "version": version})
    log_access_in(connection, user, CHOICE, row.id, address, f"copy {copy}: {why}")
    return copy


def _copy_ref(connection: Connection, row: Row) -> str:
    """An id of the copy that no note has."""
    for suffix in (" (second coding)", *(f" (second coding {row.id}.{number})" for number in range(100))):
        ref = row.ref[: 200 - len(suffix)] + suffix
        if connection.scalar(select(notes.c.id).where(notes.c.ref == ref)) is None:
            return ref
    raise ReviewError("the ids of notes leave none for a copy")


def _assign(connection: Connection, note_id: int, version: int, assignee: int | None, user: int) -> None:
    if assignee is not None and is_barred(connection, note_id, assignee):
        raise ReviewError("that person knows the other coding of this note")
    record_decision_in(connection, note_id, "assign", {"user": assignee}, user=user, version=version)


def assign_coding(engine: Engine, user: int, note_id: int, assignee: int | None, address: str) -> None:
    """Assigns one coding of a pair, without showing its codes."""
    with write_transaction(engine) as connection:
        row = connection.execute(select(notes).where(notes.c.id == note_id)).first()
        pair = load_pair(connection, note_id)
        if row is None or pair is None:
            raise NotFound("there is no such double coding")
        check_decision(connection, pair, note_id, "assign", assignee)
        _assign(connection, note_id, row.version, assignee, user)
        log_access_in(connection, user, CHOICE, note_id, address, "assigned" if assignee else "unassigned")


def count_finished_pairs(connection: Connection) -> int:
    """The number of pairs that wait for adjudication."""
    return sum(pair.phase == "adjudication" for pair in list_pairs(connection))


def close_if_agreed(engine: Engine, pair: CodingPair, user: int) -> bool:
    """Whether a pair was closed because its two finished codings have no difference."""
    try:
        with write_transaction(engine) as connection:
            now = load_pair(connection, pair.original.id)
            if now is None or now.phase != "adjudication":
                return False
            first, second = load_codings(connection, now)
            if compare_codes(first.review, second.review).differences:
                return False
            _close(connection, first, second, user)
    except (ConflictError, IntegrityError):  # somebody else closes it, or opens it again, at the same moment
        return False
    return True


def load_codings(connection: Connection, pair: CodingPair) -> tuple[Case, Case]:
    """The cases of both codings."""
    return load_case(connection, pair.original.id), load_case(connection, pair.copy.id)


def _close(connection: Connection, first: Case, second: Case, user: int) -> None:
    """Closes the copy; the version of the note says up to where its decisions are the first coding."""
    details = {"compared": first.review.version}
    record_decision_in(connection, second.note["id"], "close", details, user=user, version=second.review.version)
    # The codes of the note are final now: who asks for changes gets it, also if no code of it has changed.
    connection.execute(update(notes).where(notes.c.id == first.note["id"]).values(changed=change_clock.now()))


def check_adjudicator(connection: Connection, pair: CodingPair, user: int) -> None:
    """Raises ReviewError if a user has coded one of both."""
    mine = select(notes.c.id).where(notes.c.id.in_((pair.original.id, pair.copy.id)), has_coded(notes, user))
    if connection.scalar(mine.limit(1)) is not None:
        raise ReviewError("you have coded this note: adjudication is another person's task")


def adjudication_details(first: Case, second: Case, choices: Mapping[str, str]) -> dict[str, Any]:
    """The details of the decision that follows from choices; see `final_codes`."""
    final, differences = final_codes(first.review, second.review, choices)
    taken = [{"name": item.name, "kind": item.kind, "taken": choices[item.name]} for item in differences]
    return {"final": [code_to_json(item) for item in final], "choices": taken}


def record_adjudication(engine: Engine, first: Case, second: Case, details: Details, user: int) -> None:
    """Writes the final codes of a note and closes its copy, or nothing; ConflictError if somebody was faster."""
    try:
        with write_transaction(engine) as connection:
            version = first.review.version
            record_decision_in(connection, first.note["id"], "adjudicate", details, user=user, version=version)
            _close(connection, first, second, user)
    except IntegrityError as error:
        raise ConflictError("somebody else has adjudicated this note in the meantime") from error


def finished_pairs(engine: Engine, user: int) -> list[CodingPair]:
    """The pairs that wait for adjudication; those without a difference are closed first."""
    with read_transaction(engine) as connection:
        waiting = [pair for pair in list_pairs(connection) if pair.phase == "adjudication"]
    return [pair for pair in waiting if not close_if_agreed(engine, pair, user)]
