"""What an audit reads: notes with their encounters, and bills, from the formats that places have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from nosology.audit.auditor import BilledEncounter
from nosology.audit.billed_codes import Bill, Bills, read_billed_codes
from nosology.audit.claims_837 import is_837, read_claims_837
from nosology.audit.fhir_claims import read_fhir_claims, read_fhir_file, read_fhir_notes
from nosology.claims.encounter import Encounter
from nosology.claims.encounter_values import merge_fields
from nosology.core import ConfigError, DataError, Note
from nosology.corpora.notes_file import read_notes
from nosology.text.borders import documents_of, join_documents


@dataclass
class AuditInput:
    """The encounters that have both text and bill, and how many ids are on one side only."""

    encounters: list[BilledEncounter] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


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
    of one encounter; without this column, each row is an encounter.
    """
    documents: dict[str, list[tuple[str, Note]]] = {}
    bundle = read_fhir_file(notes)
    given = read_notes(notes, coded=False) if bundle is None else read_fhir_notes(bundle, str(notes), bills.by_id)
    without_text = 0
    for where, note in _each_once(given, notes):
        if not note.text:  # a PDF or an image in a FHIR file
            without_text += 1
            continue
        own = documents.setdefault(str(note.extra.get("encounter") or note.id), [])
        own.append((where, note))
    found = AuditInput()
    for encounter_id, own in documents.items():
        bill = bills.by_id.get(encounter_id)
        if bill is not None and encounter_id not in done:
            encounter = _joined(encounter_id, own, bill)
            found.encounters.append(_refused(encounter, own if bundle is not None else ()))
    found.counts = {
        "notes_without_bill": len(documents.keys() - bills.by_id.keys()),
        "bills_without_note": len(bills.by_id.keys() - documents.keys()),
        "documents_without_text": without_text,
        "further_bills_of_an_encounter": 0,
        **bills.counts,
    }
    return found


def _each_once(notes: Iterable[Note], path: Path) -> Iterator[tuple[str, Note]]:
    """The notes of a file and their places; DataError if an id is there twice."""
    seen: set[str] = set()
    for row, note in enumerate(notes, 1):
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


def _refused(encounter: BilledEncounter, documents: Iterable[tuple[str, Note]]) -> BilledEncounter:
    """The encounter; with the reason if a date of a FHIR document, or what the bill alone states, cannot be used."""
    for where, note in documents:
        if reason := note.extra.get("refused"):
            return replace(encounter, where=where, refused=reason)
    reason = encounter.bill.refused
    try:
        Encounter.of("", encounter.bill.stated)  # else a field of the notes would hide that of the bill
    except ConfigError as error:
        reason = reason or str(error)
    return replace(encounter, refused=f"the bill: {reason}") if reason else encounter
