"""Endpoints of double coding: the choice of a note, the pairs in work, the agreement of coders."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field

from nosology.workbench.accounts import Forbidden, User
from nosology.workbench.api_errors import ERRORS
from nosology.workbench.api_fields import RequestBody, ResponseBody, example_body
from nosology.workbench.blind_access import list_pairs
from nosology.workbench.coder_agreement import agreement_tables, load_double_codings
from nosology.workbench.database import read_transaction
from nosology.workbench.double_coding import choose_note
from nosology.workbench.security import MAX_ID, AddressDep, DecideUser, ReadUser, RowId, ServicesDep

router = APIRouter(prefix="/api/v1", tags=["double coding"], responses=ERRORS)


class SecondCoder(RequestBody):
    """user: who codes the copy; null: anybody who does not know the codes of the note."""

    model_config = example_body(user=None)

    user: Annotated[int, Field(ge=1, le=MAX_ID)] | None = None


class NoteCopy(ResponseBody):
    """The id of the copy that the second person codes."""

    note: int


class CodingState(ResponseBody):
    """One coding of a note that two people code."""

    id: int
    ref: str
    status: str
    version: int
    assignee: int | None


class PairState(ResponseBody):
    """A note and its copy; phase: adjudication, once both are finished."""

    first: CodingState = Field(validation_alias="original")
    second: CodingState = Field(validation_alias="copy")
    phase: Literal["coding", "adjudication", "closed"]


class MeasuredValue(ResponseBody):
    """A measure with its 95% interval; null: undefined."""

    value: float | None
    low: float | None
    high: float | None


class MeasuredAgreement(ResponseBody):
    """Agreement of two people: percent, kappa and alpha over (note, code) pairs, alpha_sets over notes (MASI)."""

    notes: int
    units: int
    percent: MeasuredValue
    kappa: MeasuredValue
    alpha: MeasuredValue
    alpha_sets: MeasuredValue
    principal: MeasuredValue


class AgreementGroup(ResponseBody):
    """The agreement of a chapter, or of two people."""

    name: str
    title: str
    agreement: MeasuredAgreement


class DisagreementCount(ResponseBody):
    """A code of one person and the code of the other in its place, and the number of notes."""

    code: str
    other: str | None
    notes: int


class CoderAgreementReport(ResponseBody):
    """The agreement of coders in total, by chapter and by pair of people, and frequent disagreements."""

    total: MeasuredAgreement
    chapters: list[AgreementGroup]
    coders: list[AgreementGroup]
    disagreements: list[DisagreementCount]


def _require_reviewer(user: User) -> None:
    if not user.has_role("reviewer"):
        raise Forbidden("that is for people with the role reviewer")


@router.post("/notes/{note_id}/double", status_code=201)
def choose(services: ServicesDep, user: DecideUser, address: AddressDep, note_id: RowId, body: SecondCoder) -> NoteCopy:
    """Chooses a note for double coding."""
    _require_reviewer(user)
    return NoteCopy(note=choose_note(services.engine, user.id, note_id, address, body.user))


@router.get("/double")
def pairs(services: ServicesDep, user: ReadUser) -> list[PairState]:
    """The notes whose double coding is not closed, oldest first; without codes."""
    _require_reviewer(user)
    with read_transaction(services.engine) as connection:
        return [PairState.model_validate(pair) for pair in list_pairs(connection)]


@router.get("/agreement")
def agreement(services: ServicesDep, user: ReadUser) -> CoderAgreementReport:
    """The agreement of people who coded the same notes."""
    _require_reviewer(user)
    with read_transaction(services.engine) as connection:
        found = load_double_codings(connection)
    tables = agreement_tables(tuple(found))
    rows = [
        DisagreementCount(code=str(row.code), other=str(row.other) if row.other else None, notes=row.notes)
        for row in tables.disagreements
    ]
    return CoderAgreementReport(
        total=MeasuredAgreement.model_validate(tables.total),
        chapters=[AgreementGroup.model_validate(row) for row in tables.chapters],
        coders=[AgreementGroup.model_validate(row) for row in tables.coders],
        disagreements=rows,
    )
