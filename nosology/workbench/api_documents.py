"""The JSON API of encounters and their documents: find, withdraw, change the data of an encounter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from nosology.workbench.api_errors import CONFLICT, ERRORS
from nosology.workbench.api_fields import NoNul, RequestBody, ResponseBody, example_body
from nosology.workbench.api_requests import EncounterChange
from nosology.workbench.api_responses import EncounterDocument
from nosology.workbench.audit_log import log_access
from nosology.workbench.blind_access import FOUND
from nosology.workbench.encounter_services import change_encounter, find_document, withdraw
from nosology.workbench.security import AddressDep, ImportUser, RowId, ServicesDep

router = APIRouter(prefix="/api/v1", tags=["documents"], responses=ERRORS)


class DocumentQuery(RequestBody):
    """The id of a document, as it was imported."""

    model_config = example_body(ref="MRN-1")

    ref: Annotated[NoNul, Field(min_length=1, max_length=200)]


class FoundDocument(EncounterDocument):
    """A document and its encounter."""

    note_id: int


class ChangedEncounter(ResponseBody):
    """An encounter after a change of its documents or data."""

    id: int
    ref: str
    status: str
    version: int
    coding: Literal["waiting", "done", "failed", "cancelled"]
    encounter: dict[str, Any]
    documents: list[EncounterDocument]


@router.post("/documents/find")
def find(services: ServicesDep, user: ImportUser, address: AddressDep, body: DocumentQuery) -> FoundDocument:
    """The newest version of a document by its id. A POST, because an id may identify a patient."""
    note_id, document = find_document(services.engine, body.ref)
    log_access(services.engine, user.id, FOUND, note_id, address, f"document {document.id}")
    return FoundDocument(**EncounterDocument.model_validate(document).model_dump(), note_id=note_id)


@router.delete("/documents/{document}", responses=CONFLICT)
def withdraw_document(
    services: ServicesDep, user: ImportUser, address: AddressDep, document: RowId
) -> ChangedEncounter:
    """Withdraws a document: its text is not used any more, and its encounter is coded again; the history keeps it."""
    case = withdraw(services.engine, user, document, address)
    services.background.notify()
    return _changed(case)


@router.patch("/notes/{note_id}/encounter", responses=CONFLICT)
def patch_encounter(
    services: ServicesDep, user: ImportUser, address: AddressDep, note_id: RowId, body: EncounterChange
) -> ChangedEncounter:
    """Changes data of an encounter; null clears a field. A finished encounter is open again."""
    wanted = body.model_dump(exclude_unset=True)
    return _changed(change_encounter(services.engine, user, note_id, wanted, address))


def _changed(case: Any) -> ChangedEncounter:
    row = {name: case.note[name] for name in ("id", "ref", "coding", "encounter")}
    return ChangedEncounter.model_validate(
        row | {"status": case.review.status, "version": case.review.version, "documents": case.documents}
    )
