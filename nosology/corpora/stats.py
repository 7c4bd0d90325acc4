"""How large a corpus is and how its codes are spread."""

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


def stats(corpus: Corpus) -> dict[str, Any]:
    """The numbers of a corpus: in all, per split, per system, and the chapters with the most codes."""
    parts: dict[str, _Part] = {}
    for note in progress(corpus.notes(), "reading", total=len(corpus)):
        for name in ("all", note.split or "none"):
            parts.setdefault(name, _Part()).add(note)
    whole = parts.pop("all", _Part())
    return {
        "hash": corpus.hash,
        **whole.to_json(),
        "splits": {name: parts[name].to_json() for name in (*SPLITS, "none") if name in parts},
        "systems": {
            system: _spread({code: count for code, count in whole.codes.items() if code.system == system})
            for system in sorted({code.system for code in whole.codes})
        },
        "chapters": _chapters(whole.codes),
    }


class _Part:
    """Notes counted as they pass."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.codes_a_note: list[int] = []
        self.codes: Counter[Code] = Counter()
        self.patients: set[str] = set()

    def add(self, note: Note) -> None:
        self.words.append(len(note.text.split()))
        self.codes_a_note.append(len(note.codes))
        self.codes.update(note.codes)
        if note.patient is not None:
            self.patients.add(note.patient)

    def to_json(self) -> dict[str, Any]:
        quartiles = np.percentile(self.words, [25, 50, 75]) if self.words else None
        a_note = np.asarray(self.codes_a_note, dtype=float)
        return {
            "notes": len(self.words),
            "patients": len(self.patients),
            "words_a_note": None if quartiles is None else dict(zip(("q1", "median", "q3"), map(float, quartiles))),
            "codes_a_note": None if not a_note.size else {"mean": float(a_note.mean()), "std": float(a_note.std())},
            "notes_without_codes": int((a_note == 0).sum()),
            **_spread(self.codes),
        }


def _spread(codes: dict[Code, int]) -> dict[str, Any]:
    rare = sum(count < RARE for count in codes.values())
    return {
        "distinct_codes": len(codes),
        "occurrences": sum(codes.values()),
        f"share_of_codes_seen_under_{RARE}_times": rare / len(codes) if codes else None,
    }


def _chapters(codes: Counter[Code]) -> list[dict[str, Any]]:
    """The chapters with the most occurrences; codes in no release stand under "unknown"."""
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
