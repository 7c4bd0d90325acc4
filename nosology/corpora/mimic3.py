"""MIMIC-III discharge summaries, one note an admission, with its ICD-9 codes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nosology.core import Note
from nosology.corpora.intake import Intake
from nosology.corpora.lines import columns
from nosology.corpora.mimic_tables import AdmissionCodes, admission_id, need_table


class _Part(NamedTuple):
    """A report or an addendum; parts sort in the order in which a reader wants them."""

    addendum: bool
    when: str
    row: int
    packed: bytes  # an admission's rows lie apart in the file, so all texts wait in memory: compressed


def read(paths: Sequence[Path], intake: Intake) -> Iterator[Note]:
    """A note for each admission, in the order of first appearance; its id is hadm_id.

    All rows of category "Discharge summary" are joined by line feeds: reports first, then addenda, each by date.
    Tables: NOTEEVENTS, DIAGNOSES_ICD, PROCEDURES_ICD.
    """
    path = need_table(paths, "noteevents")
    codes = AdmissionCodes()
    codes.load(need_table(paths, "diagnoses_icd"), "icd9_code", {"": "icd9cm"}, intake)
    codes.load(need_table(paths, "procedures_icd"), "icd9_code", {"": "icd9proc"}, intake)
    patients: dict[str, str] = {}
    parts: dict[str, list[_Part]] = {}
    required = ["subject_id", "hadm_id", "category", "text"]
    optional = ["description", "chartdate", "charttime"]
    for row, (patient, raw, category, text, description, date, time) in columns(path, intake, required, optional):
        if category.strip().lower() != "discharge summary":
            continue
        admission = admission_id(raw)
        if not admission:
            intake.trouble("no_admission", path, row)
            continue
        patients.setdefault(admission, admission_id(patient))
        packed = zlib.compress(intake.text(text, path, row).encode("utf-8"), level=1)
        part = _Part(description.strip().lower() == "addendum", time or date, row, packed)
        parts.setdefault(admission, []).append(part)
    for admission in list(parts):
        rows = sorted(parts.pop(admission))
        text = "\n".join(zlib.decompress(part.packed).decode("utf-8") for part in rows)
        if intake.accepts(admission, text, path, rows[0].row):
            extra = {"hadm_id": admission, "parts": len(rows)}
            yield Note(admission, text, patient=patients[admission], lang="en", codes=codes.of(admission), extra=extra)
    codes.report(path, intake)
