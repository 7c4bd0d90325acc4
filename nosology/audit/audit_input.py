"""What an audit reads: notes with their encounters, and bills, from the formats that places have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nosology.audit.auditor import BilledEncounter
from nosology.audit.billed_codes import Bill, read_billed_codes
from nosology.claims.encounter_values import merge_fields
from nosology.core import DataError, Note
from nosology.corpora.notes_file import read_notes
from nosology.text.borders import documents_of, join_documents


@dataclass(frozen=True)
class Bills:
    """The bill of each encounter by id, and the number of further bills of the same encounters."""

    by_id: dict[str, Bill]
    further: int = 0


@dataclass
class AuditInput:
    """The encounters that have both text and bill, and how many ids are on one side only."""

    encounters: list[BilledEncounter] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def read_bills(path: Path) -> Bills:
    """The bills of a file."""
    return Bills(read_billed_codes(path))


def read_audit_input(notes: Path, bills: Bills, done: Collection[str] = ()) -> AuditInput:
    """The encounters of a notes file that have a bill, in the order of their first rows.

    done: ids of encounters that are counted only. Rows with the same value of the column encounter are the documents
    of one encounter; without this column, each row is an encounter.
    """
    documents: dict[str, list[tuple[str, Note]]] = {}
    for where, note in _each_once(notes):
        own = documents.setdefault(str(note.extra.get("encounter") or note.id), [])
        own.append((where, note))
    found = AuditInput()
    for encounter_id, own in documents.items():
        bill = bills.by_id.get(encounter_id)
        if bill is not None and encounter_id not in done:
            found.encounters.append(_joined(encounter_id, own, bill))
    found.counts = {
        "notes_without_bill": len(documents.keys() - bills.by_id.keys()),
        "bills_without_note": len(bills.by_id.keys() - documents.keys()),
        "further_bills_of_an_encounter": bills.further,
    }
    return found


def _each_once(path: Path) -> Iterator[tuple[str, Note]]:
    """The notes of a file and their places; DataError if an id is there twice."""
    seen: set[str] = set()
    for row, note in enumerate(read_notes(path, coded=False), 1):
        if note.id in seen:
            raise DataError(
                f"{path}: note {row} has the id of an earlier note; give each encounter one row, or each row an id of "
                "its own and a column encounter"
            )
        seen.add(note.id)
        yield f"{path}: note {row}", note


def _joined(encounter_id: str, own: list[tuple[str, Note]], bill: Bill) -> BilledEncounter:
    """The encounter of some documents."""
    where, first = own[0]
    if len(own) == 1:
        return BilledEncounter(Note(encounter_id, first.text, extra=first.extra), bill, where)
    if len({note.patient for _, note in own if note.patient}) > 1:
        raise DataError(f"{where}: the documents of this encounter are of several patients")
    stated = [{name: value for name, value in note.extra.items() if value not in (None, "")} for _, note in own]
    text = join_documents(note.text for _, note in own)
    starts = tuple((note.id, part.start) for (_, note), part in zip(own, documents_of(text)))
    return BilledEncounter(Note(encounter_id, text, extra=merge_fields(stated)), bill, where, starts)
