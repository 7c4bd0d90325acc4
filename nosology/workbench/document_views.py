"""View models of documents: the text of an encounter in tabs, and documents that do not count any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from nosology.core import Code, Span
from nosology.workbench.cases import Case
from nosology.workbench.documents import Document, load_documents
from nosology.workbench.page_html import NoteSection, annotate_note
from nosology.workbench.views import document_names, visible_text

_MARKED = Code("icd10cm", "marked")  # stands for what is highlighted


@dataclass(frozen=True)
class ShownDocument:
    """A document on the page, with its name among the others; marks: its number of evidence spans."""

    document: Document
    name: str
    sections: Sequence[NoteSection]
    marks: int


def merge_evidence(
    first: Mapping[Code, Sequence[Span]], second: Mapping[Code, Sequence[Span]]
) -> dict[Code, list[Span]]:
    """The evidence of each code of both, each span once."""
    codes = dict.fromkeys([*first, *second])
    return {code: list(dict.fromkeys([*first.get(code, ()), *second.get(code, ())])) for code in codes}


def show_documents(
    case: Case, evidence: Mapping[Code, Sequence[Span]], highlighted: Collection[Code]
) -> list[ShownDocument]:
    """The current documents of an encounter; marks counts the places of highlighted codes."""
    shown: list[ShownDocument] = []
    names = {start: name for start, _, name in document_names(case)}
    number = 0
    for it in case.current:
        text = case.note["text"][it.start : it.end]
        sections = annotate_note(text, evidence, highlighted, offset=it.start, first_number=number)
        number += len(sections)
        marked = {span for code in highlighted for span in evidence.get(code, ()) if it.start <= span[0] < it.end}
        shown.append(ShownDocument(it, names.get(it.start, it.name), sections, len(marked)))
    return shown


def show_marked(case: Case, spans: Sequence[Span]) -> tuple[list[ShownDocument], int | None]:
    """The current documents with some characters highlighted, and the number of the first section that has some."""
    documents = show_documents(case, {_MARKED: spans}, [_MARKED])
    sections = [section for shown in documents for section in shown.sections]
    marked = (part.number for part in sections if any(piece.highlighted for piece in part.pieces))
    return documents, next(marked, None)


@dataclass(frozen=True)
class PastDocument:
    """A document that was corrected or withdrawn, with its text."""

    document: Document
    text: str


def past_documents(connection: Connection, case: Case) -> list[PastDocument]:
    """The documents of an encounter that are not current any more."""
    texts = {row["id"]: row["text"] for row in load_documents(connection, case.note["id"])}
    return [PastDocument(it, visible_text(texts[it.id])) for it in case.documents if not it.is_current]
