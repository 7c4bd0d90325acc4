"""The files MIMIC-IV ships, filled with simulated patients, and beside them what only a simulation knows.

hosp/ and note/ have the columns of MIMIC-IV 2.2. gold/evidence.jsonl.gz has a line a summary, in the order of
note/discharge.csv.gz: note_id, site, evidence (list of system, code, start, end, kind).
"""

from __future__ import annotations

import gzip
from collections import Counter
from contextlib import ExitStack
from datetime import date
from io import TextIOWrapper
from pathlib import Path
from random import Random

from nosology.codes import table
from nosology.corpora.simulate.clinic import Patient
from nosology.corpora.simulate.hospital import Stay, hadm_id, subject_id

NOTE = "note_id,subject_id,hadm_id,note_type,note_seq,charttime,storetime,text"
FILES = {
    "note/discharge": NOTE,
    "note/radiology": NOTE,
    "note/radiology_detail": "note_id,subject_id,field_name,field_value,field_ordinal",
    "hosp/diagnoses_icd": "subject_id,hadm_id,seq_num,icd_code,icd_version",
    "hosp/procedures_icd": "subject_id,hadm_id,seq_num,chartdate,icd_code,icd_version",
    "hosp/patients": "subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod",
    "hosp/admissions": "subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,admit_provider_id,"
    "admission_location,discharge_location,insurance,language,marital_status,race,edregtime,edouttime,"
    "hospital_expire_flag",
    "hosp/d_icd_diagnoses": "icd_code,icd_version,long_title",
    "hosp/d_icd_procedures": "icd_code,icd_version,long_title",
}
EVIDENCE = "gold/evidence.jsonl.gz"
TITLES = {
    "hosp/d_icd_diagnoses": (("icd9cm", "2015"), ("icd10cm", "2019")),
    "hosp/d_icd_procedures": (("icd9proc", "2015"), ("icd10pcs", "2024")),
}
VERSION = {"icd9cm": 9, "icd9proc": 9, "icd10cm": 10, "icd10pcs": 10}


class Mimic4Files:
    """The open files of a folder; use it in a with statement."""

    def __init__(self, folder: Path):
        self.counts: Counter[str] = Counter()
        self._files: dict[str, TextIOWrapper] = {}
        self._stack = ExitStack()
        for name in FILES:
            self._open(name, folder / f"{name}.csv.gz").write(FILES[name] + "\n")
        self._open("evidence", folder / EVIDENCE)

    def _open(self, name: str, path: Path) -> TextIOWrapper:
        path.parent.mkdir(exist_ok=True)
        # No name and no time in the header: the same patients give the same bytes.
        raw = self._stack.enter_context(path.open("wb"))
        zipped = gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0)
        self._files[name] = self._stack.enter_context(TextIOWrapper(zipped, encoding="utf-8", newline="\n"))
        return self._files[name]

    def __enter__(self) -> Mimic4Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _row(self, name: str, row: str) -> None:
        self._files[name].write(row + "\n")
        self.counts[name] += 1

    def titles(self) -> None:
        """Writes the d_icd tables."""
        for name, systems in TITLES.items():
            for system, release in systems:
                codes = table(system, release)
                for code in codes.codes(billable=True):
                    self._row(name, f"{bare(code)},{VERSION[system]},{quoted(codes.description(code))}")

    def patient(self, patient: Patient, stays: list[Stay], seed: int) -> None:
        """Writes all rows of a patient."""
        rng = Random(f"{seed}/{patient.index}/files")
        subject, first = subject_id(patient), stays[0].admission.day
        anchor = date.fromordinal(first + patient.shift).year
        group = 2008 + 3 * ((date.fromordinal(first).year - 2008) // 3)
        last = stays[-1].admission
        died = _day(patient, last.day + last.nights) if last.died else ""
        self._row(
            "hosp/patients",
            f"{subject},{patient.sex},{patient.age(first)},{anchor},{group} - {group + 2},{died}",
        )
        traits = tuple(_one(rng, choices) for choices in TRAITS)
        reports = 0
        for stay in stays:
            self._admission(rng, stay, traits)
            self._codes(stay)
            self._summary(stay)
            reports = self._reports(rng, stay, reports)

    def _admission(self, rng: Random, stay: Stay, traits: tuple[str, ...]) -> None:
        admission, patient = stay.admission, stay.admission.patient
        came = f"{_day(patient, admission.day)} {_time(rng)}"
        left = f"{_day(patient, admission.day + admission.nights)} {_time(rng)}"
        death, where = (left, "DIED") if admission.died else ("", _one(rng, LEAVE))
        insurance, language, married, race = traits
        provider = f"P{int(rng.random() * 1e5):05d}"
        arrival = f"{_day(patient, admission.day)} 00:00:00"
        expired = int(admission.died)
        self._row(
            "hosp/admissions",
            f"{subject_id(patient)},{hadm_id(admission)},{came},{left},{death},{_one(rng, TYPES)},{provider},"
            f"{_one(rng, ARRIVE)},{where},{insurance},{language},{married},{race},{arrival},{came},{expired}",
        )

    def _codes(self, stay: Stay) -> None:
        admission = stay.admission
        ids, number = f"{subject_id(admission.patient)},{hadm_id(admission)}", Counter[str]()
        for system, code in stay.codes:
            table_name = "procedures_icd" if system in ("icd9proc", "icd10pcs") else "diagnoses_icd"
            number[table_name] += 1
            when = f",{_day(admission.patient, admission.day + 1)}" if table_name == "procedures_icd" else ""
            self._row(f"hosp/{table_name}", f"{ids},{number[table_name]}{when},{bare(code)},{VERSION[system]}")

    def _summary(self, stay: Stay) -> None:
        if stay.text is None:
            return
        admission = stay.admission
        subject, sequence = subject_id(admission.patient), admission.number + 1
        name = f"{subject}-DS-{sequence}"
        day = f"{_day(admission.patient, admission.day + admission.nights)} 00:00:00"
        self._row(
            "note/discharge",
            f"{name},{subject},{hadm_id(admission)},DS,{sequence},{day},{day},{quoted(stay.text)}",
        )
        evidence = ",".join(
            f'{{"system":"{e.code.system}","code":"{e.code.code}","start":{e.start},"end":{e.end},"kind":"{e.extra["kind"]}"}}'
            for e in stay.evidence
        )
        self._row("evidence", f'{{"note_id":"{name}","site":"{admission.site.name}","evidence":[{evidence}]}}')

    def _reports(self, rng: Random, stay: Stay, before: int) -> int:
        admission = stay.admission
        subject = subject_id(admission.patient)
        for number, (exam, text) in enumerate(stay.reports, before + 1):
            name = f"{subject}-RR-{number}"
            # Outpatient exams belong to no admission.
            stay_id = hadm_id(admission) if rng.random() > 0.12 else ""
            day = f"{_day(admission.patient, admission.day + int(rng.random() * admission.nights))} {_time(rng)}"
            self._row("note/radiology", f"{name},{subject},{stay_id},RR,{number},{day},{day},{quoted(text)}")
            for field in ("exam_code", "exam_name", "cpt_code"):
                value = getattr(exam, field)
                self._row("note/radiology_detail", f"{name},{subject},{field},{quoted(value)},1")
        return before + len(stay.reports)


TYPES = (
    "EW EMER.",
    "EW EMER.",
    "EW EMER.",
    "OBSERVATION ADMIT",
    "SURGICAL SAME DAY ADMISSION",
    "URGENT",
    "ELECTIVE",
    "DIRECT EMER.",
)
ARRIVE = ("EMERGENCY ROOM", "EMERGENCY ROOM", "PHYSICIAN REFERRAL", "TRANSFER FROM HOSPITAL", "WALK-IN/SELF REFERRAL")
LEAVE = ("HOME", "HOME", "HOME HEALTH CARE", "SKILLED NURSING FACILITY", "REHAB")
TRAITS = (
    ("Medicare", "Medicare", "Other", "Other", "Medicaid"),
    ("ENGLISH", "ENGLISH", "ENGLISH", "ENGLISH", "?"),
    ("MARRIED", "MARRIED", "SINGLE", "WIDOWED", "DIVORCED"),
    ("WHITE", "WHITE", "WHITE", "BLACK/AFRICAN AMERICAN", "HISPANIC/LATINO", "ASIAN", "UNKNOWN"),
)


def bare(code: str) -> str:
    """The code as MIMIC writes it."""
    return code.replace(".", "")


def quoted(text: str) -> str:
    """The text as a field of a CSV file."""
    return '"' + text.replace('"', '""') + '"'


def _one(rng: Random, choices: tuple[str, ...]) -> str:
    return choices[int(rng.random() * len(choices))]


def _day(patient: Patient, day: int) -> str:
    return date.fromordinal(day + patient.shift).isoformat()


def _time(rng: Random) -> str:
    return f"{int(rng.random() * 24):02d}:{int(rng.random() * 60):02d}:00"
