"""The simulated hospital as a stream of patients with their notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from nosology.core import Code, ConfigError, Evidence, Note
from nosology.corpora.simulate.clinic import Admission, Clinic, Patient
from nosology.corpora.simulate.discharge import Discharge
from nosology.corpora.simulate.radiology import Exam, Radiology
from nosology.corpora.simulate.speech import Speech

YEARS = (2008, 2019)


@dataclass(frozen=True, slots=True)
class Stay:
    """An admission with all that was written about it; `text` is None for the few without a summary."""

    admission: Admission
    codes: tuple[Code, ...]
    text: str | None
    evidence: list[Evidence]
    reports: list[tuple[Exam, str]]


class Hospital:
    """Everything that patients are drawn from, loaded once."""

    def __init__(self, years: tuple[int, int] = YEARS):
        if not 1990 <= years[0] <= years[1] <= 2100:
            raise ConfigError(f"years must be two years from 1990 to 2100, the first not after the second; got {years}")
        self.clinic = Clinic(years)
        speech = Speech()
        self.discharge, self.radiology = Discharge(self.clinic, speech), Radiology(self.clinic, speech)

    def patient(self, seed: int, index: int, *, radiology: bool = True) -> tuple[Patient, list[Stay]]:
        """Patient number `index` of the seed's population and the stays, in order; others do not change them."""
        patient = self.clinic.patient(seed, index)
        return patient, [self._stay(seed, admission, radiology) for admission in patient.admissions]

    def _stay(self, seed: int, admission: Admission, radiology: bool) -> Stay:
        where = f"{seed}/{admission.patient.index}/{admission.number}"
        rng = Random(where)
        codes = dict.fromkeys(code for finding in admission.findings for code in finding.codes)
        diagnoses_first = tuple(sorted(codes, key=lambda code: code.system in ("icd9proc", "icd10pcs")))
        text, evidence = self.discharge.write(rng, admission) if rng.random() > 0.01 else (None, [])
        reports = []
        if radiology:
            rng = Random(where + "/radiology")
            exams = self.radiology.choose(rng, admission)
            reports = [(exam, self.radiology.write(rng, admission, exam)) for exam in exams]
        return Stay(admission, diagnoses_first, text, evidence, reports)


def subject_id(patient: Patient) -> int:
    """The number the files give a patient."""
    return 10_000_000 + patient.index


def hadm_id(admission: Admission) -> int:
    """The number the files give an admission."""
    return 20_000_000 + 16 * admission.patient.index + admission.number


def simulate_notes(patients: int, seed: int, *, years: tuple[int, int] = YEARS, first: int = 0) -> Iterator[Note]:
    """The discharge summaries of that many patients, with site, codes and evidence, without going through files.

    first: the number of the first patient, so that parts of a population can be made side by side.
    """
    hospital = Hospital(years)
    for index in range(first, first + patients):
        patient, stays = hospital.patient(seed, index, radiology=False)
        for stay in stays:
            if stay.text is not None:
                number = stay.admission.number
                yield Note(
                    f"{subject_id(patient)}-DS-{number + 1}",
                    stay.text,
                    patient=str(subject_id(patient)),
                    site=stay.admission.site.name,
                    lang="en",
                    codes=stay.codes,
                    evidence=tuple(stay.evidence),
                    extra={"hadm_id": str(hadm_id(stay.admission))},
                )
