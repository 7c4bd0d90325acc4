"""MIMIC-IV radiology reports with the codes of their admission, the exam, and who the patient is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nosology.core import Note
from nosology.corpora.intake import Intake
from nosology.corpora.lines import columns
from nosology.corpora.mimic4 import admission_codes
from nosology.corpora.mimic_tables import find_table, lookup, need_table, note_rows

# The first that matches an exam's name; MIMIC-IV names no modality of its own.
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
_MODALITY = {name: re.compile(pattern) for name, pattern in _MODALITIES.items()}


def read(paths: Sequence[Path], intake: Intake) -> Iterator[Note]:
    """The reports in the order of the file, those without an admission counted and left out.

    extra has hadm_id, charttime, exam_name, modality, age, gender and admission_type, each None where not known.
    Tables: radiology, diagnoses_icd, procedures_icd; radiology_detail, patients and admissions where present.
    """
    path = need_table(paths, "radiology")
    codes = admission_codes(paths, intake)
    exams = _exams(find_table(paths, "radiology_detail"), intake)
    patients = lookup(find_table(paths, "patients"), "subject_id", ["gender", "anchor_age", "anchor_year"], intake)
    admissions = lookup(find_table(paths, "admissions"), "hadm_id", ["admittime", "admission_type"], intake)
    for _, (note_id, patient, admission, text, charttime) in note_rows(path, intake, ["charttime"]):
        gender, anchor_age, anchor_year = patients.get(patient, ("", "", ""))
        admitted, admission_type = admissions.get(admission, ("", ""))
        exam = exams.get(note_id)
        extra: dict[str, Any] = {
            "hadm_id": admission,
            "charttime": charttime,
            "exam_name": exam,
            "modality": modality(exam),
            "age": age(anchor_age, anchor_year, admitted or charttime),
            "gender": gender or None,
            "admission_type": admission_type or None,
        }
        yield Note(note_id, text, patient=patient, lang="en", codes=codes.of(admission), extra=extra)
    codes.report(path, intake)


def age(anchor_age: str, anchor_year: str, admitted: str) -> int | None:
    """The age at admission: MIMIC-IV has no birth date, but the age in one year; None if a part is not known."""
    try:
        return int(anchor_age) + int(admitted[:4]) - int(anchor_year)
    except ValueError:
        return None


def modality(exam: str | None) -> str | None:
    """The DICOM-like name of the modality an exam's name speaks of, None if it speaks of none."""
    name = (exam or "").upper()
    return next((modality for modality, pattern in _MODALITY.items() if pattern.search(name)), None)


def _exams(path: Path | None, intake: Intake) -> dict[str, str]:
    """note_id -> exam names in order, joined by semicolons."""
    if path is None:
        return {}
    names: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    shared: dict[str, str] = {}
    fields = ["note_id", "field_name", "field_value"]
    for row, (note_id, field, value, ordinal) in columns(path, intake, fields, ["field_ordinal"]):
        if field.strip().lower() == "exam_name":
            order = int(ordinal) if ordinal.strip().isdigit() else row
            names[note_id.strip()].append((order, shared.setdefault(value, value)))
    return {note_id: "; ".join(value for _, value in sorted(found)) for note_id, found in names.items()}
