"""Day one for the other code systems: ICD-9-CM by mapping, ICD-10-PCS by its tables, ICD-9-CM procedures by titles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nosology.codes.lookup import table
from nosology.core import Code, ConfigError, EvidenceSpan, Note, Span
from nosology.core.label_space import LabelSpace
from nosology.core.model import Model

if TYPE_CHECKING:
    from nosology.models.lexicon.lexicon_model import Lexicon

_GAP = 1  # content words between the words of a title
_TITLE_PROBABILITY = 0.7
_CACHED_NOTES = 128  # evidence is requested after probabilities
Scores = dict[Code, tuple[float, list[Span]]]


def for_systems(model: Model, systems: Collection[str]) -> Model:
    """The model, or for an untrained lexicon asked for other systems than ICD-10-CM one that codes these."""
    if not set(systems) - {"icd10cm"} or model.kind != "lexicon":
        return model
    from nosology.models.lexicon.lexicon_model import Lexicon

    if not isinstance(model, Lexicon) or model.scorer is not None or not set(systems) <= set(_SCORERS):
        return model
    return DayOneSystems(model, tuple(sorted(set(systems))))


class DayOneSystems:
    """An untrained coder of several code systems; a Model."""

    kind = "lexicon"
    within_versions = False

    def __init__(self, lexicon: Lexicon, systems: Sequence[str]):
        self.lexicon, self.systems = lexicon, systems
        self._cache: dict[str, Scores] = {}

    @cached_property
    def labels(self) -> LabelSpace:
        """All billable codes of the systems."""
        own = [code for code in self.lexicon.labels.codes if code.system in self.systems]
        others = (Code(system, code) for system in self.systems for code in table(system).codes(billable=True))
        return LabelSpace(sorted({*own, *others}))

    @property
    def train_counts(self) -> np.ndarray:
        """Zeros (L,): nothing was trained."""
        return np.zeros(len(self.labels), dtype=np.int64)

    def _scores(self, note: Note) -> Scores:
        if note.text not in self._cache:
            if len(self._cache) >= _CACHED_NOTES:
                self._cache.clear()
            scores: Scores = {}
            for system in self.systems:
                scores |= _SCORERS[system](self.lexicon, note)
            self._cache[note.text] = scores
        return self._cache[note.text]

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L); a code that the note does not mention has 0."""
        probabilities = np.zeros((len(notes), len(self.labels)), dtype=np.float32)
        for row, note in zip(probabilities, notes):
            for code, (probability, _) in self._scores(note).items():
                if code in self.labels:
                    row[self.labels.column(code)] = probability
        return probabilities

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, the words of the note that mean its code."""
        scores = self._scores(note)
        result = []
        for label in labels:
            probability, spans = scores.get(self.labels.codes[label], (0.0, []))
            result.append(
                [EvidenceSpan(*span, note.text[span.start : span.end], probability) for span in spans[:limit]]
            )
        return result

    def save(self, folder: Path) -> None:
        """Refuses: day one is built in."""
        raise ConfigError(f"day one is built in and cannot be saved as a bundle; got {folder}")


def _diagnoses(lexicon: Lexicon, note: Note) -> Scores:
    """The ICD-10-CM codes of the lexicon."""
    codes = lexicon.analyse(note.text)[1].codes
    known = [code for code in codes if code in lexicon.labels]
    spans = lexicon.evidence(note, [lexicon.labels.column(code) for code in known])
    return {code: (codes[code], [Span(it.start, it.end) for it in found]) for code, found in zip(known, spans)}


def _icd9_diagnoses(lexicon: Lexicon, note: Note) -> Scores:
    """The codes of the lexicon mapped back through the GEMs; of several with one target the most probable."""
    from nosology.claims.icd9 import icd9_codes

    scores: Scores = {}
    for code, (probability, spans) in _diagnoses(lexicon, note).items():
        for target in icd9_codes(code.code):
            known, others = scores.get(Code("icd9cm", target), (0.0, []))
            joined = list(dict.fromkeys([*others, *spans] if known >= probability else [*spans, *others]))
            scores[Code("icd9cm", target)] = max(known, probability), joined
    return scores


def _procedures(lexicon: Lexicon, note: Note) -> Scores:
    """The ICD-10-PCS codes of what the note says was performed."""
    from nosology.claims.draft import Draft
    from nosology.claims.encounter import Encounter
    from nosology.claims.procedures import propose_procedures

    found = propose_procedures(Draft(note.text, Encounter.of(note.text, {})))
    return {Code("icd10pcs", it.code): (it.probability, list(it.evidence)) for it in found.codes}


def _icd9_procedures(lexicon: Lexicon, note: Note) -> Scores:
    """The ICD-9-CM procedures whose titles the note names as performed."""
    from nosology.claims.draft import Draft
    from nosology.claims.encounter import Encounter
    from nosology.claims.procedure_names import NamedProcedure, Procedure
    from nosology.claims.procedure_status import is_performed

    draft = Draft(note.text, Encounter.of(note.text, {}))
    named = list(_titles_in(note.text))
    starts = sorted(span.start for _, span in named)
    scores: Scores = {}
    for code, span in named:
        following = next((start for start in starts if start >= span.end), len(note.text))
        if is_performed(draft, NamedProcedure(Procedure(id=code, names=(code,), code=""), span), following):
            scores.setdefault(Code("icd9proc", code), (_TITLE_PROBABILITY, []))[1].append(span)
    return scores


def _titles_in(text: str) -> Iterator[tuple[str, Span]]:
    """The codes whose titles a text has, and where; a title within a longer one does not count."""
    from nosology.text.phrases import TokenizedNote

    index, codes = _titles()
    note = TokenizedNote.from_text(text)
    matches = index.find(note, _GAP)
    for match in matches:
        if not any(set(match.places) < set(other.places) for other in matches):
            yield codes[match.phrase], Span(int(note.starts[match.places[0]]), int(note.ends[match.places[-1]]))


@cache
def _titles():
    """The titles of ICD-9-CM procedures as phrases, and the code of each phrase."""
    from nosology.codes.terms import SOURCES, title_terms
    from nosology.text.phrases import PhraseIndex, phrase_keys
    from nosology.text.stems import word_keys
    from nosology.text.tokens import general_words

    general = {word_keys(word)[0] for word in general_words()}
    found: dict[tuple[str, ...], tuple[int, str]] = {}
    for term in title_terms(table("icd9proc")):
        keys = phrase_keys(term.text)
        if keys and not general.issuperset(keys):
            best = (SOURCES.index(term.source), term.code)
            found[keys] = min(found.get(keys, best), best)
    phrases = sorted(found)
    return PhraseIndex.build(phrases), [found[keys][1] for keys in phrases]


_SCORERS: dict[str, Callable[[Lexicon, Note], Scores]] = {
    "icd10cm": _diagnoses,
    "icd9cm": _icd9_diagnoses,
    "icd10pcs": _procedures,
    "icd9proc": _icd9_procedures,
}
