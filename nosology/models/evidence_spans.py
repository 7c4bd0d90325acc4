"""Evidence spans: from one weight per token, or by occlusion for coders that read a note as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from nosology.core import EvidenceSpan, Span
from nosology.core.model import WordWeights
from nosology.encoders.tokenizers import Encoding
from nosology.text.sentences import sentences

_MAX_TOKENS = 12  # of a span: short evidence is quick to check
_MAX_PARTS = 32  # of a note in occlusion; each costs one forward pass


def best_spans(
    text: str, weights: np.ndarray, starts: np.ndarray, ends: np.ndarray, limit: int, share: float = 0.15
) -> list[list[EvidenceSpan]]:
    """For each row of weights, at most `limit` runs of neighbouring tokens, scored by their sums, strongest first.

    weights: (N, T); starts, ends: (T,). A token belongs to a run if its weight is at least `share` of the largest of
    the row; runs do not cross a line break and have at most 12 tokens.
    """
    spans: list[list[EvidenceSpan]] = [[] for _ in weights]
    if not weights.size:
        return spans
    highest = weights.max(1)
    row, token = np.nonzero((weights >= share * highest[:, None]) & (highest > 0)[:, None])
    if not len(row):
        return spans
    line = np.cumsum(_follows_line_break(text, starts, ends))
    follows = (np.diff(row) == 0) & (np.diff(token) == 1) & (np.diff(line[token]) == 0)
    segments = np.flatnonzero(np.concatenate([[True], ~follows]))  # runs of any length
    sizes = np.diff(segments, append=len(row))
    position = np.arange(len(row)) - np.repeat(segments, sizes)
    first = np.flatnonzero(position % _MAX_TOKENS == 0)
    last = np.append(first[1:], len(row)) - 1
    scores = np.add.reduceat(weights[row, token], first)
    best = _highest(row[first], scores, limit)
    columns = row[first[best]], starts[token[first[best]]], ends[token[last[best]]], scores[best]
    for number, start, end, score in zip(*(column.tolist() for column in columns)):
        spans[number].append(EvidenceSpan(start, end, text[start:end], score))
    return spans


def _highest(row: np.ndarray, scores: np.ndarray, limit: int) -> np.ndarray:
    """The indices of the `limit` highest scores of each row, row by row, the highest first; row: (R,) ascending."""
    sizes = np.bincount(row)
    place = np.arange(len(row)) - (np.cumsum(sizes) - sizes)[row]
    if sizes.max() > limit:  # only those that can be among the highest are sorted
        table = np.full((len(sizes), sizes.max()), -np.inf, dtype=scores.dtype)
        table[row, place] = scores
        chosen = np.flatnonzero(scores >= np.partition(table, -limit, axis=1)[row, -limit])
        row, scores = row[chosen], scores[chosen]
    else:
        chosen = np.arange(len(row))
    order = np.lexsort((-scores, row))
    first = np.searchsorted(row, row, "left")
    return chosen[order[np.arange(len(row)) - first < limit]]


def _follows_line_break(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Whether a line break separates each token (T,) from the one before; False for the first."""
    breaks = np.array([match.start() for match in re.finditer("\n", text)], dtype=np.int64)
    before = np.searchsorted(breaks, ends[:-1], "left")
    return np.concatenate([[False], np.searchsorted(breaks, starts[1:], "left") > before])


def by_word(encoding: Encoding, weights: np.ndarray) -> WordWeights:
    """The weights (labels, T) of tokens, summed over the word pieces of each word."""
    first = np.flatnonzero(np.diff(encoding.starts, prepend=-1))
    if len(first) == len(encoding):  # every token is a word
        return WordWeights(encoding.starts, encoding.ends, np.where(encoding.ends > encoding.starts, weights, 0))
    words = np.add.reduceat(weights, first, axis=1)
    starts, ends = encoding.starts[first], encoding.ends[first]
    words[:, ends <= starts] = 0
    return WordWeights(starts, ends, words)


def occlusion(
    text: str, logits: Callable[[list[str]], np.ndarray], columns: Sequence[int], limit: int = 5
) -> list[list[EvidenceSpan]]:
    """For each column, the parts of the note whose removal lowers its logit, by how much, strongest first.

    logits: returns (B, L) for B texts. A part is a sentence; in a note with many sentences, several in a row.
    """
    all_sentences = sentences(text)
    cuts = np.array_split(np.arange(len(all_sentences)), min(_MAX_PARTS, len(all_sentences)) or 1)
    parts = [Span(all_sentences[cut[0]].start, all_sentences[cut[-1]].end) for cut in cuts if len(cut)]
    if not len(columns) or len(parts) < 2:
        return [[_span(text, part, 1.0) for part in parts] for _ in columns]
    values = logits([text, *(text[: part.start] + text[part.end :] for part in parts)])[:, list(columns)]
    return [
        [_span(text, parts[i], drop[i]) for i in np.argsort(-drop, kind="stable")[:limit] if drop[i] > 0]
        for drop in (values[0] - values[1:]).T  # (columns, parts)
    ]


def _span(text: str, span: Span, score: float) -> EvidenceSpan:
    return EvidenceSpan(span.start, span.end, text[span.start : span.end], float(score))
