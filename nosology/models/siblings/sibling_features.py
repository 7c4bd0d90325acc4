"""Features of sibling codes: how well each fits the words of a note, its evidence, a coder's scores and train counts.

Shapes: S siblings, F features, K words that only some siblings have.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from nosology.core import Code
from nosology.models.siblings.sibling_group import SiblingGroup, attribute_values, content_keys
from nosology.text.context import TextContexts
from nosology.text.phrases import TokenizedNote, tokenized_note

FEATURES = (
    "score", "scored", "first", "frequency", "seen",
    "in_evidence", "in_sentence", "in_note", "name_in_sentence", "missing_in_sentence", "missing_in_note",
    "unused_evidence", "unused_sentence",
    "same_side", "other_side", "unsaid_side", "same_attribute", "other_attribute", "unsaid_attribute",
    "unspecified", "other", "without", "denied_without", "depth",
)  # fmt: skip
SCORED = FEATURES.index("scored")
EMBEDDED = ("sentence_cosine", "evidence_cosine")  # only with an embedder
_LEAST = 1e-3  # the probability of a code that the coder does not name
_SMOOTHING = 0.5  # train notes that each sibling has besides its own


@dataclass(frozen=True)
class SiblingQuestion:
    """Which of the siblings does the note have? evidence: characters of the note that name one of them.

    scores: probabilities of a coder, by code. counts: train notes of each code. Both may lack codes.
    """

    text: str = field(repr=False)
    evidence: tuple[tuple[int, int], ...]
    group: SiblingGroup = field(repr=False)
    scores: Mapping[Code, float] = field(default_factory=dict, repr=False)
    counts: Mapping[Code, int] = field(default_factory=dict, repr=False)

    @property
    def sentences(self) -> list[str]:
        """The sentences of the evidence; the evidence itself if it is not in a sentence."""
        words = _words(self.text)
        return [words.sentence_text(start, end) for start, end in self.evidence]

    def features(self, cosines: np.ndarray | None = None) -> np.ndarray:
        """Features (S, F); cosines: (S, 2) of descriptions with sentences and evidence, which become features too."""
        columns = [*self._coder_features(), *self._word_features(), *self._attribute_features(), *self._kind_features()]
        rows = np.column_stack(columns)
        return rows if cosines is None else np.column_stack([rows, cosines])

    def _coder_features(self) -> list[np.ndarray]:
        codes = self.group.codes
        scores = np.array([self.scores.get(code, 0.0) for code in codes])
        counts = np.array([self.counts.get(code, 0) for code in codes], dtype=np.float64)
        total = counts.sum() + _SMOOTHING * len(codes)
        return [
            np.log(np.clip(scores, _LEAST, 1.0)),
            scores > 0,
            (scores == scores.max()) & (scores > 0),
            np.log((counts + _SMOOTHING) / total),
            counts > 0,
        ]

    def _word_features(self) -> list[np.ndarray]:
        group, words = self.group, _words(self.text)
        evidence, near = words.near(self.evidence)
        in_evidence, in_sentence, in_note = (
            self._present(keys) for keys in (content_keys(evidence), content_keys(near), words.keys)
        )
        weights = group.words * group.weights
        total = weights.sum(axis=1)
        shares = [weights @ present / np.maximum(total, _LEAST) for present in (in_evidence, in_sentence, in_note)]
        names = group.names * group.weights
        of_names = names @ in_sentence / np.maximum(names.sum(axis=1), _LEAST)
        best_name = np.zeros(len(group))
        np.maximum.at(best_name, group.name_of, of_names)
        described = group.words.any(axis=0) * group.weights
        unused = [described @ present - weights @ present for present in (in_evidence, in_sentence)]
        missing = [total - weights @ present for present in (in_sentence, in_note)]
        return [*shares, best_name, *(np.log1p(values) for values in (*missing, *np.maximum(unused, 0)))]

    def _present(self, keys: set[str]) -> np.ndarray:
        """Whether each word of the group (K,) is among keys, as 0/1."""
        present = np.zeros(len(self.group.keys))
        present[[column for key, column in self.group.keys.items() if key in keys]] = 1
        return present

    def _attribute_features(self) -> np.ndarray:
        """(6, S): how many sides are named near the evidence, contradicted, unsaid; the same of other attributes."""
        near = attribute_values(_words(self.text).near(self.evidence)[1])
        found = np.zeros((6, len(self.group)))
        for column, attributes in enumerate(self.group.attributes):
            for name, values in attributes.items():
                said = near.get(name)
                state = 2 if not said else 0 if said & values else 1
                found[(0 if name == "side" else 3) + state, column] += 1
        return found

    def _kind_features(self) -> list[np.ndarray]:
        group, contexts = self.group, _words(self.text).contexts
        denied = bool(self.evidence) and any(contexts.of_mention(*span).negated for span in self.evidence)
        return [group.is_unspecified, group.is_other, group.excludes, group.excludes * denied, group.depth]


class _NoteWords:
    """The words of a note, read once for all questions about it."""

    def __init__(self, text: str):
        self.text = text
        self.note: TokenizedNote = tokenized_note(text)

    @cached_property
    def keys(self) -> set[str]:
        return content_keys(self.note.words)

    @cached_property
    def contexts(self) -> TextContexts:
        return TextContexts(self.text, self.note.written)

    def near(self, spans: Sequence[tuple[int, int]]) -> tuple[list[str], list[str]]:
        """The words of spans, and the words of their sentences."""
        note = self.note
        inside = sorted({place for start, end in spans for place in self._places(start, end)})
        chosen = {note.sentence[place] for place in inside}
        return (
            [note.words[place] for place in inside],
            [word for word, sentence in zip(note.words, note.sentence) if sentence in chosen],
        )

    def sentence_text(self, start: int, end: int) -> str:
        """The text of the sentence of a span."""
        places = self._places(start, end)
        if not places:
            return self.text[start:end]
        number = self.note.sentence[places[0]]
        first, last = bisect_left(self.note.sentence, number), bisect_right(self.note.sentence, number) - 1
        return self.text[self.note.starts[first] : self.note.ends[last]]

    def _places(self, start: int, end: int) -> range:
        return range(bisect_right(self.note.ends, start), bisect_left(self.note.starts, end))


@lru_cache(maxsize=4)  # several codes of a note are asked about, one after the other
def _words(text: str) -> _NoteWords:
    return _NoteWords(text)
