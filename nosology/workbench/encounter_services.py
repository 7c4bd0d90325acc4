"""Changes of encounters by programs: imports, withdrawals, and new data; each is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, select, update

from nosology.core import Note
from nosology.workbench.accounts import User
from nosology.workbench.audit_log import log_access_in
from nosology.workbench.cases import Case, load_case, record_decision_in
from nosology.workbench.database import read_transaction, write_with_retries
from nosology.workbench.document_import import DocumentImport, create_batch, withdraw_document
from nosology.workbench.documents import Document, lock_documents
from nosology.workbench.encounter_data import changed_fields
from nosology.workbench.review import NotFound
from nosology.workbench.store_tables import batches, documents

T = TypeVar("T")


@dataclass(frozen=True)
class ImportedNotes:
    """The id of a batch, and the numbers of documents that were added, were known already, corrected, withdrawn.

    encounters: new ones.
    """

    batch: int
    added: int
    known: int
    corrected: int
    withdrawn: int
    encounters: int


def _write(engine: Engine, change: Callable[[Connection], T]) -> T:
    """What a change returns, in a transaction of its own; programs change encounters one after the other."""

    def locked(connection: Connection) -> T:
        lock_documents(connection)
        return change(connection)

    return write_with_retries(engine, locked)


def import_batch(engine: Engine, user: User, name: str, notes: Sequence[Note], address: str) -> ImportedNotes:
    """The numbers of documents that were imported as one batch."""

    def change(connection: Connection) -> ImportedNotes:
        batch = create_batch(connection, name, user.id)
        counts = DocumentImport(connection, user.id, batch).run(notes)
        values = {"total": counts.encounters, "documents": counts.added, "known": counts.known}
        values["corrected"] = counts.corrected
        connection.execute(update(batches).where(batches.c.id == batch).values(**values))
        numbers = {"added": counts.added, "known": counts.known}
        numbers |= {what: number for what in ("corrected", "withdrawn") if (number := getattr(counts, what))}
        done = ", ".join(f"{number} {what}" for what, number in numbers.items())
        log_access_in(connection, user.id, "import", None, address, f"batch {batch}: {done}")
        return ImportedNotes(batch, **asdict(counts))

    return _write(engine, change)


def withdraw(engine: Engine, user: User, document: int, address: str) -> Case:
    """The case without a document, which is withdrawn now."""

    def change(connection: Connection) -> Case:
        note_id = withdraw_document(connection, document, user.id)
        log_access_in(connection, user.id, "withdraw", note_id, address, f"document {document}")
        return load_case(connection, note_id)

    return _write(engine, change)


def change_encounter(engine: Engine, user: User, note_id: int, wanted: Mapping[str, Any], address: str) -> Case:
    """The case with new data of the encounter."""

    def change(connection: Connection) -> Case:
        case = load_case(connection, note_id)
        details = encounter_details(case, wanted)
        record_decision_in(connection, note_id, "encounter", details, user=user.id, version=case.review.version)
        log_access_in(connection, user.id, "encounter", note_id, address, ", ".join(details["encounter"]))
        return load_case(connection, note_id)

    return _write(engine, change)


def encounter_details(case: Case, wanted: Any) -> dict[str, Any]:
    """The details of the decision that changes data of an encounter: new and old values."""
    changes = changed_fields(case.note["encounter"], wanted)
    return {"encounter": changes, "before": {name: case.note["encounter"].get(name) for name in changes}}


def find_document(engine: Engine, ref: str) -> tuple[int, Document]:
    """The encounter and the newest version of the document with an id; NotFound."""
    with read_transaction(engine) as connection:
        query = select(documents.c.id, documents.c.note_id).where(documents.c.ref == ref)
        found = connection.execute(query.order_by(documents.c.version.desc())).first()
        if found is None:
            raise NotFound("there is no such document")
        case = load_case(connection, found.note_id)
    return found.note_id, next(it for it in case.documents if it.id == found.id)
