"""Documents that arrive: new encounters, late documents of known ones, corrected texts, and withdrawals."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from nosology.claims.encounter_values import merge_fields
from nosology.core import DataError, Note, ReviewError
from nosology.workbench.cases import Case, load_case, record_decision_in
from nosology.workbench.database import insert_row
from nosology.workbench.documents import document_row, next_start
from nosology.workbench.encounter_data import complete_encounter
from nosology.workbench.review import NotFound
from nosology.workbench.store_tables import batches, documents, notes

_CHUNK = 500  # ids per query
_OF_DOCUMENT = ("document", "document_date", "encounter", "withdrawn")  # columns of a document, not of its encounter
_COLUMNS = [column for column in documents.c if column.name != "text"]


@dataclass
class ImportCounts:
    """What an import did with its documents: added, skipped as known, corrected, withdrawn; and new encounters."""

    encounters: int = 0
    added: int = 0
    known: int = 0
    corrected: int = 0
    withdrawn: int = 0


@dataclass
class DocumentImport:
    """The import of documents within a transaction, by a user, as a batch."""

    connection: Connection
    user: int | None
    batch: int | None
    counts: ImportCounts = field(default_factory=ImportCounts)

    def run(self, incoming: Sequence[Note]) -> ImportCounts:
        """What was done with documents that are imported.

        One with a known id and the same text is skipped; with another text it is a correction.
        """
        latest = _latest_versions(self.connection, (note.id[:200] for note in incoming))
        encounters = _known_encounters(self.connection, map(encounter_ref, incoming))
        new: dict[str, Note] = {}
        others: list[Note] = []
        for note in incoming:
            ref = note.id[:200]
            is_new = ref not in latest and ref not in new and encounter_ref(note) not in encounters
            if is_new and not note.extra.get("withdrawn"):
                new[ref] = note
            else:
                others.append(note)
        self.counts.added, _ = add_notes(self.connection, list(new.values()), self.batch)
        self.counts.encounters = len(set(map(encounter_ref, new.values())))
        latest |= _latest_versions(self.connection, (note.id[:200] for note in others if note.id[:200] in new))
        encounters |= _known_encounters(self.connection, map(encounter_ref, others))
        for note in others:
            self._update(note, latest, encounters)
        return self.counts

    def _update(self, note: Note, latest: dict[str, Row], encounters: Mapping[str, Row]) -> None:
        """Imports a document whose id or encounter is known. It stays in the encounter to which it came first."""
        ref, known = note.id[:200], latest.get(note.id[:200])
        if note.extra.get("withdrawn"):
            if known is not None and _withdraw(self.connection, known.note_id, known.id, self.user, "entered in error"):
                self.counts.withdrawn += 1
            else:
                self.counts.known += 1
        elif known is None:
            latest[ref] = self._append(note, encounters[encounter_ref(note)].id)
            self.counts.added += 1
        elif known.length == len(note.text) and self._text(known.id) == note.text:
            self.counts.known += 1
        else:
            latest[ref] = self._append(note, known.note_id, known)
            self.counts.corrected += 1

    def _text(self, document: int) -> str | None:
        return self.connection.scalar(select(documents.c.text).where(documents.c.id == document))

    def _append(self, note: Note, note_id: int, known: Row | None = None) -> Row:
        """Appends a document to an encounter, or the next version of one, and has the encounter coded again."""
        case = load_case(self.connection, note_id)
        _check_patient(case, note)
        version = known.version + 1 if known is not None else 1
        row = document_row(note, note_id, self.batch, next_start(case.note["text"]), time.time(), version)
        if known is not None:
            row |= {"kind": row["kind"] if row["kind"] != "other" else known.kind, "title": row["title"] or known.title}
        number = insert_row(self.connection, documents, row)
        details: dict[str, Any] = {"document": number, "ref": row["ref"], "kind": row["kind"]}
        if known is not None and known.id not in case.review.documents:
            details |= {"replaces": known.id, "start": known.start, "end": known.start + known.length}
        values, changes = self._stated(case, note)
        details |= {"changes": changes} if changes else {}
        record_decision_in(self.connection, note_id, "document", details, user=self.user, version=case.review.version)
        # After the decision: people who decide lock in this order, too.
        self.connection.execute(update(notes).where(notes.c.id == note_id).values(**values))
        return self.connection.execute(select(*_COLUMNS).where(documents.c.id == number)).one()

    def _stated(self, case: Case, note: Note) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """New values of the encounter's row by what a document states, and the changes; what people have set stays."""
        stated = encounter_fields(note)
        known = self.connection.scalar(select(notes.c.encounter).where(notes.c.id == case.note["id"])) or {}
        new = {name: value for name, value in stated.items() if name not in case.review.encounter}
        merged = merge_fields([known, new])
        values: dict[str, Any] = {"encounter": merged}
        for name in ("patient", "site", "lang"):
            if not case.note[name] and getattr(note, name):
                values[name] = getattr(note, name)
        before, after = case.note["encounter"], complete_encounter({**merged, **case.review.encounter})
        changed = [name for name in after if name != "title" and before.get(name) != after[name]]
        return values, {name: [before.get(name), after[name]] for name in changed}


def withdraw_document(connection: Connection, document: int, user: int, reason: str = "") -> int:
    """The encounter of a document that is withdrawn now; ReviewError if it is not current."""
    note_id = connection.scalar(select(documents.c.note_id).where(documents.c.id == document))
    if note_id is None:
        raise NotFound("there is no such document")
    if not _withdraw(connection, note_id, document, user, reason):
        raise ReviewError("the document was withdrawn or corrected already")
    return note_id


def _withdraw(connection: Connection, note_id: int, document: int, user: int | None, reason: str) -> bool:
    """Withdraws a document; False if it is not current."""
    case = load_case(connection, note_id)
    details = withdrawal_details(case, document, reason)
    if details:
        record_decision_in(connection, note_id, "withdraw", details, user=user, version=case.review.version)
    return bool(details)


def withdrawal_details(case: Case, document: object, reason: str = "") -> dict[str, Any]:
    """The details of the decision that withdraws a document; {} if the encounter has no such current document."""
    found = next((it for it in case.current if it.id == document), None)
    if found is None:
        return {}
    details = {"document": found.id, "ref": found.ref, "start": found.start, "end": found.end}
    return details | ({"reason": reason} if reason else {})


def _check_patient(case: Case, note: Note) -> None:
    if note.patient and case.note["patient"] and note.patient != case.note["patient"]:
        raise DataError(f"the document {note.id} is of another patient than the encounter {case.note['ref']}")


def _latest_versions(connection: Connection, refs: Iterable[str]) -> dict[str, Row]:
    """The newest version of each document that is known."""
    wanted, found = list(dict.fromkeys(refs)), {}
    for first in range(0, len(wanted), _CHUNK):
        query = select(*_COLUMNS).where(documents.c.ref.in_(wanted[first : first + _CHUNK]))
        found |= {row.ref: row for row in connection.execute(query.order_by(documents.c.version))}
    return found


def _known_encounters(connection: Connection, refs: Iterable[str]) -> dict[str, Row]:
    wanted, found = list(dict.fromkeys(refs)), {}
    for first in range(0, len(wanted), _CHUNK):
        encounter = func.coalesce(notes.c.double_of, notes.c.id).label("id")
        query = select(encounter, notes.c.ref).where(notes.c.ref.in_(wanted[first : first + _CHUNK]))
        found |= {row.ref: row for row in connection.execute(query)}
    return found


def create_batch(
    connection: Connection, name: str, user: int | None, total: int = 0, *, now: float | None = None
) -> int:
    """The id of a new batch."""
    created = time.time() if now is None else now
    row = {"name": name[:200], "user_id": user, "created": created, "status": "waiting", "total": total}
    return insert_row(connection, batches, row | {"known": 0, "documents": total, "corrected": 0})


def add_notes(
    connection: Connection, incoming: Sequence[Note], batch: int | None, *, now: float | None = None
) -> tuple[int, int]:
    """(documents added, documents skipped because their id exists already); for documents of new encounters."""
    by_ref: dict[str, Note] = {}
    for note in incoming:
        by_ref.setdefault(note.id[:200], note)
    for ref in _latest_versions(connection, by_ref):
        del by_ref[ref]
    encounters: dict[str, list[Note]] = {}
    for note in by_ref.values():
        encounters.setdefault(encounter_ref(note), []).append(note)
    received = time.time() if now is None else now
    if encounters:
        rows = [_note_row(ref, parts, batch, received) for ref, parts in encounters.items()]
        inserted = connection.execute(insert(notes).returning(notes.c.id, notes.c.ref), rows).all()
        values: list[dict[str, Any]] = []
        for row in inserted:
            start = 0
            for note in encounters[row.ref]:
                values.append(document_row(note, row.id, batch, start, received))
                start += next_start(note.text)
        connection.execute(insert(documents), values)
    return len(by_ref), len(incoming) - len(by_ref)


def encounter_ref(note: Note) -> str:
    """The id of a document's encounter, or its own id if it names none."""
    return str(note.extra.get("encounter") or note.id)[:200]


def _note_row(ref: str, parts: Sequence[Note], batch: int | None, received: float) -> dict[str, Any]:
    """The row of a new encounter with some documents; what the last of them states counts."""
    if len(patients := {note.patient for note in parts if note.patient}) > 1:
        raise DataError(f"the encounter {ref} has documents of {len(patients)} patients")
    first: dict[str, Any] = {"patient": None, "site": None, "lang": None}
    for name in first:
        first[name] = next((value for note in parts if (value := getattr(note, name))), None)
    about = merge_fields([encounter_fields(note) for note in parts])
    row = {"ref": ref, **first, "encounter": about, "batch_id": batch, "received": received}
    return row | {"coding": "waiting", "status": "new", "version": 0, "codes": 0}


def encounter_fields(note: Note) -> dict[str, Any]:
    """The columns of a document that are about its encounter."""
    return {name: value for name, value in note.extra.items() if name not in _OF_DOCUMENT}
