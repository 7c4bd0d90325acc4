"""Evidence for coders that read a note as a whole: what is lost when a part of the note is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nosology.core import EvidenceSpan, Span
from nosology.text.sentences import sentences

_PARTS = 32  # of a note at most: each costs one reading of the note


def occlusion(
    text: str, logits: Callable[[list[str]], np.ndarray], columns: Sequence[int], limit: int = 5
) -> list[list[EvidenceSpan]]:
    """For each column, the parts of the note without which its logit falls, by how far it falls, strongest first.

    logits: of notes (B,) as (B, L). A part is a sentence; in a note with many, some sentences in a row.
    """
    parts = _parts(text)
    if not len(columns) or len(parts) < 2:
        whole = [EvidenceSpan(part.start, part.end, text[part.start : part.end], 1.0) for part in parts]
        return [list(whole) for _ in columns]
    found = logits([text, *(text[: part.start] + text[part.end :] for part in parts)])[:, list(columns)]
    falls = found[0] - found[1:]  # (parts, columns)
    return [_strongest(text, parts, fall, limit) for fall in falls.T]


def _parts(text: str) -> list[Span]:
    """The sentences of a note, some in a row as one where there are too many."""
    every = sentences(text)
    cuts = np.array_split(np.arange(len(every)), min(_PARTS, len(every))) if every else []
    return [Span(every[cut[0]].start, every[cut[-1]].end) for cut in cuts]


def _strongest(text: str, parts: list[Span], fall: np.ndarray, limit: int) -> list[EvidenceSpan]:
    order = [i for i in np.argsort(-fall, kind="stable")[:limit] if fall[i] > 0]
    return [
        EvidenceSpan(parts[i].start, parts[i].end, text[parts[i].start : parts[i].end], float(fall[i])) for i in order
    ]
