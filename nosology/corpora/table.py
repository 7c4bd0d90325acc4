"""Plain tables: notes files of any of their forms, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nosology.core import Note
from nosology.corpora.intake import Intake
from nosology.corpora.notes_file import read_notes


def read(paths: Sequence[Path], intake: Intake, system: str | None = None, lang: str | None = None) -> Iterator[Note]:
    """The notes of each file in turn; `system` and `lang` are those of codes and notes that do not name their own."""
    for path in paths:
        for note in read_notes(path, intake, system=system):
            yield note if note.lang or lang is None else replace(note, lang=lang)
