"""Results of the coder: suggestions with the context of their evidence, merged over the documents of an encounter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nosology.core import EvidenceSpan, Note, Suggestion
from nosology.text.borders import join_documents
from nosology.workbench.cases import EvidenceInContext, UncertainSuggestion
from nosology.workbench.documents import DocumentText
from nosology.workbench.encounter_data import complete_encounter
from nosology.workbench.proposals import claim_input
from nosology.workbench.stored_claims import ClaimInput
from nosology.workbench.uploads import coder_columns

if TYPE_CHECKING:
    from nosology.serving.coder import Coder

TOP_K = 24  # suggestions stored per note in addition to all accepted ones


@dataclass(frozen=True)
class CodedNote:
    """The result for one note: suggestions, most probable first, and numbers for drift detection.

    claim: the proposed claim as the database stores it; None: not built yet.
    """

    suggestions: tuple[Suggestion, ...]
    profile: dict[str, float]
    claim: str | None = None


def code_notes(coder: Coder, notes: Sequence[Note]) -> list[CodedNote]:
    """The suggestions of each note, with the context of each evidence span, and the note's profile."""
    from nosology.text import context_of

    results = []
    for note, suggestions in zip(notes, coder.code_all(notes)):
        stored = [item for rank, item in enumerate(suggestions) if item.accepted or rank < TOP_K]
        spans = sorted({(span.start, span.end) for item in stored for span in item.evidence})
        flags = {
            span: tuple(name for name, is_set in context._asdict().items() if is_set)
            for span, context in zip(spans, context_of(note.text, spans) if spans else ())
        }
        in_context = tuple(_in_context(item, flags, uncertain=coder.reports_uncertain) for item in stored)
        results.append(CodedNote(in_context, note_profile(note.text, in_context)))
    return results


def _in_context(item: Suggestion, flags: Mapping[tuple[int, int], tuple[str, ...]], *, uncertain: bool) -> Suggestion:
    """A suggestion with the context of its evidence; uncertain: one that is only uncertain is not accepted as it is."""
    evidence = tuple(EvidenceInContext(s.start, s.end, s.text, s.score, flags[s.start, s.end]) for s in item.evidence)
    if uncertain and item.accepted and evidence and all("uncertain" in span.context for span in evidence):
        return UncertainSuggestion(item.system, item.code, item.description, item.probability, False, evidence)
    return replace(item, evidence=evidence)


@dataclass(frozen=True)
class WaitingNote:
    """An encounter to code: its columns and its current documents."""

    note_id: int
    encounter: Mapping[str, Any]
    documents: Sequence[DocumentText]

    @property
    def notes(self) -> list[Note]:
        """Each document as a note for the coder."""
        return [
            Note("", it.text, extra=coder_columns(self.encounter) | ({"title": it.title} if it.title else {}))
            for it in self.documents
        ]

    def claim_input(self, result: CodedNote) -> ClaimInput:
        """What the claim of the encounter is made of."""
        text = join_documents(it.text for it in self.documents)
        return claim_input(text, complete_encounter(self.encounter), self.documents, result.suggestions)

    def merge(self, results: Sequence[CodedNote]) -> CodedNote:
        """The result of the encounter: of each code the highest probability, and the evidence of all documents."""
        if len(results) == 1 and self.documents[0].start == 0:
            return results[0]
        merged: dict[tuple[str, str], Suggestion] = {}
        for document, result in zip(self.documents, results):
            for item in result.suggestions:
                moved = replace(item, evidence=tuple(_moved(it, document.start) for it in item.evidence))
                known = merged.get((item.system, item.code))
                merged[item.system, item.code] = moved if known is None else _merged(known, moved)
        ranked = sorted(merged.values(), key=lambda item: -item.probability)
        kept = tuple(item for rank, item in enumerate(ranked) if item.accepted or rank < TOP_K)
        return CodedNote(kept, note_profile("\n".join(it.text for it in self.documents), kept))


def _moved(span: EvidenceSpan, by: int) -> EvidenceSpan:
    return replace(span, start=span.start + by, end=span.end + by)


def _merged(first: Suggestion, second: Suggestion) -> Suggestion:
    """A code that two documents suggest; one that only an uncertain mention supports stays uncertain only in both."""
    better = max(first, second, key=lambda item: (item.accepted, item.probability))
    probability = max(first.probability, second.probability)
    return replace(better, probability=probability, evidence=(*first.evidence, *second.evidence))


def note_profile(text: str, suggestions: Sequence[Suggestion]) -> dict[str, float]:
    """Numbers for drift detection; they reveal no word of the note."""
    accepted = [item for item in suggestions if item.accepted]
    words = text.split()
    return {
        "words": len(words),
        "digits": sum(any(c.isdigit() for c in word) for word in words) / max(1, len(words)),
        "capitals": sum(word.isupper() for word in words) / max(1, len(words)),
        "letters": sum(map(len, words)) / max(1, len(words)),
        "accepted": len(accepted),
        "top_probability": max((item.probability for item in suggestions), default=0.0),
        "supported": sum(bool(item.evidence) for item in accepted) / max(1, len(accepted)),
    }
