"""Documents of an encounter: their kinds, and their text as one text whose positions never change.

The text of an encounter is that of its documents in the order of arrival, with a border between two. A corrected text
is a new document, and documents are never removed: a document that does not count any more is blanked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, bindparam, func, select

from nosology.core import Note
from nosology.text.borders import BORDER, join_documents
from nosology.workbench.store_tables import decisions, documents, notes

DOCUMENT_KINDS = {
    "discharge": "Discharge summary",
    "h&p": "H&P",
    "progress": "Progress note",
    "operative": "Operative note",
    "radiology": "Radiology",
    "pathology": "Pathology",
    "laboratory": "Laboratory",
    "consultation": "Consultation",
    "emergency": "Emergency",
    "other": "Document",
}
_KIND_WORDS = {  # in a title, or in the first lines of a text
    "discharge": r"discharge (?:summary|note|report|diagnos[ei]s)|d/?c summary|informe de alta|epicrisis",
    "operative": r"operative (?:report|note)|operation report|procedure (?:note|report)|op note|preoperative diagnosis",
    "pathology": r"(?:surgical )?pathology|cytology|gross description|autopsy",
    "radiology": r"radiolog\w+|imaging|x-?ray|(?:ct|mri|mr|pet)\b|ultrasound|sonogram|mammogra\w+|echocardiogra\w+",
    "laboratory": r"laborator(?:y|ies)|lab (?:results?|report)|microbiology",
    "consultation": r"consult(?:ation|s)?\b",
    "emergency": r"emergency (?:department|room|provider)|ed (?:provider )?note|triage note",
    "h&p": r"h ?& ?p\b|history (?:and|&) physical|admission (?:note|history)|reason for admission",
    "progress": r"progress note|daily note|soap note|interval history|hospital day",
}
_PATTERNS = {kind: re.compile(rf"\b(?:{words})", re.IGNORECASE) for kind, words in _KIND_WORDS.items()}
_OPENING = 160  # characters of a text in which its kind may be named
_NOT_LINE_BREAK = re.compile(r"[^\n\r]")


@dataclass(frozen=True, slots=True)
class Document:
    """A document of an encounter; start and end are positions in the text of the encounter.

    state: current, corrected (a newer version has come) or withdrawn.
    """

    id: int
    ref: str
    version: int
    kind: str
    title: str
    date: str | None
    start: int
    end: int
    state: str
    received: float

    @property
    def is_current(self) -> bool:
        return self.state == "current"

    @property
    def name(self) -> str:
        """Its kind in words, or the title of a document of no known kind."""
        return self.title if self.kind == "other" and self.title else DOCUMENT_KINDS.get(self.kind, "Document")


def document_row(
    note: Note, note_id: int, batch: int | None, start: int, now: float, version: int = 1
) -> dict[str, Any]:
    """The row of a document that starts at a position of its encounter's text."""
    title = str(note.extra.get("title") or "")
    stated = str(note.extra.get("document") or "").strip().lower()
    return {
        "note_id": note_id,
        "batch_id": batch,
        "ref": note.id[:200],
        "version": version,
        "kind": stated if stated in DOCUMENT_KINDS else guess_kind(stated, title, note.text[:_OPENING]),
        "title": title[:200],
        "date": note.extra.get("document_date"),
        "text": note.text,
        "length": len(note.text),
        "start": start,
        "received": now,
    }


def guess_kind(*texts: str) -> str:
    """The kind of a document by the first of some texts that names one; "other" if none does."""
    for text in texts:
        found = [(match.start(), kind) for kind, pattern in _PATTERNS.items() if (match := pattern.search(text))]
        if found:
            return min(found)[1]
    return "other"


def blanked(text: str) -> str:
    """The text with a blank in place of each character; line breaks stay."""
    return _NOT_LINE_BREAK.sub(" ", text)


def encounter_text(rows: Iterable[RowMapping], states: Mapping[int, str]) -> str:
    """The text of an encounter; documents that are not current are blanked."""
    return join_documents(blanked(row["text"]) if row["id"] in states else row["text"] for row in rows)


def next_start(text: str) -> int:
    """The position of the next document of an encounter with this text."""
    return len(text) + len(BORDER)


def lock_documents(connection: Connection) -> None:
    """Waits until no other program changes documents or stores results of them; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(7411)))


# A copy for double coding has the documents of its original.
_original = select(func.coalesce(notes.c.double_of, notes.c.id)).where(notes.c.id == bindparam("note"))
_DOCUMENTS = select(documents).where(documents.c.note_id == _original.scalar_subquery()).order_by(documents.c.start)


def load_documents(connection: Connection, note_id: int) -> Sequence[RowMapping]:
    """The rows of an encounter's documents in the order of arrival."""
    return connection.execute(_DOCUMENTS, {"note": note_id}).mappings().all()


def to_document(row: RowMapping, state: str) -> Document:
    """The document of a row."""
    fields = {name: row[name] for name in ("id", "ref", "version", "kind", "title", "date", "start", "received")}
    return Document(**fields, end=row["start"] + row["length"], state=state)


@dataclass(frozen=True, slots=True)
class DocumentText:
    """The text of a current document, and its position in the text of its encounter."""

    id: int
    start: int
    title: str
    text: str
    kind: str = "other"

    @property
    def end(self) -> int:
        """The position after its last character."""
        return self.start + len(self.text)


def document_states(connection: Connection, note_ids: Collection[int]) -> dict[int, str]:
    """The documents of some encounters that were corrected or withdrawn, by id."""
    states: dict[int, str] = {}
    changed = select(decisions.c.action, decisions.c.details)
    changed = changed.where(decisions.c.note_id.in_(note_ids), decisions.c.action.in_(("document", "withdraw")))
    for action, details in connection.execute(changed):
        if action == "withdraw":
            states[details["document"]] = "withdrawn"
        elif "replaces" in details:
            states[details["replaces"]] = "corrected"
    return states


def current_documents(connection: Connection, note_ids: Collection[int]) -> dict[int, list[DocumentText]]:
    """The current documents of some encounters, in the order of arrival."""
    gone = document_states(connection, note_ids)
    found: dict[int, list[DocumentText]] = {note_id: [] for note_id in note_ids}
    names = ("note_id", "id", "start", "title", "text", "kind")
    query = select(*(documents.c[name] for name in names))
    for note_id, *values in connection.execute(
        query.where(documents.c.note_id.in_(note_ids)).order_by(documents.c.start)
    ):
        if values[0] not in gone:
            found[note_id].append(DocumentText(*values))
    return found
