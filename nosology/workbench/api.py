"""The JSON API, described at /api/openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Body, Path, Query
from fastapi.responses import Response
from sqlalchemy import func, select

from nosology.claims.claim import Claim, build_claim
from nosology.claims.code_search import search_codes
from nosology.claims.encounter import Encounter
from nosology.core import Note, ReviewError
from nosology.workbench import api_fields, api_requests, api_responses, measures
from nosology.workbench.api_errors import CONFLICT, ERRORS, FILE
from nosology.workbench.audit_log import log_access, shown_notes
from nosology.workbench.cases import count_by_status, decision_history
from nosology.workbench.change_feed import changed_notes, queue_page, to_seconds
from nosology.workbench.coding import batch_progress
from nosology.workbench.database import read_transaction
from nosology.workbench.encounter_services import ImportedNotes
from nosology.workbench.proposals import propose_claim
from nosology.workbench.security import (
    MAX_ID,
    AddressDep,
    CodeUser,
    DecideUser,
    ExportUser,
    ImportUser,
    ReadUser,
    RowId,
    ServicesDep,
)
from nosology.workbench.store_tables import notes
from nosology.workbench.stored_claims import for_claim
from nosology.workbench.uploads import coder_columns, normalize_encounter, read_documents
from nosology.workbench.views import build_panel, code_book_page
from nosology.workbench.work_queue import PAGE_SIZE, QueueFilter

COLUMNS_OF_NOTE = {"id", "text", "patient", "site", "lang", "columns"}  # the other fields are about the encounter
router = APIRouter(prefix="/api/v1", tags=["workbench"], responses=ERRORS)


@router.get("/notes")
def list_notes(
    services: ServicesDep,
    user: ReadUser,
    address: AddressDep,
    status: Annotated[list[api_fields.NoteStatus], Query(max_length=10)] = [],  # noqa: B006 (FastAPI copies it)
    mine: bool = False,
    site: Annotated[api_fields.NoNul | None, Query(max_length=200)] = None,
    batch: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
    order: Literal["oldest", "uncertain", "newest", "changed"] = "oldest",
    page: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: api_fields.Limit = PAGE_SIZE,
    since: api_fields.Since = None,
    until: api_fields.Until = None,
    cursor: api_fields.Cursor = None,
) -> api_responses.QueuePage:
    """A page of the work queue; mine: only notes assigned to the user of the token.

    order=changed: by the time of the last change, with deleted notes, for a copy that is kept up to date. Read the
    pages with `cursor`: none is missed or twice, unless it has changed again. The other orders have page numbers.
    """
    wanted = QueueFilter(
        mine="me" if mine else "",
        site=site or "",
        batch=batch or 0,
        order=order,
        statuses=tuple(status),
        since=to_seconds(since),
        until=to_seconds(until),
    )
    if order == "changed":
        if page:
            raise ReviewError("page must be 0 with order=changed; give cursor")
        found = changed_notes(services.engine, wanted, user.id, cursor=cursor, limit=limit)
    elif cursor is not None:
        raise ReviewError("cursor must be given with order=changed")
    else:
        found = queue_page(services.engine, wanted, user.id, page=page, limit=limit)
    with read_transaction(services.engine) as connection:
        counts = count_by_status(connection)
    log_access(services.engine, user.id, "queue", None, address, shown_notes(row.id for row in found.rows))
    rows = [api_responses.QueuedNote.model_validate(row) for row in found.rows]
    return api_responses.QueuePage(counts=counts, notes=rows, total=found.total, pages=found.pages, next=found.next)


@router.post("/notes", status_code=202)
def add_notes(
    services: ServicesDep, user: ImportUser, address: AddressDep, body: api_requests.NewBatch
) -> ImportedNotes:
    """Imports documents and codes their encounters in the background.

    Documents of the same encounter are coded together. One with a known id is skipped, or corrected by another text.
    """
    incoming = [
        normalize_encounter(
            Note(
                item.id.strip(),
                item.text,
                patient=item.patient,
                site=item.site,
                lang=item.lang,
                extra=item.columns | item.model_dump(exclude=COLUMNS_OF_NOTE, exclude_none=True),
            )
        )
        for item in body.notes
    ]
    return services.import_notes(user, body.name, incoming, address)


@router.post("/fhir", status_code=202)
def add_fhir(
    services: ServicesDep,
    user: ImportUser,
    address: AddressDep,
    body: Annotated[dict[str, Any], Body(examples=[api_requests.FHIR_EXAMPLE])],
) -> ImportedNotes:
    """Imports a FHIR DocumentReference, or a Bundle of them; one that was entered in error is withdrawn."""
    return services.import_notes(user, "FHIR", read_documents(body, "the body"), address)


@router.get("/notes/{note_id}")
def read_note(services: ServicesDep, user: ReadUser, address: AddressDep, note_id: RowId) -> api_responses.NoteDetail:
    """An encounter with its text, suggestions and review; the access is logged."""
    case = services.read_case(user, note_id, address)
    panel, review = build_panel(case), case.review
    columns = ("id", "ref", "text", "patient", "site", "encounter", "coding", "confidence")
    return api_responses.NoteDetail.model_validate(
        {name: case.note[name] for name in columns}
        | {
            "status": review.status,
            "version": review.version,
            "assignee": review.assignee,
            "codes": review.chosen,
            "rejected": review.rejected,
            "suggestions": case.suggestions,
            "checks": panel.issues,
            "groups": panel.groups,
            "documents": case.documents,
        }
    )


@router.post("/notes/{note_id}/decisions", responses=CONFLICT)
def decide(
    services: ServicesDep, user: DecideUser, note_id: RowId, body: api_requests.NewDecision
) -> api_responses.DecidedNote:
    """Records a decision. A response with status 200 means that it is on disk."""
    values = body.model_dump(exclude={"action", "version"}, exclude_unset=True)
    review = services.decide(user, note_id, body.action, values, body.version).review
    return api_responses.DecidedNote.model_validate(review)


@router.get("/notes/{note_id}/decisions")
def list_decisions(
    services: ServicesDep, user: ReadUser, address: AddressDep, note_id: RowId
) -> list[api_responses.PastDecision]:
    """The history of a note."""
    services.read_case(user, note_id, address, "history")
    with read_transaction(services.engine) as connection:
        rows = decision_history(connection, note_id)
    return [api_responses.PastDecision.model_validate(dict(row)) for row in rows]


@router.get("/notes/{note_id}/export", response_class=Response, responses={200: FILE})
def export_note(
    services: ServicesDep,
    user: ExportUser,
    address: AddressDep,
    note_id: RowId,
    format: Literal["fhir", "csv", "json"] = "fhir",
) -> Response:
    """The coded encounter as a file."""
    return services.export(user, note_id, format, address)


@router.post("/code")
async def code_text(
    services: ServicesDep, user: CodeUser, address: AddressDep, body: api_requests.TextToCode
) -> api_responses.CodedText:
    """The suggestions for a text, which is not stored."""
    size = f"a text of {len(body.text):,} characters"
    await to_thread.run_sync(log_access, services.engine, user.id, "code", None, address, size)
    note = Note("", body.text, extra=coder_columns(body.columns))
    # In threads of their own: the threads of the pages must not wait for the coder.
    (coded,) = await to_thread.run_sync(services.pool.code, [note], limiter=services.coding_limiter)
    return api_responses.CodedText.model_validate(coded)


@router.get("/notes/{note_id}/claim", response_model_exclude_unset=True)
def read_claim(
    services: ServicesDep, user: ReadUser, address: AddressDep, note_id: RowId
) -> api_responses.ProposedClaim:
    """The claim that the suggestions of a note and its encounter lead to, whatever people have decided."""
    case = services.read_case(user, note_id, address, "claim")
    return api_responses.ProposedClaim.model_validate(propose_claim(case).to_json())


@router.post("/claim", response_model_exclude_unset=True)
async def claim_text(
    services: ServicesDep, user: CodeUser, address: AddressDep, body: api_requests.TextToClaim
) -> api_responses.ProposedClaim:
    """The claim for a text, which is not stored."""
    size = f"a text of {len(body.text):,} characters"
    await to_thread.run_sync(log_access, services.engine, user.id, "claim of a text", None, address, size)
    stated = body.model_dump(exclude={"id", "text", "columns"}, exclude_none=True)
    Encounter.of("", stated)  # a date without a code set is refused before the text is coded
    note = Note(body.id, body.text, extra=coder_columns(body.columns | stated))

    def build() -> Claim:
        (coded,) = services.pool.code([note])
        return build_claim(body.id, body.text, for_claim(coded.suggestions), stated, chooser=services.siblings)

    claim = await to_thread.run_sync(build, limiter=services.coding_limiter)
    return api_responses.ProposedClaim.model_validate(claim.to_json())


@router.post("/codes/search")
def search(user: CodeUser, body: api_requests.CodeQuery) -> list[api_responses.FoundCode]:
    """Codes for words or a code on a date; of procedures with open characters, the choices.

    A POST, because the words may be those of a note.
    """
    lines = search_codes(body.query, body.system, body.date.isoformat() if body.date else "")
    return [api_responses.FoundCode.model_validate(line) for line in lines]


@router.get("/codes/{system}/{code}")
def read_code(
    user: CodeUser, system: api_fields.CodeSystem, code: Annotated[str, Path(max_length=20)]
) -> api_responses.TabularLine:
    """A line of the tabular list with its notes."""
    page = code_book_page(system, code)
    return api_responses.TabularLine(
        system=system,
        release=page.release,
        code=page.code,
        description=page.description,
        billable=page.billable,
        ancestors=[line.code for line in page.ancestors],
        siblings=[line.code for line in page.siblings],
        children=[line.code for line in page.children],
        notes={
            title: [api_responses.TabularNote(line=line, note=note) for line, note in rows]
            for title, rows in page.notes
        },
    )


@router.get("/batches")
def list_batches(services: ServicesDep, user: ReadUser) -> list[api_responses.BatchProgress]:
    """The newest batches with the progress of coding."""
    return [api_responses.BatchProgress.model_validate(row) for row in batch_progress(services.engine)]


@router.post("/batches/{batch}/{act}")
def change_batch(
    services: ServicesDep, user: ImportUser, address: AddressDep, batch: RowId, act: Literal["cancel", "resume"]
) -> api_responses.BatchChange:
    """Cancels or resumes a batch."""
    services.change_batch(user, batch, act, address)
    return api_responses.BatchChange(status=act)


@router.get("/measures")
def read_measures(services: ServicesDep, user: ReadUser) -> api_responses.AgreementReport:
    """The agreement between coder and reviewers, and the drift of incoming notes."""
    with read_transaction(services.engine) as connection:
        reviewed = measures.load_reviewed_notes(connection)
        drift = measures.measure_drift(connection)
        is_coded = (notes.c.coding == "done", notes.c.double_of.is_(None))
        coded = connection.scalar(select(func.count()).where(*is_coded)) or 0
    total = measures.total_agreement(reviewed)
    return api_responses.AgreementReport(
        notes=len(reviewed),
        coded=coded,
        kept=total.precision,
        found=total.recall,
        median_seconds=measures.median([note.seconds for note in reviewed if note.seconds]),
        codes=[api_responses.CodeAgreement.model_validate(row) for row in measures.agreement_by_code(reviewed)],
        drift=[api_responses.DriftIndex.model_validate(row) for row in drift],
    )
