"""Simulated patients: their site, admissions, conditions and codes, and which conditions their notes mention."""

from __future__ import annotations

import json
import math
import zlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from itertools import accumulate
from random import Random

from nosology.core import Code
from nosology.corpora.simulate.concepts import Coding, Concept, LongTail, WeightedSampler, concepts
from nosology.corpora.simulate.wording import read_data

ICD10_START = date(2015, 10, 1).toordinal()
MAX_ADMISSIONS = 12

# Mean number of codes, and the gamma shape of the mean of a patient (15.7 +- 8.7 codes over all admissions).
CODES, CODES_SHAPE = 15.1, 4.35
# Cumulative probabilities of the source of the next condition: general population, clusters, tail; then procedures.
GENERAL, CLUSTER, TAIL = 0.41, 0.62, 0.84
# Probability that the summary names a condition, and that it only implies it; otherwise it is silent.
VISIBILITY = {
    "chronic": (0.86, 0.09),
    "acute": (0.87, 0.08),
    "symptom": (0.88, 0.04),
    "status": (0.80, 0.08),
    "family": (0.85, 0.0),
    "cause": (0.80, 0.0),
    "procedure": (0.84, 0.04),
}


@dataclass(frozen=True, slots=True)
class HospitalSite:
    """A simulated hospital: how it writes and codes, and whom it treats.

    share: of all patients. short: rate of abbreviations. specific: rate of wordings that identify the code. typos: per
    mention. missed: rate of conditions that coders miss. habit: how much its choice of codes differs from other sites.
    problem, bullet, sentence_list: format of its lists. case_mix: cluster -> factor.
    """

    name: str
    share: float
    short: float
    specific: float
    typos: float
    missed: float
    habit: float
    problem: str
    bullet: str
    sentence_list: bool
    case_mix: dict[str, float]
    headings: dict[str, str]


@cache
def hospital_sites() -> tuple[HospitalSite, ...]:
    """All sites, the largest first."""
    return tuple(HospitalSite(**values) for values in json.loads(read_data("sites.json")))


@dataclass(slots=True)
class PatientCondition:
    """A condition or procedure of an admission; `codes` is empty if the coder missed it.

    visibility: "named", "implied" or "silent" in the summary.
    """

    concept: Concept
    coding: Coding
    visibility: str
    codes: tuple[Code, ...] = ()


@dataclass(slots=True)
class Admission:
    """A hospital stay; `day` is the true day number, before the date shift."""

    patient: Patient
    number: int
    site: HospitalSite
    day: int
    nights: int
    cluster: str
    conditions: list[PatientCondition] = field(default_factory=list)
    died: bool = False

    @property
    def icd10(self) -> bool:
        """Whether it is coded in ICD-10."""
        return self.day >= ICD10_START


@dataclass(slots=True)
class Patient:
    """A patient; `shift` is added to all days in the files."""

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


def age_group(age: int) -> int:
    """0, 1 or 2: young, middle, old."""
    return (age >= 42) + (age >= 65)


class Clinic:
    """The distributions that patients are sampled from; it has no state of any patient."""

    def __init__(self, years: tuple[int, int]):
        self.first, self.last = date(years[0], 1, 1).toordinal(), date(years[1], 12, 31).toordinal()
        self.concepts = concepts()
        self.tail = LongTail()
        self.clusters = json.loads(read_data("clusters.json"))
        self.sites = WeightedSampler(hospital_sites(), [site.share for site in hospital_sites()])
        conditions = [concept for concept in self.concepts.values() if concept.kind != "procedure"]
        self.general = [WeightedSampler(conditions, [c.general[group] for c in conditions]) for group in range(3)]
        self.of_cluster = self._cluster_samplers(lambda kind: float(kind != "procedure"))
        self.reasons = self._cluster_samplers({"acute": 1.0, "chronic": 0.3, "symptom": 0.35}.get)
        self.procedures = self._cluster_samplers(lambda kind: float(kind == "procedure"))
        self._codings: dict[tuple[str, str], tuple[tuple[Coding, ...], list[float]]] = {}

    def _cluster_samplers(self, factor: Callable[[str], float | None]) -> dict[str, WeightedSampler[Concept]]:
        """cluster -> sampler of its concepts. `factor` of a kind scales the weight; 0 or None drops the concept."""
        samplers = {}
        for cluster in self.clusters:
            members = [c for c in self.concepts.values() if cluster in c.clusters and factor(c.kind)]
            weights = [concept.clusters[cluster] * (factor(concept.kind) or 0) for concept in members]
            samplers[cluster] = WeightedSampler(members, weights)
        return samplers

    def patient(self, seed: int, index: int) -> Patient:
        """Patient number `index` with all admissions; it depends only on the seed and the number."""
        rng = Random(f"{seed}/{index}")
        usual_site = self.sites.sample(rng)
        sex = "F" if rng.random() < 0.53 else "M"
        age = 18 + int(72 * rng.betavariate(2.0, 1.55))
        day = self.first + int(rng.random() * (self.last - self.first))
        patient = Patient(
            index,
            sex,
            day - age * 365 - int(rng.random() * 365),
            365 * int(95 + 90 * rng.random()) + int(rng.random() * 7),
            self._sample_clusters(rng, usual_site, sex, age),
            rng.gammavariate(CODES_SHAPE, 1 / CODES_SHAPE),
        )
        while day <= self.last and len(patient.admissions) < MAX_ADMISSIONS:
            site = usual_site if rng.random() < 0.92 else self.sites.sample(rng)
            admission = self._admission(rng, patient, site, day)
            patient.admissions.append(admission)
            if admission.died or rng.random() < 0.52:
                break
            day += admission.nights + 3 + int(rng.expovariate(1 / 240))
        return patient

    def _sample_clusters(self, rng: Random, site: HospitalSite, sex: str, age: int) -> list[str]:
        weights = [
            cluster["share"][age_group(age)]
            * site.case_mix.get(name, 1)
            * 2
            * (cluster["male"] if sex == "M" else 1 - cluster["male"])
            for name, cluster in self.clusters.items()
        ]
        sampler = WeightedSampler(list(self.clusters), weights)
        chosen = [sampler.sample(rng) for _ in range(1 + (rng.random() < 0.6) + (rng.random() < 0.35))]
        if "obstetric" in chosen and age < 46:
            return ["obstetric"]
        return list(dict.fromkeys(name for name in chosen if name != "obstetric")) or ["infection"]

    def _admission(self, rng: Random, patient: Patient, site: HospitalSite, day: int) -> Admission:
        cluster = patient.clusters[int(rng.random() ** 1.6 * len(patient.clusters))]
        mean = CODES * patient.severity * (0.8 if age_group(patient.age(day)) == 0 else 1.1)
        n_codes = max(1, min(50, _sample_poisson(rng, mean)))
        nights = 1 + int(rng.expovariate(1 / (1.5 + 0.25 * n_codes)))
        admission = Admission(patient, len(patient.admissions), site, day, nights, cluster)
        _ConditionSampler(self, rng, admission, n_codes).run()
        admission.died = rng.random() < 0.0012 * n_codes
        return admission

    def sample_coding(self, rng: Random, site: HospitalSite, concept: Concept) -> Coding:
        """A coding of the concept that requires no other concept, with the preferences of the site."""
        if len(concept.codings) == 1:
            return concept.codings[0]
        key = (site.name, concept.key)
        if key not in self._codings:
            codings = tuple(coding for coding in concept.codings if not coding.requires)
            weights = (c.weight * math.exp(site.habit * _preference(site.name, c.code)) for c in codings)
            self._codings[key] = codings, list(accumulate(weights))
        codings, cumulative = self._codings[key]
        return codings[bisect_right(cumulative, rng.random() * cumulative[-1])]


class _ConditionSampler:
    """Adds conditions to an admission until it has about `n_codes` codes."""

    def __init__(self, clinic: Clinic, rng: Random, admission: Admission, n_codes: int):
        self.clinic, self.rng, self.admission, self.n_codes = clinic, rng, admission, n_codes
        self.age = admission.patient.age(admission.day)
        is_surgical = admission.cluster in ("ortho", "trauma", "vascular", "obstetric")
        self.has_procedures = rng.random() < (0.85 if is_surgical else 0.6)
        self.present: dict[str, tuple[Concept, bool]] = {}  # key -> concept, and whether it is coded
        self.excluded: set[str] = set()
        self.coded = 0

    def run(self) -> None:
        """Sample the reason for admission, known chronic conditions, then others; then choose codes."""
        rng, clinic, patient = self.rng, self.clinic, self.admission.patient
        for _ in range(20):
            if self.add(self._sample_reason(), always_coded=True):
                break
        for key in list(patient.chronic):
            if rng.random() < 0.8 and self.coded < self.n_codes:
                self.add(clinic.concepts.get(key) or clinic.tail.concept("icd10cm", key, "chronic"))
        for _ in range(4 * self.n_codes):
            if self.coded >= self.n_codes:
                break
            self.add(self._sample_next())
        self._assign_codes()

    def _sample_reason(self) -> Concept:
        if self.rng.random() < 0.22:
            return self._sample_tail(self.admission.cluster)
        return self.clinic.reasons[self.admission.cluster].sample(self.rng)

    def _sample_next(self) -> Concept:
        rng, clinic, cluster = self.rng, self.clinic, self.admission.cluster
        source = rng.random()
        if cluster == "obstetric" and source < GENERAL * 0.8:
            source = GENERAL + (TAIL - GENERAL) * rng.random()
        if source < GENERAL:
            return clinic.general[age_group(self.age)].sample(rng)
        if rng.random() < 0.35:
            cluster = self.admission.patient.clusters[int(rng.random() * len(self.admission.patient.clusters))]
        if source < CLUSTER or (source > TAIL and not self.has_procedures):
            return clinic.of_cluster[cluster].sample(rng)
        if source < TAIL:
            return self._sample_tail(cluster if rng.random() < 0.72 else "any")
        if rng.random() < 0.62:
            return clinic.procedures[cluster].sample(rng) if clinic.procedures[cluster] else self._sample_tail(cluster)
        system = "icd10pcs" if self.admission.icd10 else "icd9proc"
        code = clinic.tail.procedures[cluster if rng.random() < 0.85 else "any", system].sample(rng)
        return clinic.tail.concept(system, code, "procedure")

    def _sample_tail(self, cluster: str) -> Concept:
        kind, code = self.clinic.tail.diagnoses[cluster].sample(self.rng)
        return self.clinic.tail.concept("icd10cm", code, kind)

    def add(self, concept: Concept, *, always_coded: bool = False) -> bool:
        """Whether the concept was added; its linked concepts may be added with it."""
        patient, key = self.admission.patient, concept.key
        if key in self.present or key in self.excluded or (concept.sex and concept.sex != patient.sex):
            return False
        if not concept.ages[0] <= self.age <= concept.ages[1]:
            return False
        is_coded = self.rng.random() >= self.admission.site.missed * (not always_coded)
        self.present[key] = concept, is_coded
        self.excluded.update(concept.excludes)
        self.coded += is_coded
        for linked, probability in concept.links.items():
            if self.coded < self.n_codes and self.rng.random() < probability:
                self.add(self.clinic.concepts[linked])
        return True

    def _assign_codes(self) -> None:
        """Choose the codes and the visibility of each condition, the reason for admission first."""
        admission, rng = self.admission, self.rng
        chronic, present = admission.patient.chronic, set(self.present)
        used: set[Code] = set()
        for concept, is_coded in self.present.values():
            coding = chronic.get(concept.key)
            if coding is None or (len(concept.codings) > 1 and rng.random() < 0.3):
                coding = self.clinic.sample_coding(rng, admission.site, concept)
            if concept.kind == "chronic":
                chronic[concept.key] = coding
            coding = next((c for c in concept.codings if c.requires and present.issuperset(c.requires)), coding)
            named, implied = VISIBILITY[concept.kind]
            draw = rng.random() if admission.conditions else 0.0
            visibility = "named" if draw < named or not is_coded else "implied" if draw < named + implied else "silent"
            codes = tuple(code for code in self._codes(concept, coding) if code not in used) if is_coded else ()
            used.update(codes)
            admission.conditions.append(PatientCondition(concept, coding, visibility, codes))

    def _codes(self, concept: Concept, coding: Coding) -> tuple[Code, ...]:
        is_procedure = concept.kind == "procedure"
        if self.admission.icd10:
            return (Code("icd10pcs" if is_procedure else "icd10cm", coding.code),)
        if coding.icd9:
            return (Code("icd9proc" if is_procedure else "icd9cm", coding.icd9),)
        return self.clinic.tail.icd9(coding.code)


def _sample_poisson(rng: Random, mean: float) -> int:
    """A Poisson number by Knuth's method, which is fast for means up to some tens."""
    limit, product, number = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        number += 1
    return number


def _preference(site: str, code: str) -> float:
    """A number between -1.7 and 1.7 with variance one that depends only on site and code."""
    return (zlib.crc32(f"{site}/{code}".encode()) / 2**32 - 0.5) * 3.46
