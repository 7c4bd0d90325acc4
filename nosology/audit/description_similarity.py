"""Features of codes from an embedder: how near the description of a code is to the nearest words of a note.

Shapes: N codes, D dimensions of a vector, W windows of a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nosology.audit.bill_statistics import nearest_line
from nosology.text.phrases import tokenized_note

if TYPE_CHECKING:
    from nosology.encoders.embedder import Embedder

SIMILARITIES = (
    "window_cosine", "near_windows", "sentence_cosine", "above_usual", "billed_cosine", "billed_cosine_mean",
)  # fmt: skip
_WORDS, _STRIDE = 6, 3  # of a window
_NEAREST = 3  # windows whose mean cosine is a feature
_RIDGE = 1.0
_LEAST = 1e-9


class NoteVectors(NamedTuple):
    """Unit vectors of the sentences of a note, and of its windows of words, (W, D)."""

    sentences: np.ndarray
    windows: np.ndarray


@dataclass(frozen=True)
class DescriptionSimilarity:
    """An embedder by its name, and the cosine that a description usually has with the nearest window of a note.

    usual: (D + 1,) weights of a linear function of the vector of the description, and its bias. A vague description is
    near to a window of every note.
    """

    embedder: str
    usual: np.ndarray
    _described: dict[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    _last: dict[str, NoteVectors] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def fit(cls, embedder: str, codes: Iterable[str], texts: Iterable[str]) -> DescriptionSimilarity:
        """The similarity whose usual cosines are those of these codes with these notes."""
        similarity = cls(embedder, np.zeros(0))
        vectors = similarity.of_codes(sorted(set(codes))).astype(np.float64)
        nearest = [(similarity.of_note(text).windows @ vectors.T).max(axis=0) for text in texts]
        mean = np.mean(nearest, axis=0)
        center, bias = vectors.mean(axis=0), mean.mean()
        spread = vectors - center
        weights = np.linalg.solve(spread.T @ spread + _RIDGE * np.eye(spread.shape[1]), spread.T @ (mean - bias))
        return cls(embedder, np.append(weights, bias - weights @ center).astype(np.float32), similarity._described)

    def load(self) -> None:
        """Loads the embedder; ConfigError if it is missing."""
        _ = self._loaded

    @cached_property
    def _loaded(self) -> Embedder:
        from nosology.encoders.embedder import Embedder
        from nosology.encoders.embedder_config import EmbedderSettings

        return Embedder.load(EmbedderSettings(model=self.embedder))

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._loaded.embed(texts)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _LEAST)

    def of_codes(self, codes: Sequence[str]) -> np.ndarray:
        """Unit vectors (N, D) of the descriptions of codes; zeros for a code whose category is unknown."""
        if new := [code for code in dict.fromkeys(codes) if code not in self._described]:
            lines = [nearest_line(code) for code in new]
            described = self._vectors([line.description if line else "" for line in lines])
            self._described.update(zip(new, described))
        return np.array([self._described[code] for code in codes], dtype=np.float32).reshape(len(codes), -1)

    def of_note(self, text: str) -> NoteVectors:
        """The vectors of a note; of a note without words, one vector of zeros."""
        if text not in self._last:  # several bills of a note may follow each other
            sentences, windows = _pieces(text)
            vectors = self._vectors([*sentences, *windows])
            self._last.clear()
            self._last[text] = NoteVectors(vectors[: len(sentences)], vectors[len(sentences) :])
        return self._last[text]

    def rows(self, note: NoteVectors, codes: Sequence[str], bill: Sequence[str]) -> np.ndarray:
        """The features (N, F) of codes, in the order of SIMILARITIES."""
        if not codes:
            return np.zeros((0, len(SIMILARITIES)), dtype=np.float32)
        vectors, billed = self.of_codes(codes), self.of_codes(bill)
        windows = note.windows @ vectors.T
        nearest = min(_NEAREST, len(windows))
        highest = np.partition(windows, len(windows) - nearest, axis=0)[-nearest:]
        first = highest.max(axis=0)
        is_other = np.array([[code != other for other in bill] for code in codes]).reshape(len(codes), len(bill))
        beside = np.where(is_other, vectors @ billed.T, 0.0) if len(bill) else np.zeros((len(codes), 1))
        columns = [
            first,
            highest.mean(axis=0),
            (note.sentences @ vectors.T).max(axis=0),
            first - vectors @ self.usual[:-1] - self.usual[-1],
            beside.max(axis=1),
            beside.sum(axis=1) / np.maximum(is_other.sum(axis=1), 1),
        ]
        return np.column_stack(columns).astype(np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """The array for a safetensors file."""
        return {"usual": self.usual}

    @classmethod
    def from_arrays(cls, embedder: str, stored: Mapping[str, np.ndarray]) -> DescriptionSimilarity:
        return cls(embedder, stored["usual"])


def _pieces(text: str) -> tuple[list[str], list[str]]:
    """The sentences of a text and windows of words inside them; an empty one of each if it has no words."""
    note = tokenized_note(text)
    sentences, windows = [], []
    for _, places in groupby(range(len(note.words)), key=lambda place: note.sentence[place]):
        of_sentence = list(places)
        first, last = of_sentence[0], of_sentence[-1]
        sentences.append(text[note.starts[first] : note.ends[last]])
        for start in range(first, max(first + 1, last - _WORDS // 2), _STRIDE):
            windows.append(text[note.starts[start] : note.ends[min(start + _WORDS - 1, last)]])
    return sentences or [""], windows or [""]
