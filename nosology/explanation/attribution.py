"""How much each word of a note speaks for a code, by one method or another, always on the note as it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nosology.core import ConfigError
from nosology.explanation.lime_words import lime_weights
from nosology.models.bundle import Model
from nosology.text.tokens import Tokens, tokenize

_BATCH = 512  # texts that are held at a time: a long note has thousands of words, and so often its length


@dataclass(frozen=True)
class Attribution:
    """Weights (W,) of the words of a note for one code, by one method; below 0 a word speaks against it."""

    method: str
    column: int
    words: Tokens
    weights: np.ndarray

    def best(self, k: int) -> np.ndarray:
        """The k words of highest weight, the highest first; of equal ones the first in the note."""
        return np.argsort(-self.weights, kind="stable")[:k]


def attribute(model: Model, text: str, column: int, method: str, *, samples: int = 1000, seed: int = 0) -> Attribution:
    """The weights of a note's words for a code; a note without a word has none."""
    if method not in methods_of(model):
        allowed = ", ".join(methods_of(model))
        raise ConfigError(f"method must be one of {allowed} for a coder of kind {model.kind}; got {method!r}")
    words = tokenize(text, lower_case=False)
    if not len(words):
        return Attribution(method, column, words, np.zeros(0))
    if method == "lime":
        scores = getattr(model, "rough_probabilities", model.probabilities)
        weights = lime_weights(scores, text, words, column, samples=samples, seed=seed)
    else:
        weights = METHODS[method](model, text, words, column)
    return Attribution(method, column, words, weights)


def methods_of(model: Model) -> list[str]:
    """The methods that a coder of this kind has, the cheapest first."""
    has = {
        "attention": hasattr(model, "word_weights"),
        "category": hasattr(model, "category_weights") and getattr(model.shape, "attention", "") == "hierarchical",
        "contributions": hasattr(model, "contributions"),
    }
    return [name for name in METHODS if has.get(name, True)]


def _attention(model: Model, text: str, words: Tokens, column: int) -> np.ndarray:
    starts, ends, weights = model.word_weights(text, [column])
    return _onto(words, starts, ends, weights[0])


def _category(model: Model, text: str, words: Tokens, column: int) -> np.ndarray:
    starts, ends, weights = model.category_weights(text)
    return _onto(words, starts, ends, weights[model.categories.of[column]])


def _contributions(model: Model, text: str, words: Tokens, column: int) -> np.ndarray:
    parts, starts, ends = model.contributions(text, [column])
    return _onto(words, starts, ends, parts[:, 0])


def _occlusion(model: Model, text: str, words: Tokens, column: int) -> np.ndarray:
    """How far the probability's logit falls when a word is left out."""
    places = list(zip(words.starts.tolist(), words.ends.tolist()))
    parts = [model.probabilities([text])]
    for first in range(0, len(places), _BATCH):
        parts.append(model.probabilities([text[:start] + text[end:] for start, end in places[first : first + _BATCH]]))
    found = np.concatenate(parts)[:, column].astype(np.float64)
    logits = np.log(np.clip(found, 1e-7, 1 - 1e-7)) - np.log1p(-np.clip(found, 1e-7, 1 - 1e-7))
    return logits[0] - logits[1:]


METHODS: dict[str, Callable[[Model, str, Tokens, int], np.ndarray]] = {
    "attention": _attention,
    "category": _category,
    "contributions": _contributions,
    "occlusion": _occlusion,
    "lime": lambda *_: np.zeros(0),  # takes settings of its own, see `attribute`
}


def _onto(words: Tokens, starts: np.ndarray, ends: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weights of stretches, in order and apart, as weights of words: a stretch gives to all words that it touches."""
    found = np.zeros(len(words))
    if not len(starts):
        return found
    first = np.searchsorted(words.ends, starts, side="right")
    last = np.searchsorted(words.starts, ends, side="left")
    for a, b, weight in zip(first, last, weights):
        if a < b:
            found[a:b] += weight / (b - a)
    return found
