"""The verifier of sibling codes: a probability for each sibling, by a conditional logit model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nosology.core import Code, DataError
from nosology.models.siblings.sibling_features import EMBEDDED, FEATURES, SCORED, SiblingQuestion

if TYPE_CHECKING:
    from nosology.encoders.embedder import Embedder

_MODELS = ("named", "unnamed")
_SHIPPED = Path(__file__).parent / "data" / "verifier.json"


@dataclass(frozen=True)
class SiblingChoice:
    """The siblings with their probabilities (S,), in the order of the group, and whether the verifier abstains."""

    codes: tuple[Code, ...]
    probabilities: np.ndarray
    abstains: bool

    def probability(self, line: str) -> float:
        """The probability of a code, or of all siblings below a line of the code table."""
        return float(self.probabilities[[code.code.startswith(line) for code in self.codes]].sum())

    @property
    def best(self) -> Code:
        """The most probable sibling; of equal ones the first."""
        return self.codes[int(np.argmax(self.probabilities))]


@dataclass(frozen=True)
class SiblingVerifier:
    """A linear score of each sibling; the probabilities are the softmax over the siblings.

    There are two models: the features mean other things when the coder names no sibling. sure_from: the verifier
    abstains if the best sibling has a smaller probability.
    """

    named: np.ndarray  # (F,) weights where the coder names a sibling, in the order of FEATURES, or FEATURES + EMBEDDED
    unnamed: np.ndarray  # (F,) where it names none
    sure_from: float

    @classmethod
    def shipped(cls) -> SiblingVerifier:
        """The verifier that comes with the package, trained on the simulated hospital."""
        return _shipped()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return FEATURES if len(self.named) == len(FEATURES) else FEATURES + EMBEDDED

    def choose(self, question: SiblingQuestion, embedder: Embedder | None = None) -> SiblingChoice:
        """The probabilities of the siblings; embedder: needed by a verifier with weights of cosines."""
        cosines = None
        if self.features != FEATURES:
            if embedder is None:
                raise ValueError("this verifier has weights of cosines and needs an embedder; got None")
            cosines = cosine_features([question], embedder)[0]
        probabilities = self.probabilities(question.features(cosines))
        return SiblingChoice(question.group.codes, probabilities, bool(probabilities.max() < self.sure_from))

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Probabilities (S,) of siblings with features (S, F); they sum to 1."""
        scores = features @ (self.named if features[:, SCORED].any() else self.unnamed)
        exponentials = np.exp(scores - scores.max())
        return exponentials / exponentials.sum()

    def to_json(self) -> dict[str, Any]:
        """The weights by feature, as JSON."""
        rows = {name: getattr(self, name).tolist() for name in _MODELS}
        weights = {
            name: {key: round(weight, 5) for key, weight in zip(self.features, row)} for name, row in rows.items()
        }
        return weights | {"sure_from": round(self.sure_from, 5)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> SiblingVerifier:
        """The verifier of `to_json`; DataError if it has weights of other features."""
        names = FEATURES if len(stored["named"]) == len(FEATURES) else FEATURES + EMBEDDED
        for model in _MODELS:
            if unknown := set(stored[model]) ^ set(names):
                raise DataError(
                    f"a sibling verifier must have one weight of each feature; differing: {sorted(unknown)}"
                )
        named, unnamed = (np.array([stored[model][name] for name in names], dtype=np.float64) for model in _MODELS)
        return cls(named, unnamed, float(stored["sure_from"]))


@cache
def _shipped() -> SiblingVerifier:
    return SiblingVerifier.from_json(json.loads(_SHIPPED.read_text(encoding="utf-8")))


def cosine_features(questions: Sequence[SiblingQuestion], embedder: Embedder) -> list[np.ndarray]:
    """For each question the cosines (S, 2) of the descriptions with the nearest sentence and the nearest evidence."""
    sentences = [question.sentences for question in questions]
    evidence = [[question.text[start:end] for start, end in question.evidence] for question in questions]
    descriptions = [question.group.descriptions for question in questions]
    texts = dict.fromkeys(text for lists in (sentences, evidence, descriptions) for of_one in lists for text in of_one)
    vectors = embedder.embed(list(texts))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    row = {text: number for number, text in enumerate(texts)}

    def nearest(of_group: Sequence[str], of_note: Sequence[str]) -> np.ndarray:
        if not of_note:
            return np.zeros(len(of_group))
        cosines = vectors[[row[text] for text in of_group]] @ vectors[[row[text] for text in of_note]].T
        return cosines.max(axis=1)

    return [
        np.column_stack([nearest(titles, near), nearest(titles, spans)])
        for titles, near, spans in zip(descriptions, sentences, evidence)
    ]
