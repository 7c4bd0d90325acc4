"""Readers of MIMIC-III and MIMIC-IV: discharge summaries and radiology reports with the codes of their admission.

Tables are searched by name (NAME.csv or NAME.csv.gz, any letter case) in the given folders and all folders below.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nosology.core import Code, DataError, Evidence, Note
from nosology.corpora.notes_file import evidence_from_json, json_records
from nosology.corpora.text_files import columns
from nosology.corpora.validation import RecordValidator, location

# icd_version of a table -> code system
DIAGNOSES = {"9": "icd9cm", "10": "icd10cm"}
PROCEDURES = {"9": "icd9proc", "10": "icd10pcs"}

# The first pattern that matches the exam name counts; MIMIC-IV has no column for the modality.
_MODALITIES = {
    "PET": r"\bPET\b",
    "CT": r"\b(CT|CTA|COMPUTED TOMOGRAPHY)\b",
    "MR": r"\b(MR|MRI|MRA|MRV|MRCP|MAGNETIC)\b",
    "US": r"\b(US|ULTRASOUND|DUPLEX|DOPPLER|VENOUS DUP|SONO\w*|UNILAT LOWER EXT VEINS|BILAT LOWER EXT VEINS)\b",
    "MG": r"\b(MAMMO\w*|DIGITAL DIAG\w* BILAT|TOMOSYNTHESIS)\b",
    "NM": r"\b(NUCLEAR|SCAN|SCINT\w*|SPECT|MIBI|HIDA|BONE SCAN|MYOCARDIAL PERFUSION)\b",
    "IR": r"\b(IR|ANGIO\w*|EMBOLIZ\w*|PICC|CATHETER|DRAINAGE|BIOPSY|GUIDED?|STENT|TUNNELED|FILTER)\b",
    "RF": r"\b(FLUORO\w*|SWALLOW|ESOPHAGRAM|BARIUM|UPPER GI|UGI|CYSTOGRAM)\b",
    "XR": r"\b(XR|X-?RAY|AP|PA|LAT|VIEWS?|PORT|PORTABLE|CHEST|ABDOMEN|KNEE|HIP|FOOT|ANKLE|HAND|WRIST|SHOULDER|SPINE)\b",
}
_MODALITY_PATTERNS = {name: re.compile(pattern) for name, pattern in _MODALITIES.items()}


def read_mimic4(paths: Sequence[Path], validator: RecordValidator) -> Iterator[Note]:
    """The MIMIC-IV discharge summaries in file order; `extra` has hadm_id and charttime.

    Tables: discharge, diagnoses_icd, procedures_icd. If there is a file evidence.jsonl, notes get site and evidence.
    """
    path = require_table(paths, "discharge")
    codes, gold = _mimic4_codes(paths, validator), GoldEvidence(paths, validator)
    for note_id, patient, admission, text, charttime in _mimic4_notes(path, validator):
        site, evidence = gold.lookup(note_id, text)
        extra = {"hadm_id": admission, "charttime": charttime}
        note_codes = codes.lookup(admission)
        yield Note(note_id, text, patient, site, lang="en", codes=note_codes, evidence=evidence, extra=extra)
    codes.count_issues(path, validator)


def read_mimic4_radiology(paths: Sequence[Path], validator: RecordValidator) -> Iterator[Note]:
    """The MIMIC-IV radiology reports with an admission, in file order.

    `extra` has hadm_id, charttime, exam_name, modality, age, gender and admission_type; unknown values are None.
    Tables: radiology, diagnoses_icd, procedures_icd; optional: radiology_detail, patients, admissions.
    """
    path = require_table(paths, "radiology")
    codes = _mimic4_codes(paths, validator)
    exams = _exam_names(find_table(paths, "radiology_detail"), validator)
    patient_columns = ["gender", "anchor_age", "anchor_year"]
    patients = _read_lookup(find_table(paths, "patients"), "subject_id", patient_columns, validator)
    admission_columns = ["admittime", "admission_type"]
    admissions = _read_lookup(find_table(paths, "admissions"), "hadm_id", admission_columns, validator)
    for note_id, patient, admission, text, charttime in _mimic4_notes(path, validator):
        gender, anchor_age, anchor_year = patients.get(patient, ("", "", ""))
        admitted, admission_type = admissions.get(admission, ("", ""))
        exam = exams.get(note_id)
        extra: dict[str, Any] = {
            "hadm_id": admission,
            "charttime": charttime,
            "exam_name": exam,
            "modality": modality_of(exam),
            "age": age_at_admission(anchor_age, anchor_year, admitted or charttime),
            "gender": gender or None,
            "admission_type": admission_type or None,
        }
        yield Note(note_id, text, patient=patient, lang="en", codes=codes.lookup(admission), extra=extra)
    codes.count_issues(path, validator)


class _NotePart(NamedTuple):
    """A report or an addendum of an admission; the sort order is the reading order."""

    is_addendum: bool
    time: str
    row: int
    compressed: bytes  # the rows of an admission are scattered over the file, so all texts are held in memory


def read_mimic3(paths: Sequence[Path], validator: RecordValidator) -> Iterator[Note]:
    """One note per MIMIC-III admission with a discharge summary, in the order of first appearance; its id is hadm_id.

    All rows of the category "Discharge summary" are joined by line feeds: reports, then addenda, each by date.
    Tables: NOTEEVENTS, DIAGNOSES_ICD, PROCEDURES_ICD.
    """
    path = require_table(paths, "noteevents")
    codes = AdmissionCodes()
    codes.load(require_table(paths, "diagnoses_icd"), "icd9_code", {"": "icd9cm"}, validator)
    codes.load(require_table(paths, "procedures_icd"), "icd9_code", {"": "icd9proc"}, validator)
    patients: dict[str, str] = {}
    parts: dict[str, list[_NotePart]] = {}
    required = ["subject_id", "hadm_id", "category", "text"]
    optional = ["description", "chartdate", "charttime"]
    for row, (patient, raw, category, text, description, date, time) in columns(path, validator, required, optional):
        if category.strip().lower() != "discharge summary":
            continue
        admission = normalize_id(raw)
        if not admission:
            validator.count_issue("no_admission", path, row)
            continue
        patients.setdefault(admission, normalize_id(patient))
        compressed = zlib.compress(validator.clean_text(text, path, row).encode("utf-8"), level=1)
        part = _NotePart(description.strip().lower() == "addendum", time or date, row, compressed)
        parts.setdefault(admission, []).append(part)
    for admission in list(parts):
        rows = sorted(parts.pop(admission))
        text = "\n".join(zlib.decompress(part.compressed).decode("utf-8") for part in rows)
        if validator.accepts(admission, text, path, rows[0].row):
            extra = {"hadm_id": admission, "parts": len(rows)}
            note_codes = codes.lookup(admission)
            yield Note(admission, text, patient=patients[admission], lang="en", codes=note_codes, extra=extra)
    codes.count_issues(path, validator)


def find_table(paths: Sequence[Path], name: str, suffix: str = ".csv") -> Path | None:
    """The path of a table, None if there is none. If a folder has the table and its .gz, the .gz is ignored.

    DataError if different folders have a table of that name.
    """
    names = (f"{name}{suffix}", f"{name}{suffix}.gz")
    tables: dict[Path, Path] = {}  # by folder
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.name.lower() in names and file.is_file():
                folder = file.resolve().parent
                if folder not in tables or not file.name.lower().endswith(".gz"):
                    tables[folder] = file
    if len(tables) > 1:
        raise DataError(f"found several tables {name}: {', '.join(map(str, tables.values()))}; give the path of one")
    return next(iter(tables.values()), None)


def require_table(paths: Sequence[Path], name: str) -> Path:
    """The path of a table. DataError if there is none."""
    table = find_table(paths, name)
    if table is None:
        raise DataError(f"found no {name}.csv or {name}.csv.gz in {', '.join(map(str, paths))}")
    return table


_RankedCode = tuple[int, int, Code]  # table, seq_num, code


class AdmissionCodes:
    """The codes of all admissions: diagnoses, then procedures, each in the order of seq_num."""

    def __init__(self) -> None:
        self._codes: defaultdict[str, list[_RankedCode]] = defaultdict(list)
        self._tables = 0
        self._used: set[str] = set()
        self._repeated = 0

    def load(self, path: Path, code_column: str, systems: Mapping[str, str], validator: RecordValidator) -> None:
        """Add a table. `systems`: icd_version -> system; the key "" is for tables without versions."""
        required = ["hadm_id", code_column, *([] if "" in systems else ["icd_version"])]
        # Rows with the same rank and code share one tuple: MIMIC has five million rows.
        shared: dict[_RankedCode, _RankedCode] = {}
        for row, (admission, raw, *_, version, rank) in columns(path, validator, required, ["icd_version", "seq_num"]):
            system = systems.get(version.strip())
            if not raw.strip():
                validator.count_issue("empty_code", path, row)
            elif system is None:
                validator.count_issue("malformed_code", path, row)
            elif code := validator.parse_code(raw, system, path, row):
                key = (self._tables, _parse_rank(rank), code)
                self._codes[normalize_id(admission)].append(shared.setdefault(key, key))
        self._tables += 1

    def lookup(self, admission: str) -> tuple[Code, ...]:
        """The distinct codes of an admission."""
        ranked = sorted(self._codes.get(admission, ()))
        codes = tuple(dict.fromkeys(code for _, _, code in ranked))
        self._used.add(admission)
        self._repeated += len(ranked) - len(codes)
        return codes

    def count_issues(self, path: Path, validator: RecordValidator) -> None:
        """Count the coded admissions that were not looked up for a note of `path`, and the repeated codes."""
        validator.count_issue("codes_without_note", path, times=len(self._codes.keys() - self._used))
        validator.count_issue("repeated_code", path, times=self._repeated)


def _mimic4_codes(paths: Sequence[Path], validator: RecordValidator) -> AdmissionCodes:
    codes = AdmissionCodes()
    codes.load(require_table(paths, "diagnoses_icd"), "icd_code", DIAGNOSES, validator)
    codes.load(require_table(paths, "procedures_icd"), "icd_code", PROCEDURES, validator)
    return codes


def _parse_rank(raw: str) -> int:
    try:
        return int(float(raw))
    except (ValueError, OverflowError):
        return 1 << 30  # rows of MIMIC-III without a sequence number come last


def normalize_id(raw: str) -> str:
    """The number of an admission or patient. Spreadsheets write 123.0 in a column with gaps; it becomes 123."""
    text = raw.strip()
    number = text.removesuffix(".0")
    return number if number.isdigit() else text


def _read_lookup(
    path: Path | None, key: str, fields: Sequence[str], validator: RecordValidator
) -> dict[str, tuple[str, ...]]:
    """key -> fields of a table, empty without a table."""
    if path is None:
        return {}
    return {normalize_id(values[0]): values[1:] for _, values in columns(path, validator, [key], fields)}


def _mimic4_notes(path: Path, validator: RecordValidator) -> Iterator[tuple[str, str, str, str, str]]:
    """(note_id, subject_id, hadm_id, text, charttime) of the accepted rows of a MIMIC-IV note table."""
    required = ["note_id", "subject_id", "hadm_id", "text"]
    for row, (note_id, patient, raw, text, charttime) in columns(path, validator, required, ["charttime"]):
        admission = normalize_id(raw)
        if not admission:
            validator.count_issue("no_admission", path, row)
            continue
        note_id, text = note_id.strip(), validator.clean_text(text, path, row)
        if validator.accepts(note_id, text, path, row):
            yield note_id, normalize_id(patient), admission, text, charttime


def age_at_admission(anchor_age: str, anchor_year: str, admitted: str) -> int | None:
    """The age in years, None if unknown. MIMIC-IV has no birth date but the age in one year (anchor_year)."""
    try:
        return int(anchor_age) + int(admitted[:4]) - int(anchor_year)
    except ValueError:
        return None


def modality_of(exam: str | None) -> str | None:
    """The DICOM-like name of the modality in the name of an exam, None if there is none."""
    name = (exam or "").upper()
    return next((modality for modality, pattern in _MODALITY_PATTERNS.items() if pattern.search(name)), None)


def _exam_names(path: Path | None, validator: RecordValidator) -> dict[str, str]:
    """note_id -> exam names in order, joined by semicolons."""
    if path is None:
        return {}
    names: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    shared: dict[str, str] = {}
    fields = ["note_id", "field_name", "field_value"]
    for row, (note_id, field, value, ordinal) in columns(path, validator, fields, ["field_ordinal"]):
        if field.strip().lower() == "exam_name":
            order = int(ordinal) if ordinal.strip().isdecimal() else row
            names[note_id.strip()].append((order, shared.setdefault(value, value)))
    return {note_id: "; ".join(value for _, value in sorted(exams)) for note_id, exams in names.items()}


class GoldEvidence:
    """The site and the gold evidence of notes, from evidence.jsonl (or .gz) with note_id, site and evidence.

    The simulated hospital writes this file. Lines are read only up to the requested note, so a file in the order of
    the notes is never held in memory. Without a file all look-ups are empty.
    """

    def __init__(self, paths: Sequence[Path], validator: RecordValidator):
        self._validator = validator
        self._read_ahead: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        path = find_table(paths, "evidence", ".jsonl")
        self._lines = self._read(path) if path else iter(())

    def _read(self, path: Path) -> Iterator[str]:
        for row, record in json_records(path, self._validator):
            if not isinstance(record.get("note_id"), str) or not isinstance(record.get("evidence", []), list):
                raise DataError(f"{location(path, row)}: note_id must be text and evidence a list")
            self._read_ahead[record["note_id"]] = (path, row, record)
            yield record["note_id"]

    def lookup(self, note_id: str, text: str) -> tuple[str | None, tuple[Evidence, ...]]:
        """(site, evidence) of a note, (None, ()) if it is not in the file."""
        while note_id not in self._read_ahead and next(self._lines, None) is not None:
            pass
        if note_id not in self._read_ahead:
            return None, ()
        path, row, record = self._read_ahead.pop(note_id)
        evidence = evidence_from_json(record.get("evidence", []), len(text), self._validator, file=path, row=row)
        site = record.get("site")
        return site if isinstance(site, str) else None, evidence
