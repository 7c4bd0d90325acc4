"""How good an explanation is: faithful to the coder (DeYoung et al. 2020, ERASER), and plausible to people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nosology.core import Evidence
from nosology.explanation.attribution import Attribution

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of the words, over which faithfulness is averaged

Probabilities = Callable[[Iterable[str]], np.ndarray]


@dataclass(frozen=True)
class Faithful:
    """comprehensiveness: what the probability loses without the best words (more is better); sufficiency: what it
    loses when nothing but them is left (less is better)."""

    comprehensiveness: float
    sufficiency: float


@dataclass(frozen=True)
class Plausible:
    """Against the words that people named: as many best words as they named, F1 and intersection over union."""

    f1: float
    iou: float


def faithfulness(
    probabilities: Probabilities, text: str, found: Attribution, shares: Sequence[float] = SHARES
) -> Faithful:
    """The mean over several shares of the words, of which one at least is taken; found: of a note with a word."""
    counts = [max(1, round(share * len(found.words))) for share in shares]
    without = [_removed(text, found, found.best(k)) for k in counts]
    alone = [_kept(text, found, found.best(k)) for k in counts]
    whole, *rest = probabilities([text, *without, *alone])[:, found.column].astype(np.float64).tolist()
    lost = whole - np.array(rest)
    return Faithful(float(lost[: len(counts)].mean()), float(lost[len(counts) :].mean()))


def plausibility(found: Attribution, evidence: Iterable[Evidence]) -> Plausible | None:
    """How well the best words agree with the evidence for the code; None where there is none, or it has no word."""
    gold = np.zeros(len(found.words), dtype=bool)
    for item in evidence:
        gold |= (found.words.ends > item.start) & (found.words.starts < item.end)
    if not gold.any():
        return None
    chosen = np.zeros(len(gold), dtype=bool)
    chosen[found.best(int(gold.sum()))] = True
    both = int((gold & chosen).sum())
    return Plausible(2 * both / int(gold.sum() + chosen.sum()), both / int((gold | chosen).sum()))


def _removed(text: str, found: Attribution, words: np.ndarray) -> str:
    """The text without some of its words."""
    parts, place = [], 0
    for i in sorted(words.tolist()):
        parts.append(text[place : found.words.starts[i]])
        place = int(found.words.ends[i])
    return "".join([*parts, text[place:]])


def _kept(text: str, found: Attribution, words: np.ndarray) -> str:
    """Some of the words of a text alone, in their order; what stands between words stays."""
    others = np.setdiff1d(np.arange(len(found.words)), words)
    return _removed(text, found, others)
