"""Pages for reviewers: queue, note, history, code book, import, measures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, File, Form, Query, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import select

from nosology.claims.encounter import coding_day
from nosology.core import Code, ConflictError, NosologyError, Note, ReviewError
from nosology.workbench import cases, coding, measures
from nosology.workbench.audit_log import shown_notes
from nosology.workbench.blind_access import load_pair
from nosology.workbench.bulk_export import export_stream
from nosology.workbench.conversation import load_conversation
from nosology.workbench.decision_checks import UnfinishedCodes
from nosology.workbench.decision_steps import shown_chances
from nosology.workbench.document_views import merge_evidence, past_documents, show_documents
from nosology.workbench.double_coding import count_finished_pairs
from nosology.workbench.encounter_data import editable_fields
from nosology.workbench.group_panel import build_group_panel
from nosology.workbench.page_html import PageContext, PageDep, ReviewerPage, capitalized, parse_id
from nosology.workbench.proposals import claim_evidence
from nosology.workbench.replay import stored_decisions
from nosology.workbench.review import MAX_OVERRIDE, NotFound
from nosology.workbench.second_review import second_reviews
from nosology.workbench.security import MAX_ID, RowId
from nosology.workbench.store_tables import documents, notes, users
from nosology.workbench.turnaround import ANSWERS, load_second_review, measure_conversation
from nosology.workbench.uploads import normalize_encounter, read_upload
from nosology.workbench.views import build_claim_panel, build_panel, code_book_page, import_notice, rank_siblings
from nosology.workbench.work_queue import PAGE_SIZE, QueueFilter, position, select_queue

router = APIRouter(include_in_schema=False)


def _queue_filter(values: Mapping[str, str]) -> QueueFilter:
    """The filter in the query of a URL."""
    names = ("status", "mine", "site", "order", "talk")
    status, mine, site, order, talk = (values.get(name, "")[:200] for name in names)
    return QueueFilter(status, mine, site, parse_id(values.get("batch", "")), order, talk)


@router.get("/")
def queue_page(page: PageDep, page_number: str = "0") -> HTMLResponse:
    """The work queue."""
    return _render_queue(page, _queue_filter(page.request.query_params), number=min(parse_id(page_number), 1_000_000))


@router.post("/find")
def find_note(page: PageDep, ref: Annotated[str, Form(max_length=200)] = "") -> Response:
    """The encounter of an id or of a document, or all whose id has it in it. A POST: an id may identify a patient."""
    ref = ref.strip()
    with page.reading() as connection:
        note_id = connection.scalar(select(notes.c.id).where(notes.c.ref == ref)) if ref else None
        if ref and note_id is None:
            note_id = connection.scalar(select(documents.c.note_id).where(documents.c.ref == ref))
    if note_id:
        return RedirectResponse(f"/notes/{note_id}", status_code=303)
    return _render_queue(page, QueueFilter(status="all", order="newest", ref=ref))


def _render_queue(page: PageContext, wanted: QueueFilter, *, number: int = 0) -> HTMLResponse:
    with page.reading() as connection:
        rows = select_queue(connection, wanted, page.user.id, page=number)
        counts, sites = cases.count_by_status(connection), cases.list_sites(connection)
        to_adjudicate = count_finished_pairs(connection) if page.user.has_role("reviewer") else 0
    page.log("queue", object=shown_notes(row.id for row in rows))
    return page.render(
        "queue.html",
        rows=rows,
        counts=counts,
        sites=sites,
        number=number,
        ref=wanted.ref,
        filters=wanted,
        to_adjudicate=to_adjudicate,
        more=len(rows) == PAGE_SIZE,
    )


@router.get("/export/{form}")
def export_finished(page: ReviewerPage, form: str) -> Response:
    """The finished notes of the filter as a file; the pre-accepted ones if the filter shows these."""
    wanted = _queue_filter(page.request.query_params)
    statuses = (wanted.status,) if wanted.status == "preaccepted" else ("done",)
    return export_stream(page.services.engine, page.user, replace(wanted, statuses=statuses), form, page.address)


@router.get("/next")
def next_page(page: PageDep, after: str = "") -> Response:
    """A redirect to the next note of the queue, or a page that says that there is none."""
    wanted = _queue_filter(page.request.query_params)
    note_id = page.services.next_note(page.user, wanted, parse_id(after))
    if note_id is not None:
        return RedirectResponse(f"/notes/{note_id}?{wanted.query}".rstrip("?"), status_code=303)
    skipped = page.services.next_note(page.user, wanted, 0) is not None
    return page.render("queue_end.html", filters=wanted, skipped=skipped)


@router.get("/notes/{note_id}")
def note_page(page: PageDep, note_id: RowId) -> HTMLResponse:
    """A note with its suggestions; the access is logged."""
    case = page.services.read_case(page.user, note_id, page.address)
    accepted = {Code(item.system, item.code) for item in case.suggestions if item.accepted}
    highlighted = {*case.review.codes, *accepted} - case.review.rejected.keys()
    shown = show_documents(case, merge_evidence(case.evidence(), claim_evidence(case)), highlighted)
    page.services.reservations.take(note_id, page.user.id)
    wanted = _queue_filter(page.request.query_params)
    with page.reading() as connection:
        reviewer = page.user.has_role("reviewer")
        place = position(connection, wanted, page.user.id, note_id, reviewer=reviewer)
    return _render_case(page, case, "note.html", wanted, shown=shown, place=place)


def _render_case(
    page: PageContext,
    case: cases.Case,
    template: str,
    wanted: QueueFilter,
    *,
    message: str = "",
    status: int = 200,
    override: str = "",
    **values: Any,
) -> HTMLResponse:
    with page.reading() as connection:
        people = cases.list_assignees(connection)
        values["talk"] = load_conversation(connection, case.note["id"])
        values["second"] = load_second_review(connection, case)
        values["pair"] = load_pair(connection, case.note["id"])
    values |= {"case": case, "panel": build_panel(case), "claim": build_claim_panel(case)}
    values |= {"people": people, "queue": wanted.query, "day": coding_day(case.note["encounter"])}
    values |= {"about": editable_fields(case.note["encounter"])}
    values |= {"groups": build_group_panel(case, page.services.drg_weights), "chances": shown_chances(case)}
    values |= {"message": message, "conflict": status == 409, "override": override}
    return page.render(template, status=status, **values)


@router.get("/notes/{note_id}/coded")
def is_coded(page: PageDep, note_id: RowId) -> Response:
    """A reload of the page once the note is coded. While it waits, the note is coded before all others."""
    with page.reading() as connection:
        coding = connection.scalar(select(notes.c.coding).where(notes.c.id == note_id))
    if coding != "waiting":
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    page.services.background.prioritize(note_id)
    return Response(status_code=204)


@router.post("/notes/{note_id}/decide")
def decide(
    page: PageDep,
    note_id: RowId,
    action: Annotated[str, Form(max_length=20)],
    version: Annotated[int, Form(ge=0, le=MAX_ID)],
    code: Annotated[str, Form(max_length=40)] = "",
    to: Annotated[str, Form(max_length=40)] = "",
    reason: Annotated[str, Form(max_length=40)] = "",
    poa: Annotated[str, Form(max_length=4)] = "",
    start: Annotated[int | None, Form(ge=0, le=MAX_ID)] = None,
    end: Annotated[int | None, Form(ge=0, le=MAX_ID)] = None,
    codes: Annotated[str, Form(max_length=20_000)] = "",
    assignee: Annotated[str, Form(max_length=20)] = "",
    override: Annotated[str, Form(max_length=500)] = "",
    document: Annotated[int | None, Form(ge=1, le=MAX_ID)] = None,
    encounter: Annotated[str, Form(max_length=2_000)] = "",
    explanation: Annotated[str, Form(max_length=MAX_OVERRIDE)] = "",
    percent: Annotated[int | None, Form(ge=0, le=100)] = None,
    key: Annotated[str, Form(max_length=64, pattern="^[A-Za-z0-9-]*$")] = "",
) -> HTMLResponse:
    """The panel after a decision; after a conflict, the panel with the other person's decision."""
    values = {"code": code, "to": to, "reason": reason, "poa": poa, "codes": _parse_list(codes)}
    values |= {"document": document, "encounter": _parse_list(encounter)}
    values["explanation"] = explanation
    values |= {name: value for name, value in (("override", override.strip()), ("key", key)) if value}
    values |= {name: value for name, value in (("start", start), ("end", end)) if value is not None}
    values["user"] = parse_id(assignee) or None
    values["threshold"] = None if percent is None else percent / 100
    message, status, gate = "", 200, ""
    try:
        case = page.services.decide(page.user, note_id, action, values, version)
    except ReviewError as error:
        is_conflict = isinstance(error, ConflictError)
        gate = action if isinstance(error, UnfinishedCodes) else ""
        message, status = f"{error}.", 409 if is_conflict else 422
        if not is_conflict:  # the message of a conflict starts with a name
            message = capitalized(message)
        case = page.services.read_case(page.user, note_id, page.address, "panel")  # it shows text of the note
    return render_panel(page, case, message=message, status=status, override=gate)


def render_panel(page: PageContext, case: cases.Case, **values: Any) -> HTMLResponse:
    """The panel of a case, for the page that sent the request."""
    current = page.request.headers.get("hx-current-url") or page.request.headers.get("referer", "")
    wanted = _queue_filter(dict(parse_qsl(urlsplit(current).query)))
    return _render_case(page, case, "panel.html", wanted, **values)


def _parse_list(raw: str) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


@router.get("/notes/{note_id}/history")
def history_page(page: PageDep, note_id: RowId) -> HTMLResponse:
    """The decisions on a note, and the coder's suggestions."""
    case = page.services.read_case(page.user, note_id, page.address, "history")
    with page.reading() as connection:
        rows = cases.decision_history(connection, note_id)
        people = {row.id: row.name for row in connection.execute(select(users.c.id, users.c.name))}
        past = past_documents(connection, case)
    reviews = [(item, rows[item.version - 1]) for item in second_reviews(stored_decisions(rows))]
    return page.render("history.html", case=case, rows=rows, people=people, past=past, reviews=reviews)


@router.get("/notes/{note_id}/export/{form}")
def export_note(page: PageDep, note_id: RowId, form: str) -> Response:
    """The coded encounter as a file."""
    return page.services.export(page.user, note_id, form, page.address)


@router.get("/codes/{system}/{code}")
def book_page(
    page: PageDep,
    system: str,
    code: str,
    instead_of: str = "",
    day: str = "",
    note: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> HTMLResponse:
    """A page of the code book; day: of the encounter, whose code set counts.

    note: the encounter whose code instead_of is to be changed; siblings that fit it stand first.
    """
    book = code_book_page(system, code, day[:10])
    chooser = page.services.siblings
    if chooser is not None and note is not None and ":" in instead_of:
        case = page.services.read_case(page.user, note, page.address, "siblings")
        book = rank_siblings(book, case, Code(*instead_of.split(":", 1)), chooser)
    return page.render("book.html", book=book, instead_of=instead_of[:40])


@router.get("/batches")
def batches_page(page: PageDep, before: str = "") -> HTMLResponse:
    """The import form, and the history of imports with their progress; before: only batches with a smaller id."""
    return _render_batches(page, before=before)


def _render_batches(
    page: PageContext, *, before: str = "", error: str = "", notice: str = "", pasted: tuple[str, str] = ("", "")
) -> HTMLResponse:
    """The imports; pasted: id and text of a note that could not be imported, to be corrected."""
    rows = coding.batch_progress(page.services.engine, parse_id(before) or None)
    more = len(rows) == coding.BATCHES_PER_PAGE
    return page.render("batches.html", batches=rows, more=more, error=error, notice=notice, pasted=pasted)


@router.get("/batches/rows")
def batch_rows(page: PageDep) -> HTMLResponse:
    """The table of batches, which the page polls."""
    return page.render("batch_rows.html", batches=coding.batch_progress(page.services.engine))


@router.post("/batches")
def upload_notes(
    page: PageDep,
    files: Annotated[list[UploadFile], File()] = [],  # noqa: B006 (FastAPI copies it)
    text: Annotated[str, Form(max_length=4_000_000)] = "",
    ref: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Imports files, or one note that was typed or pasted."""
    try:
        named = [(file.filename, file) for file in files if file.filename]
        incoming = [note for name, file in named for note in read_upload(name, file.file.read())]
        if text.strip():
            if not ref.strip():
                raise ReviewError("a pasted note needs an id")
            incoming.append(normalize_encounter(Note(ref.strip(), text.replace("\x00", " "))))
        if not incoming:
            raise ReviewError("choose a file, or paste a note")
        imported = page.services.import_notes(page.user, named[0][0] if named else ref, incoming, page.address)
    except NosologyError as error:
        return _render_batches(page, error=f"{error}.", pasted=(ref, text))
    if notice := import_notice(imported):
        changed = imported.added or imported.corrected or imported.withdrawn
        return _render_batches(page, notice=notice, pasted=("", "") if changed else (ref, text))
    return RedirectResponse("/batches", status_code=303)


@router.post("/batches/{batch}/{act}")
def change_batch(page: PageDep, batch: RowId, act: str) -> Response:
    """Cancels or resumes a batch."""
    if act not in ("cancel", "resume"):
        raise NotFound("there is no such page")
    page.services.change_batch(page.user, batch, act, page.address)
    return RedirectResponse("/batches", status_code=303)


@router.get("/measures")
def measures_page(page: PageDep) -> HTMLResponse:
    """Agreement between coder and reviewers, review time, drift."""
    with page.reading() as connection:
        reviewed = measures.load_reviewed_notes(connection)
        drift = measures.measure_drift(connection)
        talk = measure_conversation(connection)
    days, chapters = measures.agreement_by_day(reviewed), measures.agreement_by_chapter(reviewed)
    return page.render(
        "measures.html",
        notes=len(reviewed),
        total=measures.total_agreement(reviewed),
        seconds=measures.median([note.seconds for note in reviewed if note.seconds]),
        codes=measures.agreement_by_code(reviewed),
        chapters=chapters,
        chapter_bars=[(row.title, row.precision, row.recall) for row in chapters[:12]],
        drift=drift,
        talk=talk,
        answers=ANSWERS,
        daily_precision=[(day, value) for day, _, value, _ in days if value is not None],
        daily_seconds=[(day, value) for day, _, _, value in days],
    )
