"""Attribution: the weight of each word of a note for one code, by attention, contributions, occlusion or LIME.

The quality of an attribution is its faithfulness to the model (ERASER, DeYoung et al. 2020), and its plausibility: the
agreement with words that people marked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np

from nosology.core import ConfigError, Evidence, EvidenceSpan, Note
from nosology.core.model import (
    ApproximateProbabilities,
    AttentionWeights,
    CategoryAttention,
    Model,
    WordContributions,
    WordWeights,
)
from nosology.text.tokens import Tokens, tokenize

METHODS = ("attention", "category", "contributions", "occlusion", "lime")  # the cheapest first
_BATCH = 512  # variants of a note that are held in memory at once

Probabilities = Callable[[Sequence[Note]], np.ndarray]


@dataclass(frozen=True)
class Attribution:
    """Weights (W,) of the words of a note for one label. A negative weight speaks against the code."""

    method: str
    label: int
    words: Tokens
    weights: np.ndarray

    def best(self, k: int) -> np.ndarray:
        """The k words of highest weight, highest first; ties in the order of the note."""
        return np.argsort(-self.weights, kind="stable")[:k]


def methods_of(model: Model) -> list[str]:
    """The methods that a model supports, the cheapest first."""
    supported = {
        "attention": isinstance(model, AttentionWeights),
        "category": isinstance(model, CategoryAttention) and model.has_category_attention,
        "contributions": isinstance(model, WordContributions),
    }
    return [method for method in METHODS if supported.get(method, True)]


def default_methods(model: Model) -> list[str]:
    """The methods that a model supports and whose libraries are installed: lime has one of its own."""
    return [method for method in methods_of(model) if method != "lime" or find_spec("lime")]


def check_methods(model: Model, methods: Sequence[str]) -> None:
    """ConfigError if the model does not support one of these methods."""
    if unsupported := [method for method in methods if method not in methods_of(model)]:
        allowed = ", ".join(methods_of(model))
        raise ConfigError(f"method must be one of {allowed} for a coder of kind {model.kind}; got {unsupported[0]!r}")


def attribute(model: Model, note: Note, label: int, method: str, *, samples: int = 1000, seed: int = 0) -> Attribution:
    """The attribution of a note's words to a label; samples, seed: for LIME."""
    check_methods(model, [method])
    words = tokenize(note.text, lower_case=False)
    if not len(words):
        return Attribution(method, label, words, np.zeros(0))
    if method == "attention" and isinstance(model, AttentionWeights):
        weights = _to_words(words, model.attention_weights(note, [label]))
    elif method == "category" and isinstance(model, CategoryAttention):
        weights = _to_words(words, model.category_attention(note, [label]))
    elif method == "contributions" and isinstance(model, WordContributions):
        weights = _to_words(words, model.word_contributions(note, [label]))
    elif method == "occlusion":
        weights = _occlusion(model, note, words, label)
    else:
        approximate = isinstance(model, ApproximateProbabilities)
        scores = model.approximate_probabilities if approximate else model.probabilities
        weights = lime_weights(scores, note, words, label, samples=samples, seed=seed)
    return Attribution(method, label, words, weights)


def top_words(model: Model, note: Note, labels: Sequence[int], limit: int = 5) -> list[list[EvidenceSpan]]:
    """For each label, the distinct words with the most attention, each at its strongest position.

    The score of a word is the sum over its positions. A model without attention gives its evidence.
    """
    if not isinstance(model, AttentionWeights):
        return model.evidence(note, labels, limit)
    attention = model.attention_weights(note, labels)
    return [_heaviest(note.text, attention, row)[:limit] for row in attention.weights]


def _heaviest(text: str, words: WordWeights, weights: np.ndarray) -> list[EvidenceSpan]:
    """Each distinct word of a note with weight (W,) above 0, the heaviest first."""
    names = [text[start:end].lower() for start, end in zip(words.starts, words.ends)]
    sums: dict[str, float] = {}
    position: dict[str, int] = {}
    for i in np.argsort(-weights, kind="stable"):
        position.setdefault(names[i], int(i))
        sums[names[i]] = sums.get(names[i], 0.0) + float(weights[i])
    heaviest = sorted((word for word in sums if sums[word] > 0), key=lambda word: (-sums[word], position[word]))
    spans = [(int(words.starts[position[word]]), int(words.ends[position[word]]), sums[word]) for word in heaviest]
    return [EvidenceSpan(start, end, text[start:end], score) for start, end, score in spans]


def _occlusion(model: Model, note: Note, words: Tokens, label: int) -> np.ndarray:
    """How much the logit of the probability falls when a word is removed."""
    text, spans = note.text, list(words.spans())
    parts = [model.probabilities([note])]
    for first in range(0, len(spans), _BATCH):
        variants = [replace(note, text=text[:start] + text[end:]) for start, end in spans[first : first + _BATCH]]
        parts.append(model.probabilities(variants))
    probabilities = np.clip(np.concatenate(parts)[:, label].astype(np.float64), 1e-7, 1 - 1e-7)
    logits = np.log(probabilities) - np.log1p(-probabilities)
    return logits[0] - logits[1:]


def lime_weights(
    probabilities: Probabilities, note: Note, words: Tokens, label: int, *, samples: int = 1000, seed: int = 0
) -> np.ndarray:
    """The weights (W,) of the local linear model that LIME fits around a note (Ribeiro et al. 2016, package lime).

    Equal variants of the note are scored once.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package has escapes that newer Pythons warn about
            from lime.lime_text import LimeTextExplainer
    except ImportError as error:
        raise ConfigError("method lime needs the library lime: pip install 'nosology[explain]'") from error

    def scores(texts: list[str]) -> np.ndarray:
        distinct, back = np.unique(np.array(texts, dtype=object), return_inverse=True)
        parts = [
            probabilities([replace(note, text=text) for text in distinct[start : start + _BATCH]])[:, label]
            for start in range(0, len(distinct), _BATCH)
        ]
        positive = np.concatenate(parts)[back]
        return np.column_stack([1 - positive, positive])

    # bow=False numbers words by position, so that repeated words keep separate weights.
    explainer = LimeTextExplainer(split_expression=lambda _: words.words, bow=False, mask_string="", random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanation = explainer.explain_instance(
            note.text, scores, labels=(1,), num_features=len(words), num_samples=samples
        )
    weights = np.zeros(len(words))
    for number, weight in explanation.as_map()[1]:
        weights[number] = weight
    return weights


def _to_words(words: Tokens, source: WordWeights) -> np.ndarray:
    """The weights (W,) of the first row of `source`, each divided among the words that its span overlaps."""
    weights = np.zeros(len(words))
    if not len(source.starts):
        return weights
    first = np.searchsorted(words.ends, source.starts, side="right")
    last = np.searchsorted(words.starts, source.ends, side="left")
    for start, end, weight in zip(first, last, source.weights[0]):
        if start < end:
            weights[start:end] += weight / (end - start)
    return weights


SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of the words, over which faithfulness is averaged


@dataclass(frozen=True)
class Faithfulness:
    """comprehensiveness: loss of probability without the best words (high is good); sufficiency: loss with nothing
    but the best words (low is good)."""

    comprehensiveness: float
    sufficiency: float


@dataclass(frozen=True)
class Plausibility:
    """Agreement of the best words with as many words that people marked: F1 and intersection over union."""

    f1: float
    iou: float


def faithfulness(
    probabilities: Probabilities, note: Note, attribution: Attribution, shares: Sequence[float] = SHARES
) -> Faithfulness:
    """The mean over several shares of the words, at least one word each."""
    counts = [max(1, round(share * len(attribution.words))) for share in shares]
    every = np.arange(len(attribution.words))
    without = [_without(note, attribution, attribution.best(k)) for k in counts]
    alone = [_without(note, attribution, np.setdiff1d(every, attribution.best(k))) for k in counts]
    whole, *rest = probabilities([note, *without, *alone])[:, attribution.label].astype(np.float64).tolist()
    lost = whole - np.array(rest)
    return Faithfulness(float(lost[: len(counts)].mean()), float(lost[len(counts) :].mean()))


def plausibility(attribution: Attribution, evidence: Iterable[Evidence]) -> Plausibility | None:
    """The agreement of the best words with the evidence of the code; None if the evidence covers no word."""
    gold = np.zeros(len(attribution.words), dtype=bool)
    for item in evidence:
        gold |= (attribution.words.ends > item.start) & (attribution.words.starts < item.end)
    if not gold.any():
        return None
    chosen = np.zeros(len(gold), dtype=bool)
    chosen[attribution.best(int(gold.sum()))] = True
    union = int((gold & chosen).sum())
    return Plausibility(2 * union / int(gold.sum() + chosen.sum()), union / int((gold | chosen).sum()))


def _without(note: Note, attribution: Attribution, words: np.ndarray) -> Note:
    """The note without some of its words; the text between words stays."""
    parts, offset = [], 0
    for i in sorted(words.tolist()):
        parts.append(note.text[offset : attribution.words.starts[i]])
        offset = int(attribution.words.ends[i])
    return replace(note, text="".join([*parts, note.text[offset:]]))
