"""The finished encounters of a filter as one stream, in constant memory.

Notes are read in small chunks, in the order of their ids. The audit log has an entry for each note, written before the
note is sent, and one with their number at the end, also if the client stops in the middle.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from fastapi.responses import StreamingResponse
from sqlalchemy import Engine, insert, select

from nosology.workbench.accounts import Forbidden, User
from nosology.workbench.audit_log import audit_entry, log_access
from nosology.workbench.blind_access import open_originals
from nosology.workbench.cases import decision_history, load_case
from nosology.workbench.change_clock import change_clock
from nosology.workbench.conversation import load_conversation
from nosology.workbench.database import read_transaction, write_transaction
from nosology.workbench.export import CSV_COLUMNS, csv_rows, to_fhir, to_json
from nosology.workbench.review import NotFound
from nosology.workbench.store_tables import audit, notes
from nosology.workbench.work_queue import QueueFilter

STREAMS = {  # (media type, suffix of the file name)
    "fhir": ("application/fhir+ndjson", "fhir.ndjson"),
    "csv": ("text/csv; charset=utf-8", "csv"),
    "json": ("application/x-ndjson", "ndjson"),
}
NEXT_SINCE = "nosology-next-since"  # the header with the `since` of the next export
_CHUNK = 20  # notes


def export_stream(engine: Engine, user: User, wanted: QueueFilter, form: str, address: str) -> StreamingResponse:
    """The notes of a filter in a format of STREAMS: one FHIR Bundle or JSON object per line, or a CSV row per code."""
    if not user.has_role("reviewer"):
        raise Forbidden("an export of many notes is for people with the role reviewer")
    if form not in STREAMS:
        raise NotFound(f"format must be one of {', '.join(STREAMS)}")
    media_type, suffix = STREAMS[form]
    headers = {
        "content-disposition": f'attachment; filename="notes.{suffix}"',
        NEXT_SINCE: repr(change_clock.settled()),
    }
    return StreamingResponse(_stream(engine, user, wanted, form, address), media_type=media_type, headers=headers)


def _stream(engine: Engine, user: User, wanted: QueueFilter, form: str, address: str) -> Iterator[str]:
    sent = 0
    try:
        if form == "csv":
            yield _csv_lines([CSV_COLUMNS])
        for ids in _chunks(engine, wanted, user.id):
            lines = [line for note_id in ids for line in _lines(engine, note_id, form)]
            with write_transaction(engine) as connection:
                entries = [audit_entry(user.id, f"bulk export {form}", note_id, address) for note_id in ids]
                connection.execute(insert(audit), entries)
            sent += len(ids)
            yield "".join(lines)
    finally:  # the client may stop reading
        log_access(engine, user.id, f"bulk export {form}", None, address, f"{sent:,} notes")


def _chunks(engine: Engine, wanted: QueueFilter, user: int) -> Iterator[list[int]]:
    """The ids of the notes, each once, whatever changes meanwhile."""
    last = 0
    while True:
        is_final = (notes.c.double_of.is_(None), notes.c.id.not_in(open_originals()))
        query = select(notes.c.id).where(*wanted.conditions(user), *is_final, notes.c.id > last)
        with read_transaction(engine) as connection:
            ids = list(connection.scalars(query.order_by(notes.c.id).limit(_CHUNK)))
        if not ids:
            return
        yield ids
        last = ids[-1]


def _lines(engine: Engine, note_id: int, form: str) -> list[str]:
    """The lines of a note; none if it was deleted a moment ago."""
    try:
        with read_transaction(engine) as connection:
            case = load_case(connection, note_id)
            history = decision_history(connection, note_id) if form != "csv" else []
            talk = load_conversation(connection, note_id) if form == "json" else None
    except NotFound:
        return []
    if form == "csv":
        return [_csv_lines(csv_rows(case))]
    value = to_fhir(case, history) if form == "fhir" else to_json(case, history, talk)
    return [json.dumps(value, ensure_ascii=False), "\n"]


def _csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()
