"""Evidence spans: from one weight per token, or by occlusion for coders that read a note as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nosology.core import EvidenceSpan, Span
from nosology.text.sentences import sentences

_MAX_TOKENS = 12  # of a span: short evidence is quick to check
_MAX_PARTS = 32  # of a note in occlusion; each costs one forward pass


def best_spans(
    text: str, weights: np.ndarray, starts: np.ndarray, ends: np.ndarray, limit: int, share: float = 0.15
) -> list[EvidenceSpan]:
    """At most `limit` runs of neighbouring tokens, each scored by the sum of its weights, strongest first.

    weights, starts, ends: (T,). A token belongs to a run if its weight is at least `share` of the largest one; runs do
    not cross a line break and have at most 12 tokens.
    """
    if not len(weights) or weights.max() <= 0:
        return []
    runs: list[list[int]] = []
    for token in np.flatnonzero(weights >= share * weights.max()).tolist():
        last = runs[-1][-1] if runs else -2
        if token == last + 1 and len(runs[-1]) < _MAX_TOKENS and "\n" not in text[ends[last] : starts[token]]:
            runs[-1].append(token)
        else:
            runs.append([token])
    spans = [_span(text, Span(int(starts[run[0]]), int(ends[run[-1]])), weights[run].sum()) for run in runs]
    return sorted(spans, key=lambda span: (-span.score, span.start))[:limit]


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
