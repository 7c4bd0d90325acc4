"""Evidence spans from one score per token."""

from __future__ import annotations

import numpy as np

from nosology.core import EvidenceSpan

_LONGEST = 12  # tokens of a span: short evidence is quick to check


def best_spans(
    text: str, parts: np.ndarray, starts: np.ndarray, ends: np.ndarray, limit: int, share: float = 0.15
) -> list[EvidenceSpan]:
    """At most `limit` runs of neighbouring tokens, each scored by the sum of its parts, strongest first.

    parts, starts, ends: (T,). A token belongs to a run if its part is at least `share` of the largest one; runs do not
    cross a line break and have at most 12 tokens.
    """
    if not len(parts) or parts.max() <= 0:
        return []
    chosen = np.flatnonzero(parts >= share * parts.max())
    spans: list[EvidenceSpan] = []
    run = [chosen[0]]
    for token in chosen[1:]:
        if token == run[-1] + 1 and len(run) < _LONGEST and "\n" not in text[ends[run[-1]] : starts[token]]:
            run.append(token)
        else:
            spans.append(_span(text, parts, starts, ends, run))
            run = [token]
    spans.append(_span(text, parts, starts, ends, run))
    return sorted(spans, key=lambda span: (-span.score, span.start))[:limit]


def _span(text: str, parts: np.ndarray, starts: np.ndarray, ends: np.ndarray, run: list[int]) -> EvidenceSpan:
    start, end = int(starts[run[0]]), int(ends[run[-1]])
    return EvidenceSpan(start, end, text[start:end], float(parts[run].sum()))
