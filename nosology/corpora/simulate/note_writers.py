"""Simulated discharge summaries, with the span of each mention and signal of a code, and radiology reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from typing import TypeVar

from nosology.core import Evidence
from nosology.corpora.simulate.clinic import Admission, Clinic, PatientCondition, age_group
from nosology.corpora.simulate.concepts import Concept, MentionWriter, WeightedSampler
from nosology.corpora.simulate.wording import (
    SentenceSlot,
    for_sex,
    pattern_sentences,
    read_tsv,
    sentence_slots,
    sentences,
)

# The length in words is log-normal with this median and spread, and grows with the number of codes.
MEDIAN_WORDS, WORDS_SPREAD = 1492, 0.385
# Section -> share of the words that are not about a code.
FILLER = (
    ("exam", 0.15),
    ("labs", 0.24),
    ("hpi", 0.12),
    ("results", 0.06),
    ("course", 0.19),
    ("instructions", 0.16),
    ("meds", 0.05),
    ("followup", 0.03),
)
SIGNAL_SECTIONS = {"drug": "meds", "lab": "results", "exam": "exam", "course": "course"}

HISTORY_PHRASES = ("with a history of ", "with h/o ", "with PMH of ", "with known ", "with ", "w/ ")

# Plain text, or (text, condition, "mention" or "signal").
Piece = str | tuple[str, PatientCondition, str]
T = TypeVar("T")


class DischargeWriter:
    """Writes discharge summaries; it has no state of any patient."""

    def __init__(self, clinic: Clinic, mentions: MentionWriter):
        self.clinic, self.mentions = clinic, mentions
        self.slots = {sex: for_sex(sentence_slots("slots"), sex) for sex in "FM"}
        self.filler = {sex: for_sex(sentences("filler"), sex) for sex in "FM"}
        self.exam = pattern_sentences("filler")["exam"]
        self.remarks = sentences("slots")["problem"]

    def write(self, rng: Random, admission: Admission) -> tuple[str, list[Evidence]]:
        """The text and its evidence, in text order."""
        return _Summary(self, rng, admission).write()


class _Summary:
    def __init__(self, writer: DischargeWriter, rng: Random, admission: Admission):
        self.writer, self.rng, self.admission, self.site = writer, rng, admission, admission.site
        self.body: dict[str, list[Piece]] = {name: [] for name in self.site.headings}
        self.body |= {"labs": [], "background": []}
        self.slots, self.filler = writer.slots[admission.patient.sex], writer.filler[admission.patient.sex]
        self.numbers = dict.fromkeys(("pmh", "diagnosis", "meds", "home_meds", "procedure", "course"), 0)
        self.words = 138

    def choose(self, items: Sequence[T]) -> T:
        return items[int(self.rng.random() * len(items))]

    def write(self) -> tuple[str, list[Evidence]]:
        conditions = self.admission.conditions
        for position, condition in enumerate(conditions):
            if condition.visibility == "named":
                self._add_mentions(condition, position == 0)
            if condition.visibility == "implied" or (condition.visibility == "named" and self.rng.random() < 0.55):
                self._add_signals(condition, 1 + int(self.rng.random() * 2.6))
        self._add_distractors()
        length = MEDIAN_WORDS * exp(WORDS_SPREAD * self.rng.gauss(0, 0.95) + 0.009 * (len(conditions) - 18))
        self._add_filler(length - self.words)
        return self._assemble()

    # Conditions of the patient

    def _mention(self, section: str, slot: SentenceSlot, condition: PatientCondition, end: str = " ") -> None:
        text = self.writer.mentions.write(self.rng, self.site, condition.concept, condition.coding)
        before, after = slot
        if not before and section in ("course", "pmh", "diagnosis"):
            text = text[0].upper() + text[1:]
        self.words += before.count(" ") + text.count(" ") + after.count(" ") + 2
        self.body[section] += (before, (text, condition, "mention"), after + end)

    def _list_item(self, section: str, condition: PatientCondition) -> None:
        bullet = self.site.bullet.replace("{n}", self._next_number(section))
        self._mention(section, (bullet, ""), condition, ", " if self.site.sentence_list else "\n")

    def _next_number(self, section: str) -> str:
        self.numbers[section] += 1
        return str(self.numbers[section])

    def _problem(self, condition: PatientCondition) -> None:
        before, _, after = self.site.problem.replace("{n}", self._next_number("course")).partition("{}")
        self._mention("course", ("\n" + before, after), condition, self.choose(self.writer.remarks) + " ")

    def _add_mentions(self, condition: PatientCondition, is_reason: bool) -> None:
        kind, draw = condition.concept.kind, self.rng.random
        if is_reason:
            self._mention("complaint", self.choose(self.slots["complaint"]), condition, "\n")
            self._mention("hpi", self.choose(self.slots["hpi"]), condition)
            self._list_item("diagnosis", condition)
            self._problem(condition)
            self._lay_mention(condition)
        elif kind == "chronic":
            self._mention_in(condition, (("pmh", 0.55), ("hpi", 0.12), ("problem", 0.23), ("diagnosis", 0.1)))
            if draw() < 0.4:
                self._mention_in(condition, (("hpi", 0.4), ("problem", 0.35), ("diagnosis", 0.25)))
        elif kind == "acute":
            self._mention_in(condition, (("hpi", 0.25), ("problem", 0.4), ("course", 0.25), ("diagnosis", 0.1)))
            if draw() < 0.45:
                self._mention_in(condition, (("hpi", 0.2), ("course", 0.3), ("diagnosis", 0.5)))
            if draw() < 0.12:
                self._lay_mention(condition)
        elif kind == "procedure":
            self._mention_in(condition, (("list", 0.6), ("procedure", 0.4)))
            if draw() < 0.3:
                self._mention_in(condition, (("procedure", 1.0),))
        elif kind == "family":
            self._mention("family", ("", "."), condition)
        elif kind == "cause":
            self._mention("hpi", self.choose(self.slots["cause"]), condition)
        else:
            self._mention_in(condition, (("pmh", 0.45), ("hpi", 0.3), ("course", 0.25)))

    def _mention_in(self, condition: PatientCondition, sections: tuple[tuple[str, float], ...]) -> None:
        """Mention the condition in one of the sections, given with their probabilities."""
        left = self.rng.random()
        section = ""
        for section, probability in sections:  # noqa: B007  read after the loop
            left -= probability
            if left < 0:
                break
        if section == "hpi" and condition.concept.kind == "chronic":
            self._mention("background", ("", ""), condition, ", ")
        elif section in ("pmh", "diagnosis"):
            self._list_item(section, condition)
        elif section == "list":
            self._list_item("procedure", condition)
        elif section == "problem":
            self._problem(condition)
        else:
            slot = self.choose(self.slots[section])
            self._mention("course" if section == "procedure" else section, slot, condition)

    def _lay_mention(self, condition: PatientCondition) -> None:
        lay = condition.concept.signals.get("lay")
        if lay and not condition.coding.distinct:
            before, after = self.choose(self.slots["instruct"])
            self.body["instructions"] += (before, (self.choose(lay), condition, "mention"), after + " ")

    def _opening(self) -> list[Piece]:
        title, person = ("Ms.", "woman") if self.admission.patient.sex == "F" else ("Mr.", "man")
        background = self.body.pop("background")
        if not background:
            return [f"{title} ___ is a ___ year old {person}. "]
        return [f"{title} ___ is a ___ year old {person} {self.choose(HISTORY_PHRASES)}", *background[:-1], ". "]

    def _add_signals(self, condition: PatientCondition, times: int) -> None:
        if condition.coding.distinct:
            return
        signals = condition.concept.signals
        kinds, used = [kind for kind in SIGNAL_SECTIONS if kind in signals], set()
        for _ in range(times if kinds else 0):
            kind = self.choose(kinds)
            text, section = self.choose(signals[kind]), SIGNAL_SECTIONS[kind]
            if text in used:
                continue
            used.add(text)
            self.words += text.count(" ") + 1
            if kind == "drug":
                for name in ("home_meds", "meds") if self.rng.random() < 0.5 else ("meds",):
                    self.body[name] += (f"{self._next_number(name)}. ", (text, condition, "signal"), "\n")
            elif kind == "course":
                self.body[section] += ((text[0].upper() + text[1:], condition, "signal"), ". ")
            else:
                self.body[section] += ((text, condition, "signal"), "\n" if kind == "lab" else "; ")

    # Conditions that the patient does not have

    def _add_distractors(self) -> None:
        present = {condition.concept.key for condition in self.admission.conditions}
        draw = self.rng.random
        for name, times, sections in (
            ("negated", 2 + 6 * draw(), ("hpi", "course", "hpi", "results", "exam")),
            ("family", 3 * draw(), ("family",)),
            ("historical", 3.2 * draw(), ("pmh", "hpi")),
            ("hypothetical", 3 * draw(), ("instructions", "course")),
        ):
            for _ in range(int(times)):
                concept = self._absent_concept(present)
                if concept is None:
                    continue
                text = self.writer.mentions.write(self.rng, self.site, concept, self.choose(concept.codings))
                before, after = self.choose(self.slots[name])
                section = self.choose(sections)
                sentence = f"{before}{text}{after}"
                self.words += sentence.count(" ") + 1
                self.body[section].append(sentence + ("\n" if section in ("pmh", "results", "exam") else " "))

    def _absent_concept(self, present: set[str]) -> Concept | None:
        """A concept that the patient does not have, often of the same cluster; None if the sampled one does not fit."""
        clinic, admission = self.writer.clinic, self.admission
        if self.rng.random() < 0.55:
            concept = clinic.of_cluster[admission.cluster].sample(self.rng)
        else:
            concept = clinic.general[age_group(admission.patient.age(admission.day))].sample(self.rng)
        if concept.key in present or concept.kind in ("status", "cause", "family"):
            return None
        return concept if concept.sex in ("", admission.patient.sex) else None

    # Text without codes

    def _add_filler(self, words: float) -> None:
        filler, body, choose, left = self.filler, self.body, self.choose, 0.0
        for name in ("hpi", "course", "exam"):
            body[name].append("\n")
        for name, share in FILLER:
            left += words * share
            if name == "exam":
                left = self._add_exam(left)
                continue
            end = " " if name in ("hpi", "course", "instructions") else "\n"
            while left > 0:
                text = choose(filler[name])
                left -= text.count(" ") + 1
                if name == "meds":
                    section = "meds" if self.rng.random() < 0.6 else "home_meds"
                    body[section] += (f"{self._next_number(section)}. ", text, "\n")
                else:
                    body[name].append(text + (end if text[-1] in ".!" else "\n"))
        body["social"] += [choose(filler["social"]) + " " for _ in range(2 + int(3 * self.rng.random()))]
        body["hpi"].append("\n" + choose(filler["ros"]))
        body["disposition"].append(choose(filler["disposition"]) if not self.admission.died else "Expired")
        body["condition"].append(choose(filler["condition"]))

    def _add_exam(self, words: float) -> float:
        """The number of words left after the examination on admission and, in long notes, the one at discharge."""
        body = self.body["exam"]
        for _ in range(1 + (words > 120)):
            body.append(self.choose(self.filler["vitals"]) + "\n")
            for group in self.writer.exam:
                if self.rng.random() < 0.8:
                    text = self.choose(group)
                    words -= text.count(" ") + 1
                    body.append(text + "\n")
        return words

    def _assemble(self) -> tuple[str, list[Evidence]]:
        body = self.body
        body["results"] = body.pop("labs") + body["results"]
        body["hpi"] = self._opening() + body["hpi"]
        service = self.writer.clinic.clusters[self.admission.cluster]["service"]
        parts = [
            f" \nName:  ___                Unit No:   ___\n \nAdmission Date:  ___              Discharge Date:   ___\n"
            f" \nDate of Birth:  ___             Sex:   {self.admission.patient.sex}\n \nService: {service}\n \n"
            f"Allergies: \n{'No Known Allergies / Adverse Drug Reactions' if self.rng.random() < 0.6 else '___'}\n \n"
            f"Attending: ___.\n \n"
        ]
        position, evidence = len(parts[0]), []
        for section, heading in self.site.headings.items():
            pieces: list[Piece] = [
                heading + "\n",
                *(body[section] or ["None" if section == "procedure" else "___"]),
                "\n \n",
            ]
            for piece in pieces:
                text = piece if isinstance(piece, str) else piece[0]
                if not isinstance(piece, str):
                    _, condition, kind = piece
                    span = (position, position + len(text))
                    evidence += [Evidence(code, *span, {"kind": kind}) for code in condition.codes]
                parts.append(text)
                position += len(text)
        return "".join(parts), evidence


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
            for line in concept.signals.get("imaging", ()):
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
            for line in condition.concept.signals.get("imaging", ())[:1]
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
            and (lines := [x for x in condition.concept.signals.get("imaging", ()) if x.startswith(exam.key + ":")])
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
