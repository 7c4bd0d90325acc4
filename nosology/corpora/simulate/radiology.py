"""Simulated radiology reports: an exam shows conditions of the patient and rules out others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from nosology.corpora.simulate.clinic import Admission, Clinic
from nosology.corpora.simulate.concepts import MentionWriter, WeightedSampler
from nosology.corpora.simulate.wording import for_sex, read_tsv, sentence_slots, sentences

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exam:
    """A kind of examination; `key` links it to the findings that it can show."""

    key: str
    modality: str
    weight: float
    exam_code: str
    cpt_code: str
    exam_name: str
    technique: str


class RadiologyWriter:
    """Writes radiology reports; it has no state of any patient."""

    def __init__(self, clinic: Clinic, mentions: MentionWriter):
        self.mentions = mentions
        self.exams: dict[str, list[Exam]] = defaultdict(list)
        for key, modality, weight, *rest in read_tsv("phrases/exams.tsv"):
            self.exams[key].append(Exam(key, modality, float(weight), *rest))
        all_exams = [exam for exams in self.exams.values() for exam in exams]
        self.sampler = WeightedSampler(all_exams, [exam.weight for exam in all_exams])
        self.findings: dict[str, list[str]] = defaultdict(list)  # by exam key
        for concept in clinic.concepts.values():
            for line in concept.signals.get("im", ()):
                key, _, text = line.partition(": ")
                self.findings[key].append(text)
        self.texts, self.slots = sentences("radiology"), sentence_slots("radiology")
        self.indication = {sex: for_sex(sentence_slots("slots"), sex)["indication"] for sex in "FM"}

    def choose_exams(self, rng: Random, admission: Admission) -> list[Exam]:
        """The exams of an admission, up to five, first those that its conditions need."""
        count = int(rng.expovariate(1 / 1.9))
        keys = [
            line.partition(":")[0]
            for condition in admission.conditions
            for line in condition.concept.signals.get("im", ())[:1]
            if rng.random() < 0.7
        ]
        needed = [exams[int(rng.random() * len(exams))] for exams in (self.exams[key] for key in dict.fromkeys(keys))]
        return (needed + [self.sampler.sample(rng) for _ in range(2)])[: min(count, 5)]

    def write(self, rng: Random, admission: Admission, exam: Exam) -> str:
        """The text of a report."""
        draw = rng.random

        def choose(items: Sequence[T]) -> T:
            return items[int(draw() * len(items))]

        def fill(name: str, text: str) -> str:
            before, after = choose(self.slots[name])
            return f"{before}{text}{after}"

        shown = [
            choose(lines).partition(": ")[2]
            for condition in admission.conditions
            if not condition.coding.distinct
            and (lines := [x for x in condition.concept.signals.get("im", ()) if x.startswith(exam.key + ":")])
            and draw() < 0.8
        ]
        absent = [choose(self.findings[exam.key]) for _ in range(int(draw() * 3)) if self.findings[exam.key]]
        findings = [fill("finding", text) for text in shown]
        findings += [fill("absent", text) for text in absent if text not in shown]
        findings += [choose(self.texts[exam.key]) for _ in range(2 + int(draw() * 5))]
        named = [c for c in admission.conditions if c.visibility == "named"] or admission.conditions
        positions = dict.fromkeys(int(draw() * len(named)) for _ in range(1 + int(draw() * 4)))
        reasons = [self.mentions.write(rng, admission.site, named[i].concept, named[i].coding) for i in positions]
        before, after = choose(self.indication[admission.patient.sex])
        indication = before + ", ".join(reasons) + after
        conclusion = [fill("conclude", text) for text in shown] or [choose(self.texts["unremarkable"])]
        if draw() < 0.25:
            conclusion.append(choose(self.texts["recommend"]))
        numbered = [f"{n}. {line}" for n, line in enumerate(conclusion, 1)] if len(conclusion) > 1 else conclusion
        return (
            f"EXAMINATION:  {exam.exam_name}\n \nINDICATION:  {indication}  {choose(self.texts['question'])}\n \n"
            f"TECHNIQUE:  {exam.technique}\n \nCOMPARISON:  {'___' if draw() < 0.7 else 'None.'}\n \n"
            f"FINDINGS: \n \n{' '.join(findings)}\n \nIMPRESSION: \n \n" + "\n".join(numbered)
        )
