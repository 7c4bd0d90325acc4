"""Quality of explanations: faithfulness to the model (ERASER, DeYoung et al. 2020) and agreement with people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nosology.core import Evidence, Note
from nosology.explanation.attribution import Attribution, Probabilities

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
    parts, place = [], 0
    for i in sorted(words.tolist()):
        parts.append(note.text[place : attribution.words.starts[i]])
        place = int(attribution.words.ends[i])
    return replace(note, text="".join([*parts, note.text[place:]]))
