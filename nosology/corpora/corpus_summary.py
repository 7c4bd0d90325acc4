"""Summaries of the notes of a corpus, without their texts, by several processes: for splits and the leakage audit."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import IO

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
    with tempfile.TemporaryFile() as file, counting(f"reading {corpus.folder.name}", total=len(corpus)) as counter:
        stored = _StoredShingles(file)
        for group in summaries:
            stored.add(group)
            notes += (
                replace(note, codes=tuple(known.setdefault(code, code) for code in note.codes)) for note in group.notes
            )
            bad_evidence += group.bad_evidence
            counter.advance(len(group.notes))
        prints = stored.fingerprints()
    if prints:
        notes = [replace(note, fingerprint=fingerprint) for note, fingerprint in zip(notes, prints)]
    return CorpusSummary(sorted(notes, key=lambda note: note.id), bad_evidence)


class _StoredShingles:
    """The shingles of all notes in a temporary file without a name: six gigabytes for a million notes."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self._digests: list[bytes] = []
        self._lengths: list[int] = []

    def add(self, group: _GroupSummary) -> None:
        """Appends the shingles of a group."""
        self._digests += group.digests
        self._lengths += group.lengths
        self._file.write(group.shingles.data)

    def fingerprints(self) -> list[Fingerprint]:
        """The fingerprints of all notes, whose shingles stay on disk and are mapped into memory; none without texts."""
        self._file.flush()
        shingles = np.empty(0, np.uint32)
        if any(self._lengths):  # an empty file cannot be mapped
            mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            shingles = np.frombuffer(mapped, np.uint32)
        bounds = pairwise(accumulate(self._lengths, initial=0))
        return [Fingerprint(digest, shingles[a:b]) for digest, (a, b) in zip(self._digests, bounds)]


@dataclass(frozen=True, slots=True)
class _GroupSummary:
    """The summaries of a row group; shingles are one array, which passes fast between processes."""

    notes: list[NoteSummary]  # without fingerprints
    digests: list[bytes]  # empty without texts
    shingles: np.ndarray
    lengths: list[int]  # the number of shingles of each note
    bad_evidence: list[str]


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
        [len(of_note) for of_note in shingles],
        bad_evidence,
    )
