"""Adjudication: a third person decides the differences of two codings of a note, which become its final codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from nosology.codes import describe
from nosology.core import Code, ConflictError, ReviewError
from nosology.workbench.accounts import Forbidden, User
from nosology.workbench.audit_log import log_access
from nosology.workbench.blind_access import CodingPair, load_pair
from nosology.workbench.cases import Case
from nosology.workbench.code_differences import CodeDifference, compare_codes
from nosology.workbench.database import read_transaction
from nosology.workbench.decision_checks import check_finished
from nosology.workbench.double_coding import (
    adjudication_details,
    check_adjudicator,
    load_codings,
    record_adjudication,
)
from nosology.workbench.replay import apply_decision
from nosology.workbench.review import NotFound
from nosology.workbench.services import Services
from nosology.workbench.views import CodeCard, build_panel


@dataclass(frozen=True)
class ShownDifference:
    """A difference with the card of each coding; None: that coding does not have the code."""

    difference: CodeDifference
    code: Code
    description: str
    first: CodeCard | None
    second: CodeCard | None


@dataclass(frozen=True)
class ShownPair:
    """Two codings side by side."""

    pair: CodingPair
    first: Case
    second: Case
    agreed: list[CodeCard]
    differences: list[ShownDifference]


def _load(connection: Connection, user: User, note_id: int) -> tuple[CodingPair, Case, Case]:
    """The pair of a note that waits for adjudication, and both codings; an error if the user cannot adjudicate it."""
    if not user.has_role("reviewer"):
        raise Forbidden("adjudication is for people with the role reviewer")
    pair = load_pair(connection, note_id)
    if pair is None or pair.original.id != note_id:
        raise NotFound("the note is not coded twice")
    if pair.phase != "adjudication":
        words = "is closed" if pair.phase == "closed" else "is not finished by both"
        raise ReviewError(f"the double coding of this note {words}")
    check_adjudicator(connection, pair, user.id)
    return pair, *load_codings(connection, pair)


def show_pair(services: Services, user: User, note_id: int, address: str) -> ShownPair:
    """Both codings of a note side by side; both accesses are logged."""
    with read_transaction(services.engine) as connection:
        pair, first, second = _load(connection, user, note_id)
    for case in (first, second):
        log_access(services.engine, user.id, "adjudication", case.note["id"], address)
    compared = compare_codes(first.review, second.review)
    cards = [{card.key: card for card in build_panel(case).chosen} for case in (first, second)]

    def shown(item: CodeDifference) -> ShownDifference:
        sides = [by_key.get(str(side.code)) if side else None for by_key, side in zip(cards, (item.first, item.second))]
        code = next(side.code for side in (item.first, item.second) if side)
        return ShownDifference(item, code, describe(code), *sides)

    agreed = [cards[0][str(item.code)] for item in compared.agreed]
    return ShownPair(pair, first, second, agreed, [shown(item) for item in compared.differences])


def adjudicate(
    services: Services, user: User, note_id: int, choices: Mapping[str, str], version: int, override: str = ""
) -> None:
    """Makes the choices of a user the final codes of a note and closes its copy.

    choices: first or second per name of a difference. ConflictError if `version` is not the note's newest.
    """
    with read_transaction(services.engine) as connection:
        _, first, second = _load(connection, user, note_id)
    if first.review.version != version:
        raise ConflictError("somebody else has changed the note; look at its codings again")
    details = adjudication_details(first, second, choices) | ({"override": override} if override else {})
    after = apply_decision(first.review, "adjudicate", details, user.id, length=len(first.note["text"]))
    check_finished(replace(first, review=after), details)
    record_adjudication(services.engine, first, second, details, user.id)
