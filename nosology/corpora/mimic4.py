"""MIMIC-IV discharge summaries with the codes of their admission."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from nosology.core import Note
from nosology.corpora.gold import Gold
from nosology.corpora.intake import Intake
from nosology.corpora.mimic_tables import DIAGNOSES, PROCEDURES, AdmissionCodes, need_table, note_rows


def read(paths: Sequence[Path], intake: Intake) -> Iterator[Note]:
    """The discharge summaries in the order of the file; hadm_id and charttime are in extra.

    Tables: discharge, diagnoses_icd, procedures_icd, in any folder below the paths; site and evidence where there are
    such (see gold.py).
    """
    path = need_table(paths, "discharge")
    codes, gold = admission_codes(paths, intake), Gold(paths, intake)
    for _, (note_id, patient, admission, text, charttime) in note_rows(path, intake, ["charttime"]):
        site, evidence = gold.of(note_id, text)
        yield Note(
            note_id,
            text,
            patient=patient,
            site=site,
            lang="en",
            codes=codes.of(admission),
            evidence=evidence,
            extra={"hadm_id": admission, "charttime": charttime},
        )
    codes.report(path, intake)


def admission_codes(paths: Sequence[Path], intake: Intake) -> AdmissionCodes:
    """The codes of every MIMIC-IV admission."""
    codes = AdmissionCodes()
    codes.load(need_table(paths, "diagnoses_icd"), "icd_code", DIAGNOSES, intake)
    codes.load(need_table(paths, "procedures_icd"), "icd_code", PROCEDURES, intake)
    return codes
