"""What an audit reads: notes with their encounters, and bills, from the formats that places have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from nosology.audit.auditor import BilledEncounter
from nosology.audit.billed_codes import Bill, Bills, read_billed_codes
from nosology.audit.claims_837 import is_837, read_claims_837
from nosology.audit.fhir_claims import read_fhir_claims, read_fhir_file, read_fhir_notes
from nosology.claims.encounter import Encounter
from nosology.claims.encounter_values import merge_fields
from nosology.core import ConfigError, DataError, Note
from nosology.corpora.notes_file import read_well_formed_notes
from nosology.corpora.plain_text import check_text
from nosology.corpora.validation import location
from nosology.text.borders import documents_of, join_documents


@dataclass
class AuditInput:
    """The encounters that have both text and bill, how many ids are on one side only, and errors of malformed rows."""

    encounters: list[BilledEncounter] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    malformed: list[DataError] = field(default_factory=list)


class _Document(NamedTuple):
    """A document of an encounter and its place in the file; refused: why it cannot be used."""

    where: str
    note: Note
    refused: str = ""


def read_bills(path: Path, claim_id: str = "account", *, has_notes: bool = False) -> Bills:
    """The bills of a table of codes, of 837 claims, or of the Claims of a FHIR file.

    claim_id: of 837 claims; see CLAIM_IDS of claims_837. has_notes: the file has notes, too; so it must be FHIR.
    """
    if is_837(path) and not has_notes:
        return read_claims_837(path, claim_id)
    bundle = read_fhir_file(path)
    if bundle is None and has_notes:
        raise ConfigError("--billed is missing; only a FHIR file can have notes and bills")
    return Bills(read_billed_codes(path)) if bundle is None else read_fhir_claims(bundle, str(path))


def read_audit_input(notes: Path, bills: Bills, done: Collection[str] = ()) -> AuditInput:
    """The encounters of a notes file or a FHIR file that have a bill, in the order of their first documents.

    done: ids of encounters that are counted only. Rows with the same value of the column encounter are the documents
    of one encounter; without this column, each row is an encounter. An encounter with a document that is not plain text
    is refused; a malformed row is left out.
    """
    documents: dict[str, list[_Document]] = {}
    bundle, found, without_text = read_fhir_file(notes), AuditInput(), 0
    if bundle is None:
        given = _documents_of_table(notes, found.malformed.append)
    else:
        given = _documents_of_fhir(read_fhir_notes(bundle, str(notes), bills.by_id), notes)
    for item in _each_once(given):
        if not item.note.text:  # a PDF or an image in a FHIR file
            without_text += 1
            continue
        documents.setdefault(str(item.note.extra.get("encounter") or item.note.id), []).append(item)
    for encounter_id, own in documents.items():
        bill = bills.by_id.get(encounter_id)
        if bill is not None and encounter_id not in done:
            found.encounters.append(_refused(_joined(encounter_id, own, bill), own))
    found.counts = {
        "notes_without_bill": len(documents.keys() - bills.by_id.keys()),
        "bills_without_note": len(bills.by_id.keys() - documents.keys()),
        "documents_without_text": without_text,
        "malformed_rows": len(found.malformed),
        "further_bills_of_an_encounter": 0,
        **bills.counts,
    }
    return found


def _documents_of_table(path: Path, malformed: Callable[[DataError], None]) -> Iterator[_Document]:
    for row, note in read_well_formed_notes(path, malformed):
        try:
            check_text(note.text, "the note")
        except DataError as error:
            yield _Document(location(path, row), note, str(error))
        else:
            yield _Document(location(path, row), note)


def _documents_of_fhir(notes: Iterable[Note], path: Path) -> Iterator[_Document]:
    for number, note in enumerate(notes, 1):
        yield _Document(f"{path}: note {number}", note, str(note.extra.get("refused") or ""))


def _each_once(documents: Iterable[_Document]) -> Iterator[_Document]:
    """The documents of a file; DataError if an id is there twice."""
    seen: set[str] = set()
    for item in documents:
        if item.note.id in seen:
            raise DataError(
                f"{item.where} has the id of an earlier note; give each encounter one row, or each row an id of "
                "its own and a column encounter"
            )
        seen.add(item.note.id)
        yield item


def _joined(encounter_id: str, own: list[_Document], bill: Bill) -> BilledEncounter:
    """The encounter of some documents."""
    where, first, _ = own[0]
    if len(own) == 1:
        return BilledEncounter(Note(encounter_id, first.text, extra=first.extra), bill, where)
    notes = [item.note for item in own]
    if len({note.patient for note in notes if note.patient}) > 1:
        raise DataError(f"{where}: the documents of this encounter are of several patients")
    stated = [{name: value for name, value in note.extra.items() if value not in (None, "")} for note in notes]
    text = join_documents(note.text for note in notes)
    starts = tuple((note.id, part.start) for note, part in zip(notes, documents_of(text)))
    return BilledEncounter(Note(encounter_id, text, extra=merge_fields(stated)), bill, where, starts)


def _refused(encounter: BilledEncounter, documents: Iterable[_Document]) -> BilledEncounter:
    """The encounter; with the reason if a document, or what the bill alone states, cannot be used."""
    for item in documents:
        if item.refused:
            return replace(encounter, where=item.where, refused=item.refused)
    reason = encounter.bill.refused
    try:
        Encounter.of("", encounter.bill.stated)  # else a field of the notes would hide that of the bill
    except ConfigError as error:
        reason = reason or str(error)
    return replace(encounter, refused=f"the bill: {reason}") if reason else encounter
