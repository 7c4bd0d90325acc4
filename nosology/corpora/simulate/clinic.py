"""Patients and their admissions: who has what, what of it is coded, and what of it is written down."""

from __future__ import annotations

import json
import math
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib.resources import files
from itertools import accumulate
from random import Random

from nosology.core import Code
from nosology.corpora.simulate.concepts import Coding, Concept, concepts
from nosology.corpora.simulate.sites import Site, sites
from nosology.corpora.simulate.tail import Pool, Tail

ICD10_FROM = date(2015, 10, 1).toordinal()
MOST_ADMISSIONS = 12

# Mean number of codes, and the shape of the gamma distribution of each patient's own mean (15.7 +- 8.7 in all).
CODES, CODES_SHAPE = 15.1, 4.35
# Where the next thing is drawn from: the general population, the patient's clusters, the tail; the rest are procedures.
GENERAL, CLUSTER, TAIL = 0.41, 0.62, 0.84
# How often a thing of each kind is named, or only implied by what else is written; otherwise the note is silent.
SHOWN = {
    "chronic": (0.86, 0.09),
    "acute": (0.87, 0.08),
    "symptom": (0.88, 0.04),
    "status": (0.80, 0.08),
    "family": (0.85, 0.0),
    "cause": (0.80, 0.0),
    "procedure": (0.84, 0.04),
}


@dataclass(slots=True)
class Finding:
    """What a patient has at an admission; `codes` is empty if the coder missed it. shown: named, implied or silent."""

    concept: Concept
    coding: Coding
    shown: str
    codes: tuple[Code, ...] = ()


@dataclass(slots=True)
class Admission:
    """A stay; `day` is a true day number, which only the choice of code system sees."""

    patient: Patient
    number: int
    site: Site
    day: int
    nights: int
    cluster: str
    findings: list[Finding] = field(default_factory=list)
    died: bool = False

    @property
    def icd10(self) -> bool:
        """Whether it is coded in ICD-10."""
        return self.day >= ICD10_FROM


@dataclass(slots=True)
class Patient:
    """A person; `shift` is added to days before anybody sees them."""

    index: int
    sex: str
    born: int
    shift: int
    clusters: list[str]
    severity: float
    admissions: list[Admission] = field(default_factory=list)
    chronic: dict[str, Coding] = field(default_factory=dict)

    def age(self, day: int) -> int:
        """Full years on that day."""
        return (day - self.born) // 365


def band(age: int) -> int:
    """0, 1 or 2: young, middle, old."""
    return (age >= 42) + (age >= 65)


class Clinic:
    """The world patients come from: the pools that everything is drawn from. Holds no state of any patient."""

    def __init__(self, years: tuple[int, int]):
        self.first, self.last = date(years[0], 1, 1).toordinal(), date(years[1], 12, 31).toordinal()
        self.concepts = concepts()
        self.tail = Tail()
        text = files(__package__).joinpath("data/clusters.json").read_text(encoding="utf-8")
        self.clusters = json.loads(text)
        self.sites = Pool(list(sites()), [site.share for site in sites()])
        conditions = [c for c in self.concepts.values() if c.kind != "procedure"]
        self.general = [Pool(conditions, [c.general[b] for c in conditions]) for b in range(3)]
        self.of_cluster = {name: self._pool(name, lambda c: c.kind != "procedure") for name in self.clusters}
        self.reasons = {
            name: self._pool(name, lambda c: c.kind in ("acute", "chronic", "symptom"), True) for name in self.clusters
        }
        self.procedures = {name: self._pool(name, lambda c: c.kind == "procedure") for name in self.clusters}
        self._codings: dict[tuple[str, str], tuple[tuple[Coding, ...], list[float]]] = {}

    def _pool(self, cluster: str, wanted, as_reason: bool = False) -> Pool:
        chosen = [c for c in self.concepts.values() if cluster in c.clusters and wanted(c)]
        factor = {"acute": 1.0, "chronic": 0.3, "symptom": 0.35} if as_reason else {}
        return Pool(chosen, [c.clusters[cluster] * factor.get(c.kind, 1.0) for c in chosen])

    def patient(self, seed: int, index: int) -> Patient:
        """Patient number `index` with all admissions; hangs on the seed and the number alone."""
        rng = Random(f"{seed}/{index}")
        home = self.sites.draw(rng)
        sex = "F" if rng.random() < 0.53 else "M"
        age = 18 + int(72 * rng.betavariate(2.0, 1.55))
        day = self.first + int(rng.random() * (self.last - self.first))
        patient = Patient(
            index,
            sex,
            day - age * 365 - int(rng.random() * 365),
            365 * int(95 + 90 * rng.random()) + int(rng.random() * 7),
            self._clusters(rng, home, sex, age),
            rng.gammavariate(CODES_SHAPE, 1 / CODES_SHAPE),
        )
        while day <= self.last and len(patient.admissions) < MOST_ADMISSIONS:
            site = home if rng.random() < 0.92 else self.sites.draw(rng)
            admission = self._admission(rng, patient, site, day)
            patient.admissions.append(admission)
            if admission.died or rng.random() < 0.52:
                break
            day += admission.nights + 3 + int(rng.expovariate(1 / 240))
        return patient

    def _clusters(self, rng: Random, site: Site, sex: str, age: int) -> list[str]:
        b, names = band(age), list(self.clusters)
        weights = [
            c["share"][b] * site.case_mix.get(name, 1) * 2 * (c["male"] if sex == "M" else 1 - c["male"])
            for name, c in self.clusters.items()
        ]
        pool = Pool(names, weights)
        chosen = [pool.draw(rng) for _ in range(1 + (rng.random() < 0.6) + (rng.random() < 0.35))]
        if "obstetric" in chosen and age < 46:
            return ["obstetric"]
        return list(dict.fromkeys(name for name in chosen if name != "obstetric")) or ["infection"]

    def _admission(self, rng: Random, patient: Patient, site: Site, day: int) -> Admission:
        cluster = patient.clusters[int(rng.random() ** 1.6 * len(patient.clusters))]
        mean = CODES * patient.severity * (0.8 if band(patient.age(day)) == 0 else 1.1)
        wanted = max(1, min(50, _poisson(rng, mean)))
        nights = 1 + int(rng.expovariate(1 / (1.5 + 0.25 * wanted)))
        admission = Admission(patient, len(patient.admissions), site, day, nights, cluster)
        _Draw(self, rng, admission, wanted).run()
        admission.died = rng.random() < 0.0012 * wanted
        return admission

    def coding(self, rng: Random, site: Site, concept: Concept) -> Coding:
        """One of the concept's codings that need nothing else, as the site is used to choose."""
        if len(concept.codings) == 1:
            return concept.codings[0]
        key = (site.name, concept.key)
        if key not in self._codings:
            free = tuple(coding for coding in concept.codings if not coding.needs)
            weights = (c.weight * math.exp(site.habit * _habit(site.name, c.code)) for c in free)
            self._codings[key] = free, list(accumulate(weights))
        free, sums = self._codings[key]
        return free[bisect_right(sums, rng.random() * sums[-1])]


class _Draw:
    """Fills one admission with findings until enough of them are coded."""

    def __init__(self, clinic: Clinic, rng: Random, admission: Admission, wanted: int):
        self.clinic, self.rng, self.admission, self.wanted = clinic, rng, admission, wanted
        self.age = admission.patient.age(admission.day)
        self.surgical = rng.random() < (
            0.85 if admission.cluster in ("ortho", "trauma", "vascular", "obstetric") else 0.6
        )
        self.present: dict[str, tuple[Concept, bool]] = {}
        self.barred: set[str] = set()
        self.coded = 0

    def run(self) -> None:
        """Draws the reason for admission, what the patient is known to have, then the rest; then codes them."""
        rng, clinic, patient = self.rng, self.clinic, self.admission.patient
        for _ in range(20):
            if self.add(self._reason(), 1.0):
                break
        for key in list(patient.chronic):
            if rng.random() < 0.8 and self.coded < self.wanted:
                self.add(clinic.concepts.get(key) or clinic.tail.concept("icd10cm", key, "chronic"))
        for _ in range(4 * self.wanted):
            if self.coded >= self.wanted:
                break
            self.add(self._next())
        self._settle()

    def _reason(self) -> Concept:
        if self.rng.random() < 0.22:
            return self._tail(self.admission.cluster)
        return self.clinic.reasons[self.admission.cluster].draw(self.rng)

    def _next(self) -> Concept:
        rng, clinic, cluster = self.rng, self.clinic, self.admission.cluster
        source = rng.random()
        if cluster == "obstetric" and source < GENERAL * 0.8:
            source = GENERAL + (TAIL - GENERAL) * rng.random()
        if source < GENERAL:
            return clinic.general[band(self.age)].draw(rng)
        if rng.random() < 0.35:
            cluster = self.admission.patient.clusters[int(rng.random() * len(self.admission.patient.clusters))]
        if source < CLUSTER or (source > TAIL and not self.surgical):
            return clinic.of_cluster[cluster].draw(rng)
        if source < TAIL:
            return self._tail(cluster if rng.random() < 0.72 else "any")
        if rng.random() < 0.62:
            return clinic.procedures[cluster].draw(rng) if clinic.procedures[cluster] else self._tail(cluster)
        system = "icd10pcs" if self.admission.icd10 else "icd9proc"
        code = clinic.tail.procedures[cluster if rng.random() < 0.85 else "any", system].draw(rng)
        return clinic.tail.concept(system, code, "procedure")

    def _tail(self, cluster: str) -> Concept:
        kind, code = self.clinic.tail.diagnoses[cluster].draw(self.rng)
        return self.clinic.tail.concept("icd10cm", code, kind)

    def add(self, concept: Concept, surely: float = 0.0) -> bool:
        """Whether the concept was added; with it may come what is linked to it."""
        patient, key = self.admission.patient, concept.key
        if key in self.present or key in self.barred or (concept.sex and concept.sex != patient.sex):
            return False
        if not concept.ages[0] <= self.age <= concept.ages[1]:
            return False
        seen = self.rng.random() >= self.admission.site.missed * (1 - surely)
        self.present[key] = concept, seen
        self.barred.update(concept.excludes)
        self.coded += seen
        for other, chance in concept.links:
            if self.coded < self.wanted and self.rng.random() < chance:
                self.add(self.clinic.concepts[other])
        return True

    def _settle(self) -> None:
        """Chooses codes and what the note will show, the reason for admission first."""
        admission, rng, clinic, used = self.admission, self.rng, self.clinic, set()
        patient, present = admission.patient, set(self.present)
        for concept, seen in self.present.values():
            coding = patient.chronic.get(concept.key)
            if coding is None or (len(concept.codings) > 1 and rng.random() < 0.3):
                coding = clinic.coding(rng, admission.site, concept)
            if concept.kind == "chronic":
                patient.chronic[concept.key] = coding
            coding = next((c for c in concept.codings if c.needs and present.issuperset(c.needs)), coding)
            named, implied = SHOWN[concept.kind]
            draw = rng.random() if admission.findings else 0.0
            shown = "named" if draw < named or not seen else "implied" if draw < named + implied else "silent"
            codes = tuple(code for code in self._codes(concept, coding) if code not in used) if seen else ()
            used.update(codes)
            admission.findings.append(Finding(concept, coding, shown, codes))

    def _codes(self, concept: Concept, coding: Coding) -> tuple[Code, ...]:
        if concept.kind == "procedure":
            return (Code("icd10pcs", coding.code),) if self.admission.icd10 else (Code("icd9proc", coding.icd9),)
        if self.admission.icd10:
            return (Code("icd10cm", coding.code),)
        return (Code("icd9cm", coding.icd9),) if coding.icd9 else self.clinic.tail.icd9(coding.code)


def _poisson(rng: Random, mean: float) -> int:
    """A Poisson number; Knuth's way, which is quick for means of some tens."""
    limit, product, number = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        number += 1
    return number


def _habit(site: str, code: str) -> float:
    """A number between -1.7 and 1.7, of variance one, that hangs on site and code alone."""
    return (zlib.crc32(f"{site}/{code}".encode()) / 2**32 - 0.5) * 3.46


def patients(clinic: Clinic, count: int, seed: int) -> Iterator[Patient]:
    """The patients, one by one."""
    return (clinic.patient(seed, index) for index in range(count))
