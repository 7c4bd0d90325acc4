"""The simulated hospital: patients with their notes, as a stream or as the files of MIMIC-IV."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random
from typing import IO

from nosology.codes import table
from nosology.core import Code, ConfigError, Evidence, Note
from nosology.corpora.simulate.clinic import Admission, Clinic, Patient
from nosology.corpora.simulate.concepts import RELEASE, MentionWriter
from nosology.corpora.simulate.note_writers import DischargeWriter, Exam, RadiologyWriter
from nosology.corpora.simulate.wording import read_data

YEARS = (2008, 2019)

_MIMIC4 = json.loads(read_data("mimic4.json"))
FILES: dict[str, list[str]] = _MIMIC4["columns"]  # file -> columns, as in MIMIC-IV 2.2
VALUES: dict[str, list[str]] = _MIMIC4["values"]  # column of hosp/admissions -> values; repeated ones are more frequent
TRAITS = ("insurance", "language", "marital_status", "race")  # the same in all admissions of a patient
# One line per summary, in the order of note/discharge: note_id, site, evidence (system, code, start, end, kind).
EVIDENCE = "gold/evidence.jsonl.gz"
TITLES = {"hosp/d_icd_diagnoses": ("icd9cm", "icd10cm"), "hosp/d_icd_procedures": ("icd9proc", "icd10pcs")}
VERSION = {"icd9cm": 9, "icd9proc": 9, "icd10cm": 10, "icd10pcs": 10}


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    """An admission with its codes and notes; `text` is the summary, None for the few admissions without one."""

    admission: Admission
    codes: tuple[Code, ...]
    text: str | None
    evidence: list[Evidence]
    reports: list[tuple[Exam, str]]


class Hospital:
    """Generates patients with their notes. All tables are loaded once."""

    def __init__(self, years: tuple[int, int] = YEARS):
        if not 1990 <= years[0] <= years[1] <= 2100:
            raise ConfigError(f"years must be two years from 1990 to 2100, the first not after the second; got {years}")
        self.clinic = Clinic(years)
        mentions = MentionWriter()
        self.discharge = DischargeWriter(self.clinic, mentions)
        self.radiology = RadiologyWriter(self.clinic, mentions)

    def patient(self, seed: int, index: int, *, radiology: bool = True) -> tuple[Patient, list[AdmissionRecord]]:
        """Patient number `index` with the admissions in order; they depend only on the seed and the number."""
        patient = self.clinic.patient(seed, index)
        return patient, [self._record(seed, admission, radiology) for admission in patient.admissions]

    def _record(self, seed: int, admission: Admission, radiology: bool) -> AdmissionRecord:
        name = f"{seed}/{admission.patient.index}/{admission.number}"
        rng = Random(name)
        codes = dict.fromkeys(code for condition in admission.conditions for code in condition.codes)
        diagnoses_first = tuple(sorted(codes, key=lambda code: code.system in ("icd9proc", "icd10pcs")))
        text, evidence = self.discharge.write(rng, admission) if rng.random() > 0.01 else (None, [])
        reports = []
        if radiology:
            rng = Random(name + "/radiology")
            exams = self.radiology.choose_exams(rng, admission)
            reports = [(exam, self.radiology.write(rng, admission, exam)) for exam in exams]
        return AdmissionRecord(admission, diagnoses_first, text, evidence, reports)


def subject_id(patient: Patient) -> int:
    """The number of a patient in the files."""
    return 10_000_000 + patient.index


def hadm_id(admission: Admission) -> int:
    """The number of an admission in the files."""
    return 20_000_000 + 16 * admission.patient.index + admission.number


def simulate_notes(patients: int, seed: int, *, years: tuple[int, int] = YEARS, first: int = 0) -> Iterator[Note]:
    """The discharge summaries with site, codes and evidence, without files.

    first: number of the first patient, so that parts of a population can be generated in parallel.
    """
    hospital = Hospital(years)
    for index in range(first, first + patients):
        patient, records = hospital.patient(seed, index, radiology=False)
        for record in records:
            if record.text is not None:
                yield Note(
                    f"{subject_id(patient)}-DS-{record.admission.number + 1}",
                    record.text,
                    patient=str(subject_id(patient)),
                    site=record.admission.site.name,
                    lang="en",
                    codes=record.codes,
                    evidence=tuple(record.evidence),
                    extra={"hadm_id": str(hadm_id(record.admission))},
                )


@dataclass(frozen=True, slots=True)
class CompressedRows:
    """Rows of some patients: by file, and the number of rows of each."""

    files: dict[str, bytes]  # a whole gzip member each
    counts: Counter[str]
    patients: int


class Mimic4Writer:
    """Writes the files of MIMIC-IV, part by part; use it in a with statement.

    A file is a sequence of gzip members, one per part, so that parts can be made by several processes.
    """

    def __init__(self, folder: Path):
        self.counts: Counter[str] = Counter()
        self._files: dict[str, IO[bytes]] = {}
        self._stack = ExitStack()
        for name, columns in FILES.items():
            self._open(name, folder / f"{name}.csv.gz").write(_gzip([",".join(columns)]))
        self._open("evidence", folder / EVIDENCE)

    def _open(self, name: str, path: Path) -> IO[bytes]:
        path.parent.mkdir(exist_ok=True)
        self._files[name] = self._stack.enter_context(path.open("wb"))
        return self._files[name]

    def __enter__(self) -> Mimic4Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def append(self, rows: CompressedRows) -> None:
        """Append rows to their files."""
        self.counts += rows.counts
        for name, member in rows.files.items():
            self._files[name].write(member)


class Mimic4Rows:
    """The rows of some patients in the files of MIMIC-IV, in memory."""

    def __init__(self) -> None:
        self._rows: defaultdict[str, list[str]] = defaultdict(list)
        self._patients = 0

    def _write_row(self, name: str, row: str) -> None:
        self._rows[name].append(row)

    def compressed(self) -> CompressedRows:
        """The rows so far; the same rows give the same bytes."""
        counts = Counter({name: len(rows) for name, rows in self._rows.items()})
        return CompressedRows({name: _gzip(rows) for name, rows in self._rows.items()}, counts, self._patients)

    def write_titles(self) -> None:
        """Write the d_icd tables."""
        for name, systems in TITLES.items():
            for system in systems:
                codes = table(system, RELEASE.get(system, "2015"))
                for code in codes.codes(billable=True):
                    self._write_row(name, f"{_bare(code)},{VERSION[system]},{_quoted(codes.description(code))}")

    def write_patient(self, patient: Patient, records: list[AdmissionRecord], seed: int) -> None:
        """Write all rows of a patient."""
        self._patients += 1
        rng = Random(f"{seed}/{patient.index}/files")
        first, last = records[0].admission.day, records[-1].admission
        anchor = date.fromordinal(first + patient.shift).year
        group = 2008 + 3 * ((date.fromordinal(first).year - 2008) // 3)
        died = _shifted_date(patient, last.day + last.nights) if last.died else ""
        row = f"{subject_id(patient)},{patient.sex},{patient.age(first)},{anchor},{group} - {group + 2},{died}"
        self._write_row("hosp/patients", row)
        traits = [_choose(rng, name) for name in TRAITS]
        reports = 0
        for record in records:
            self._write_admission(rng, record.admission, traits)
            self._write_codes(record)
            self._write_summary(record)
            reports = self._write_reports(rng, record, reports)

    def _write_admission(self, rng: Random, admission: Admission, traits: list[str]) -> None:
        patient = admission.patient
        admitted = f"{_shifted_date(patient, admission.day)} {_random_time(rng)}"
        discharged = f"{_shifted_date(patient, admission.day + admission.nights)} {_random_time(rng)}"
        death, location = (discharged, "DIED") if admission.died else ("", _choose(rng, "discharge_location"))
        provider = f"P{int(rng.random() * 1e5):05d}"
        arrival = f"{_shifted_date(patient, admission.day)} 00:00:00"
        self._write_row(
            "hosp/admissions",
            f"{subject_id(patient)},{hadm_id(admission)},{admitted},{discharged},{death},"
            f"{_choose(rng, 'admission_type')},{provider},{_choose(rng, 'admission_location')},{location},"
            f"{','.join(traits)},{arrival},{admitted},{int(admission.died)}",
        )

    def _write_codes(self, record: AdmissionRecord) -> None:
        admission = record.admission
        ids, number = f"{subject_id(admission.patient)},{hadm_id(admission)}", Counter[str]()
        for system, code in record.codes:
            name = "procedures_icd" if system in ("icd9proc", "icd10pcs") else "diagnoses_icd"
            number[name] += 1
            day = f",{_shifted_date(admission.patient, admission.day + 1)}" if name == "procedures_icd" else ""
            self._write_row(f"hosp/{name}", f"{ids},{number[name]}{day},{_bare(code)},{VERSION[system]}")

    def _write_summary(self, record: AdmissionRecord) -> None:
        if record.text is None:
            return
        admission = record.admission
        subject, sequence = subject_id(admission.patient), admission.number + 1
        note_id = f"{subject}-DS-{sequence}"
        day = f"{_shifted_date(admission.patient, admission.day + admission.nights)} 00:00:00"
        row = f"{note_id},{subject},{hadm_id(admission)},DS,{sequence},{day},{day},{_quoted(record.text)}"
        self._write_row("note/discharge", row)
        evidence = ",".join(
            f'{{"system":"{e.code.system}","code":"{e.code.code}","start":{e.start},"end":{e.end},"kind":"{e.extra["kind"]}"}}'
            for e in record.evidence
        )
        self._write_row("evidence", f'{{"note_id":"{note_id}","site":"{admission.site.name}","evidence":[{evidence}]}}')

    def _write_reports(self, rng: Random, record: AdmissionRecord, previous: int) -> int:
        """The number of reports of the patient so far."""
        admission = record.admission
        subject = subject_id(admission.patient)
        for number, (exam, text) in enumerate(record.reports, previous + 1):
            note_id = f"{subject}-RR-{number}"
            # Outpatient exams have no admission.
            admission_id = hadm_id(admission) if rng.random() > 0.12 else ""
            day = _shifted_date(admission.patient, admission.day + int(rng.random() * admission.nights))
            time = f"{day} {_random_time(rng)}"
            row = f"{note_id},{subject},{admission_id},RR,{number},{time},{time},{_quoted(text)}"
            self._write_row("note/radiology", row)
            for field in ("exam_code", "exam_name", "cpt_code"):
                self._write_row(
                    "note/radiology_detail", f"{note_id},{subject},{field},{_quoted(getattr(exam, field))},1"
                )
        return previous + len(record.reports)


def _gzip(rows: Iterable[str]) -> bytes:
    """The lines as a gzip member without name and time."""
    return gzip.compress("".join(row + "\n" for row in rows).encode(), 1, mtime=0)


def _bare(code: str) -> str:
    """The code without its dot, as in MIMIC."""
    return code.replace(".", "")


def _quoted(text: str) -> str:
    """The text as a CSV field."""
    return '"' + text.replace('"', '""') + '"'


def _choose(rng: Random, column: str) -> str:
    return VALUES[column][int(rng.random() * len(VALUES[column]))]


def _shifted_date(patient: Patient, day: int) -> str:
    return date.fromordinal(day + patient.shift).isoformat()


def _random_time(rng: Random) -> str:
    return f"{int(rng.random() * 24):02d}:{int(rng.random() * 60):02d}:00"
