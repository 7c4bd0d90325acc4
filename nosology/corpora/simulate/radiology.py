"""Radiology reports of an admission: an exam shows what the patient has, and rules out much that he has not."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from random import Random

from nosology.corpora.simulate.clinic import Admission, Clinic
from nosology.corpora.simulate.phrases import flat, for_sex, slots
from nosology.corpora.simulate.speech import Speech
from nosology.corpora.simulate.tail import Pool
from nosology.corpora.simulate.wording import rows


@dataclass(frozen=True, slots=True)
class Exam:
    """A kind of examination; `key` names what it can show."""

    key: str
    modality: str
    weight: float
    exam_code: str
    cpt_code: str
    exam_name: str
    technique: str


class Radiology:
    """Writes radiology reports; holds nothing of any patient."""

    def __init__(self, clinic: Clinic, speech: Speech):
        self.speech = speech
        self.exams: dict[str, list[Exam]] = defaultdict(list)
        for key, modality, weight, *rest in rows("phrases/exams.tsv"):
            self.exams[key].append(Exam(key, modality, float(weight), *rest))
        every = [exam for exams in self.exams.values() for exam in exams]
        self.pool = Pool(every, [exam.weight for exam in every])
        self.shows: dict[str, list[str]] = defaultdict(list)
        for concept in clinic.concepts.values():
            for line in concept.signals.get("im", ()):
                key, _, text = line.partition(": ")
                self.shows[key].append(text)
        self.texts, self.slots = flat("radiology"), slots("radiology")
        self.indication = {sex: for_sex(slots("slots"), sex)["indication"] for sex in "FM"}

    def choose(self, rng: Random, admission: Admission) -> list[Exam]:
        """The examinations of an admission, none to five, those that its conditions call for first."""
        wanted = int(rng.expovariate(1 / 1.9))
        keys = [
            line.partition(":")[0]
            for f in admission.findings
            for line in f.concept.signals.get("im", ())[:1]
            if rng.random() < 0.7
        ]
        chosen = [exams[int(rng.random() * len(exams))] for exams in (self.exams[key] for key in dict.fromkeys(keys))]
        return (chosen + [self.pool.draw(rng) for _ in range(2)])[: min(wanted, 5)]

    def write(self, rng: Random, admission: Admission, exam: Exam) -> str:
        """The text of one report."""
        draw = rng.random

        def pick(pool: list):
            return pool[int(draw() * len(pool))]

        def put(name: str, text: str) -> str:
            before, after = pick(self.slots[name])
            return f"{before}{text}{after}"

        seen = [
            pick(lines).partition(": ")[2]
            for finding in admission.findings
            if not finding.coding.own
            and (lines := [x for x in finding.concept.signals.get("im", ()) if x.startswith(exam.key + ":")])
            and draw() < 0.8
        ]
        absent = [pick(self.shows[exam.key]) for _ in range(int(draw() * 3)) if self.shows[exam.key]]
        findings = [put("finding", text) for text in seen] + [
            put("absent", text) for text in absent if text not in seen
        ]
        findings += [pick(self.texts[exam.key]) for _ in range(2 + int(draw() * 5))]
        named = [f for f in admission.findings if f.shown == "named"] or admission.findings
        reasons = dict.fromkeys(int(draw() * len(named)) for _ in range(1 + int(draw() * 4)))
        known = [self.speech.name(rng, admission.site, named[r].concept, named[r].coding) for r in reasons]
        before, after = pick(self.indication[admission.patient.sex])
        indication = before + ", ".join(known) + after
        conclusion = [put("conclude", text) for text in seen] or [pick(self.texts["unremarkable"])]
        if draw() < 0.25:
            conclusion.append(pick(self.texts["recommend"]))
        numbered = [f"{n}. {line}" for n, line in enumerate(conclusion, 1)] if len(conclusion) > 1 else conclusion
        return (
            f"EXAMINATION:  {exam.exam_name}\n \nINDICATION:  {indication}  {pick(self.texts['question'])}\n \n"
            f"TECHNIQUE:  {exam.technique}\n \nCOMPARISON:  {'___' if draw() < 0.7 else 'None.'}\n \n"
            f"FINDINGS: \n \n{' '.join(findings)}\n \nIMPRESSION: \n \n" + "\n".join(numbered)
        )
