"""Filters over a stream of notes; each counts in `record` what it leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nosology.core import Code, Note
from nosology.corpora.mimic_tables import admission_id


def keep_codes(notes: Iterable[Note], keep: Callable[[Code], bool], record: dict[str, Any]) -> Iterator[Note]:
    """The notes with those codes alone; a note that had codes and loses them all is left out."""
    record.update(code_occurrences_left_out=0, notes_left_out=0)
    for note in notes:
        codes = tuple(code for code in note.codes if keep(code))
        if len(codes) == len(note.codes):
            yield note
            continue
        record["code_occurrences_left_out"] += len(note.codes) - len(codes)
        if codes:
            yield replace(note, codes=codes, evidence=tuple(item for item in note.evidence if keep(item.code)))
        else:
            record["notes_left_out"] += 1


def drop_uncoded(notes: Iterable[Note], record: dict[str, Any]) -> Iterator[Note]:
    """The notes that have a code."""
    record.update(notes_left_out=0)
    for note in notes:
        if note.codes:
            yield note
        else:
            record["notes_left_out"] += 1


def assign_splits(notes: Iterable[Note], splits: Mapping[str, str], record: dict[str, Any]) -> Iterator[Note]:
    """The notes with the split that the table gives their admission or id; those it does not name are left out."""
    record.update(notes_left_out=0, entries_without_note=len(splits))
    used: set[str] = set()
    for note in notes:
        key = next((key for key in (admission_id(str(note.extra.get("hadm_id"))), note.id) if key in splits), None)
        if key is None:
            record["notes_left_out"] += 1
            continue
        if key not in used:
            used.add(key)
            record["entries_without_note"] -= 1
        yield replace(note, split=splits[key])


def frequent_codes(notes: Iterable[Note], min_count: int) -> frozenset[Code]:
    """The codes that at least `min_count` of the notes have, each system counted for itself."""
    counts: Counter[Code] = Counter()
    for note in notes:
        counts.update(note.codes)
    return frozenset(code for code, count in counts.items() if count >= min_count)
