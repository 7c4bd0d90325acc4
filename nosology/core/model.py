"""The contract of every coding model, and protocols for abilities that only some models have.

Callers check an ability with isinstance: `if isinstance(model, OpenVocabulary): ...`. Shapes: B notes, L labels,
W words, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from nosology.core.label_space import LabelSpace
from nosology.core.note import Code, EvidenceSpan, Note


class Model(Protocol):
    """A model that assigns probabilities to codes and shows the evidence for each."""

    @property
    def kind(self) -> str:
        """The name of the model in the registry, for example "linear"."""

    @property
    def labels(self) -> LabelSpace:
        """The codes that the model scores; column j of its probabilities belongs to labels.codes[j]."""

    @property
    def train_counts(self) -> np.ndarray:
        """The number of training notes of each label (L,)."""

    @property
    def within_versions(self) -> bool:
        """Whether the model was trained to choose only among codes of the ICD version of a note."""

    def probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L), float32. The model splits long inputs into batches itself."""

    def evidence(self, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
        """For each label, at most `limit` spans of the note that support its code, strongest first."""

    def save(self, folder: Path) -> None:
        """Writes the files of the model into a folder."""


@dataclass(frozen=True)
class WordWeights:
    """Weights of the words of one note, one row per requested label."""

    starts: np.ndarray  # (W,) first character of each word
    ends: np.ndarray  # (W,)
    weights: np.ndarray  # (labels, W)


C = TypeVar("C")


@runtime_checkable
class BatchScoring(Protocol):
    """A model that scores and explains many notes faster than one by one; the results are the same but for rounding."""

    def probability_blocks(self, notes: Iterable[Note], labels: Sequence[int] | None = None) -> Iterator[np.ndarray]:
        """Probabilities (b, L) of one block of notes after the other, in order; labels: only these."""

    def explained(
        self, notes: Iterable[Note], choose: Callable[[np.ndarray], tuple[C, Sequence[int]]]
    ) -> Iterator[tuple[C, list[list[EvidenceSpan]]]]:
        """For each note, in order: the first item that `choose` returns for its probabilities (L,), and the evidence.

        The second item of `choose` names the labels whose evidence is wanted.
        """


@runtime_checkable
class OpenVocabulary(Protocol):
    """A model that reads code descriptions and can score codes that it was not trained on."""

    @property
    def descriptions(self) -> Sequence[str]:
        """The description of each label."""

    def with_codes(self, codes: Sequence[tuple[Code, str]]) -> Model:
        """The same model for other codes, given with their descriptions."""

    def unreadable_codes(self) -> list[Code]:
        """The codes whose descriptions contain no word that the model knows."""


@runtime_checkable
class AttentionWeights(Protocol):
    """A model with one attention distribution per label."""

    def attention_weights(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label over the words of a note."""


@runtime_checkable
class CategoryAttention(Protocol):
    """A model with a second level of attention, shared by the codes of a category."""

    @property
    def has_category_attention(self) -> bool:
        """Whether this model was trained with the second level."""

    def category_attention(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """The attention of each label's category over the words of a note."""


@runtime_checkable
class NetWeight(Protocol):
    """A model that mixes the logits of a net with those of a word model."""

    @property
    def has_net_weight(self) -> bool:
        """Whether the net has a weight above 0; otherwise its attention explains nothing."""


@runtime_checkable
class WordContributions(Protocol):
    """A model whose score is a sum over words."""

    def word_contributions(self, note: Note, labels: Sequence[int]) -> WordWeights:
        """How much each word adds to the score of each label."""


@runtime_checkable
class RelevantWords(Protocol):
    """A model that stores the words that are most informative about each code."""

    def relevant_words(self, label: int, limit: int = 10) -> list[tuple[str, float]]:
        """The most informative words of a label with their scores, highest first."""


@runtime_checkable
class ApproximateProbabilities(Protocol):
    """A model with a faster, less precise way to score notes, for explainers that score thousands of variants."""

    def approximate_probabilities(self, notes: Sequence[Note]) -> np.ndarray:
        """Probabilities (B, L) to about 0.01."""


@runtime_checkable
class Embeddings(Protocol):
    """A model on top of note embeddings."""

    def embeddings(self, notes: Sequence[Note]) -> np.ndarray:
        """The embedding of each note (B, D)."""
