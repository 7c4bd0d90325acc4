"""Summaries of the notes of a corpus, without their texts, by several processes: for splits and the leakage audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from nosology.core import Code, Note
from nosology.core.forked_processes import forked_map
from nosology.core.progress import counting
from nosology.corpora.corpus import Corpus, return_memory
from nosology.corpora.duplicates import SHINGLE, Fingerprint
from nosology.corpora.group_splits import NoteSummary, summarize_notes


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """The notes of a corpus without their texts, and the ids of those with evidence outside their text."""

    notes: list[NoteSummary]
    bad_evidence: list[str]


def summarize_corpus(corpus: Corpus, *, texts: bool = True, shingle: int = SHINGLE, workers: int = 1) -> CorpusSummary:
    """The summaries of all notes, sorted by id, as `summarize_notes`; workers: processes."""
    read = partial(_summarize_group, corpus, texts, shingle)
    summaries = forked_map(read, range(corpus.row_groups), workers, block=1)
    notes: list[NoteSummary] = []
    bad_evidence: list[str] = []
    known: dict[Code, Code] = {}  # one object per code, not one per process
    with counting(f"reading {corpus.folder.name}", total=len(corpus)) as counter:
        for group in summaries:
            for note, prints in zip(group.notes, group.fingerprints()):
                codes = tuple(known.setdefault(code, code) for code in note.codes)
                notes.append(replace(note, codes=codes, fingerprint=prints))
            bad_evidence += group.bad_evidence
            counter.advance(len(group.notes))
    return CorpusSummary(sorted(notes, key=lambda note: note.id), bad_evidence)


@dataclass(frozen=True, slots=True)
class _GroupSummary:
    """The summaries of a row group; fingerprints are one array, which passes fast between processes."""

    notes: list[NoteSummary]  # without fingerprints
    digests: list[bytes]  # empty without texts
    shingles: np.ndarray
    bounds: list[int]
    bad_evidence: list[str]

    def fingerprints(self) -> list[Fingerprint | None]:
        """One per note, None without texts."""
        if not self.digests:
            return [None] * len(self.notes)
        return [Fingerprint(digest, self.shingles[a:b]) for digest, (a, b) in zip(self.digests, pairwise(self.bounds))]


def _summarize_group(corpus: Corpus, texts: bool, shingle: int, group: int) -> _GroupSummary:
    return_memory()
    bad_evidence: list[str] = []

    def notes() -> Iterator[Note]:
        for note in corpus.notes(text=texts, group=group):
            if any(not 0 <= item.start < item.end <= len(note.text) for item in note.evidence):
                bad_evidence.append(note.id)
            yield note

    summaries = summarize_notes(notes(), texts=texts, shingle=shingle)
    prints = [note.fingerprint for note in summaries if note.fingerprint is not None]
    shingles = [print_.shingles for print_ in prints]
    return _GroupSummary(
        [replace(note, fingerprint=None) for note in summaries],
        [print_.digest for print_ in prints],
        np.concatenate(shingles) if shingles else np.empty(0, np.uint32),
        np.cumsum([0, *map(len, shingles)]).tolist(),
        bad_evidence,
    )
