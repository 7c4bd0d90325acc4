"""Statistics of a corpus: its size, and the distribution of its codes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from nosology.codes import releases, table
from nosology.core import SPLITS, Code, Note
from nosology.core.progress import progress
from nosology.corpora.corpus import Corpus

RARE = 10
_TOP_CHAPTERS = 10


def corpus_stats(corpus: Corpus) -> dict[str, Any]:
    """Statistics of all notes, per split and per code system, and the chapters with most codes."""
    counters: dict[str, _StatsCounter] = {}
    for note in progress(corpus.notes(), "reading", total=len(corpus)):
        for name in ("all", note.split or "none"):
            counters.setdefault(name, _StatsCounter()).add(note)
    total = counters.pop("all", _StatsCounter())
    return {
        "hash": corpus.hash,
        **total.to_json(),
        "splits": {name: counters[name].to_json() for name in (*SPLITS, "none") if name in counters},
        "systems": {
            system: _code_stats({code: count for code, count in total.codes.items() if code.system == system})
            for system in sorted({code.system for code in total.codes})
        },
        "chapters": _top_chapters(total.codes),
    }


class _StatsCounter:
    """Statistics of a stream of notes."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.codes_per_note: list[int] = []
        self.codes: Counter[Code] = Counter()
        self.patients: set[str] = set()

    def add(self, note: Note) -> None:
        self.words.append(len(note.text.split()))
        self.codes_per_note.append(len(note.codes))
        self.codes.update(note.codes)
        if note.patient is not None:
            self.patients.add(note.patient)

    def to_json(self) -> dict[str, Any]:
        quartiles = np.percentile(self.words, [25, 50, 75]) if self.words else None
        codes = np.asarray(self.codes_per_note, dtype=float)
        return {
            "notes": len(self.words),
            "patients": len(self.patients),
            "words_per_note": None if quartiles is None else dict(zip(("q1", "median", "q3"), map(float, quartiles))),
            "codes_per_note": None if not codes.size else {"mean": float(codes.mean()), "std": float(codes.std())},
            "notes_without_codes": int((codes == 0).sum()),
            **_code_stats(self.codes),
        }


def _code_stats(codes: dict[Code, int]) -> dict[str, Any]:
    rare = sum(count < RARE for count in codes.values())
    return {
        "distinct_codes": len(codes),
        "occurrences": sum(codes.values()),
        f"share_of_codes_seen_under_{RARE}_times": rare / len(codes) if codes else None,
    }


def _top_chapters(codes: Counter[Code]) -> list[dict[str, Any]]:
    """The chapters with most occurrences. The chapter of a code that no release has is "unknown"."""
    counts: Counter[tuple[str, str]] = Counter()
    for code, count in codes.items():
        counts[code.system, _chapter(code)] += count
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_TOP_CHAPTERS]
    return [{"system": system, "chapter": chapter, "occurrences": count} for (system, chapter), count in top]


def _chapter(code: Code) -> str:
    for release in reversed(releases(code.system)):
        codes = table(code.system, release)
        if code.code in codes:
            chapter = codes.chapter(code.code)
            return f"{chapter} {codes.description(chapter)}"
    return "unknown"
