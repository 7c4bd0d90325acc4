"""What a dataset may know beside MIMIC's tables, as the simulated hospital does: the site and evidence of a note."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from nosology.core import DataError, Evidence
from nosology.corpora.intake import Intake, place
from nosology.corpora.mimic_tables import find_table
from nosology.corpora.notes_file import evidence_from_json, json_records


class Gold:
    """The lines of evidence.jsonl (or .gz), each with note_id, site and evidence; empty if there is no such file.

    Lines are read only as far as the note asked for, so that files in the order of the notes are never held.
    """

    def __init__(self, paths: Sequence[Path], intake: Intake):
        self._path = find_table(paths, "evidence", ".jsonl")
        self._intake = intake
        self._ahead: dict[str, tuple[int, dict]] = {}
        self._lines = self._read() if self._path else iter(())

    def _read(self) -> Iterator[str]:
        for row, record in json_records(self._path, self._intake):
            if not isinstance(record.get("note_id"), str) or not isinstance(record.get("evidence", []), list):
                raise DataError(f"{place(self._path, row)}: expected note_id as text and evidence as a list")
            self._ahead[record["note_id"]] = (row, record)
            yield record["note_id"]

    def of(self, note_id: str, text: str) -> tuple[str | None, tuple[Evidence, ...]]:
        """The site and the evidence of a note; (None, ()) if the file does not name it."""
        while note_id not in self._ahead and next(self._lines, None) is not None:
            pass
        row, record = self._ahead.pop(note_id, (0, {}))
        items, site = record.get("evidence", []), record.get("site")
        found = evidence_from_json(items, len(text), self._intake, file=self._path, row=row) if items else ()
        return site if isinstance(site, str) else None, found
