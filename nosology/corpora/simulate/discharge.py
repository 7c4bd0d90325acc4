"""The discharge summary of an admission, with the place of every mention that a code rests on."""

from __future__ import annotations

from math import exp
from random import Random

from nosology.core import Evidence
from nosology.corpora.simulate.clinic import Admission, Clinic, Finding, band
from nosology.corpora.simulate.concepts import Concept
from nosology.corpora.simulate.phrases import Slot, flat, for_sex, pools, slots
from nosology.corpora.simulate.speech import Speech

# The length in words: log-normal with this median and spread, the longer the more codes.
MEDIAN_WORDS, WORDS_SPREAD = 1492, 0.385
# Where the words go that say nothing about a code.
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
# Where things that speak for a condition without naming it stand.
PLACES = {"rx": "meds", "lab": "results", "ex": "exam", "hc": "course"}

KNOWN = ("with a history of ", "with h/o ", "with PMH of ", "with known ", "with ", "w/ ")

Piece = str | tuple[str, Finding, str]  # plain text, or what it says of a finding and whether by mention or signal


class Discharge:
    """Writes discharge summaries; holds nothing of any patient."""

    def __init__(self, clinic: Clinic, speech: Speech):
        self.clinic, self.speech = clinic, speech
        self.slots = {sex: for_sex(slots("slots"), sex) for sex in "FM"}
        self.filler = {sex: for_sex(flat("filler"), sex) for sex in "FM"}
        self.exam = pools("filler")["exam"]
        self.remarks = flat("slots")["problem"]

    def write(self, rng: Random, admission: Admission) -> tuple[str, list[Evidence]]:
        """The text and its evidence, in the order of the text."""
        return _Summary(self, rng, admission).write()


class _Summary:
    def __init__(self, room: Discharge, rng: Random, admission: Admission):
        self.room, self.rng, self.draw, self.admission, self.site = room, rng, rng.random, admission, admission.site
        self.body: dict[str, list[Piece]] = {name: [] for name in self.site.headings}
        self.body |= {"labs": [], "background": []}
        self.slots, self.filler = room.slots[admission.patient.sex], room.filler[admission.patient.sex]
        self.numbers = dict.fromkeys(("pmh", "diagnosis", "meds", "home_meds", "procedure", "course"), 0)
        self.words = 138

    def pick(self, pool: list):
        return pool[int(self.draw() * len(pool))]

    def write(self) -> tuple[str, list[Evidence]]:
        findings = self.admission.findings
        for place, finding in enumerate(findings):
            if finding.shown == "named":
                self._named(finding, place == 0)
            if finding.shown == "implied" or (finding.shown == "named" and self.draw() < 0.55):
                self._implied(finding, 1 + int(self.draw() * 2.6))
        self._distractors()
        wanted = MEDIAN_WORDS * exp(WORDS_SPREAD * self.rng.gauss(0, 0.95) + 0.009 * (len(findings) - 18))
        self._fill(wanted - self.words)
        return self._assemble()

    # What the patient has

    def _say(self, section: str, slot: Slot, finding: Finding, end: str = " ") -> None:
        text = self.room.speech.name(self.rng, self.site, finding.concept, finding.coding)
        before, after = slot
        if not before and section in ("course", "pmh", "diagnosis"):
            text = text[0].upper() + text[1:]
        self.words += before.count(" ") + text.count(" ") + after.count(" ") + 2
        self.body[section] += (before, (text, finding, "mention"), after + end)

    def _item(self, section: str, finding: Finding) -> None:
        self._say(section, (self._bullet(section), ""), finding, ", " if self.site.sentence_list else "\n")

    def _bullet(self, section: str) -> str:
        self.numbers[section] += 1
        return self.site.bullet.replace("{n}", str(self.numbers[section]))

    def _problem(self, finding: Finding) -> None:
        self.numbers["course"] += 1
        before, _, after = self.site.problem.replace("{n}", str(self.numbers["course"])).partition("{}")
        self._say("course", ("\n" + before, after), finding, self.pick(self.room.remarks) + " ")

    def _named(self, finding: Finding, first: bool) -> None:
        kind, draw, slots = finding.concept.kind, self.draw, self.slots
        if first:
            self._say("complaint", self.pick(slots["complaint"]), finding, "\n")
            self._say("hpi", self.pick(slots["hpi"]), finding)
            self._item("diagnosis", finding)
            self._problem(finding)
            self._lay(finding)
        elif kind == "chronic":
            self._one_of(finding, (("pmh", 0.55), ("hpi", 0.12), ("problem", 0.23), ("diagnosis", 0.1)))
            if draw() < 0.4:
                self._one_of(finding, (("hpi", 0.4), ("problem", 0.35), ("diagnosis", 0.25)))
        elif kind == "acute":
            self._one_of(finding, (("hpi", 0.25), ("problem", 0.4), ("course", 0.25), ("diagnosis", 0.1)))
            if draw() < 0.45:
                self._one_of(finding, (("hpi", 0.2), ("course", 0.3), ("diagnosis", 0.5)))
            if draw() < 0.12:
                self._lay(finding)
        elif kind == "procedure":
            self._one_of(finding, (("list", 0.6), ("procedure", 0.4)))
            if draw() < 0.3:
                self._one_of(finding, (("procedure", 1.0),))
        elif kind == "family":
            self._say("family", ("", "."), finding)
        elif kind == "cause":
            self._say("hpi", self.pick(slots["cause"]), finding)
        else:
            self._one_of(finding, (("pmh", 0.45), ("hpi", 0.3), ("course", 0.25)))

    def _one_of(self, finding: Finding, places: tuple[tuple[str, float], ...]) -> None:
        left = self.draw()
        for place, share in places:  # noqa: B007  read after the loop
            left -= share
            if left < 0:
                break
        if place == "hpi" and finding.concept.kind == "chronic":
            self._say("background", ("", ""), finding, ", ")
        elif place in ("pmh", "diagnosis"):
            self._item(place, finding)
        elif place == "list":
            self._item("procedure", finding)
        elif place == "problem":
            self._problem(finding)
        elif place == "procedure":
            self._say("course", self.pick(self.slots["procedure"]), finding)
        else:
            self._say(place, self.pick(self.slots[place]), finding)

    def _lay(self, finding: Finding) -> None:
        lay = finding.concept.signals.get("lay")
        if lay and not finding.coding.own:
            before, after = self.pick(self.slots["instruct"])
            self.body["instructions"] += (before, (self.pick(lay), finding, "mention"), after + " ")

    def _opening(self) -> list[Piece]:
        title, person = ("Ms.", "woman") if self.admission.patient.sex == "F" else ("Mr.", "man")
        known = self.body.pop("background")
        if not known:
            return [f"{title} ___ is a ___ year old {person}. "]
        return [f"{title} ___ is a ___ year old {person} {self.pick(KNOWN)}", *known[:-1], ". "]

    def _implied(self, finding: Finding, times: int) -> None:
        if finding.coding.own:
            return
        signals = finding.concept.signals
        marks, said = [mark for mark in PLACES if mark in signals], set()
        for _ in range(times if marks else 0):
            mark = self.pick(marks)
            text, section = self.pick(signals[mark]), PLACES[mark]
            if text in said:
                continue
            said.add(text)
            self.words += text.count(" ") + 1
            if mark == "rx":
                for name in ("home_meds", "meds") if self.draw() < 0.5 else ("meds",):
                    self.body[name] += (self._number(name), (text, finding, "signal"), "\n")
            elif mark == "hc":
                self.body[section] += ((text[0].upper() + text[1:], finding, "signal"), ". ")
            else:
                self.body[section] += ((text, finding, "signal"), "\n" if mark == "lab" else "; ")

    def _number(self, section: str) -> str:
        self.numbers[section] += 1
        return f"{self.numbers[section]}. "

    # What the patient does not have

    def _distractors(self) -> None:
        present = {finding.concept.key for finding in self.admission.findings}
        draw, slots, body = self.draw, self.slots, self.body
        for name, times, places in (
            ("negated", 2 + 6 * draw(), ("hpi", "course", "hpi", "results", "exam")),
            ("family", 3 * draw(), ("family",)),
            ("historical", 3.2 * draw(), ("pmh", "hpi")),
            ("hypothetical", 3 * draw(), ("instructions", "course")),
        ):
            for _ in range(int(times)):
                concept = self._other(present)
                if concept is None:
                    continue
                text = self.room.speech.name(self.rng, self.site, concept, self.pick(concept.codings))
                before, after = self.pick(slots[name])
                section = self.pick(places)
                sentence = f"{before}{text}{after}"
                self.words += sentence.count(" ") + 1
                body[section].append(sentence + ("\n" if section in ("pmh", "results", "exam") else " "))

    def _other(self, present: set[str]) -> Concept | None:
        """A condition the patient does not have, as likely as not from his own field."""
        clinic, admission = self.room.clinic, self.admission
        if self.draw() < 0.55:
            concept = clinic.of_cluster[admission.cluster].draw(self.rng)
        else:
            concept = clinic.general[band(admission.patient.age(admission.day))].draw(self.rng)
        if concept.key in present or concept.kind in ("status", "cause", "family"):
            return None
        return concept if concept.sex in ("", admission.patient.sex) else None

    # The rest

    def _fill(self, words: float) -> None:
        filler, body, pick, over = self.filler, self.body, self.pick, 0.0
        for name in ("hpi", "course"):
            body[name].append("\n")
        body["exam"].append("\n")
        for name, share in FILLER:
            over += words * share
            if name == "exam":
                over = self._exam(over)
                continue
            some, end = filler[name], " " if name in ("hpi", "course", "instructions") else "\n"
            while over > 0:
                text = pick(some)
                over -= text.count(" ") + 1
                if name == "meds":
                    which = "meds" if self.draw() < 0.6 else "home_meds"
                    body[which] += (self._number(which), text, "\n")
                else:
                    body[name].append(text + (end if text[-1] in ".!" else "\n"))
        body["social"] += [pick(filler["social"]) + " " for _ in range(2 + int(3 * self.draw()))]
        body["hpi"].append("\n" + pick(filler["ros"]))
        body["disposition"].append(pick(filler["disposition"]) if not self.admission.died else "Expired")
        body["condition"].append(pick(filler["condition"]))

    def _exam(self, words: float) -> float:
        """How many of the words are left after an examination on admission and, in longer notes, one at discharge."""
        body = self.body["exam"]
        for _ in range(1 + (words > 120)):
            body.append(self.pick(self.filler["vitals"]) + "\n")
            for group in self.room.exam:
                if self.draw() < 0.8:
                    text = self.pick(group)
                    words -= text.count(" ") + 1
                    body.append(text + "\n")
        return words

    def _assemble(self) -> tuple[str, list[Evidence]]:
        admission = self.admission
        body = self.body
        body["results"] = body.pop("labs") + body["results"]
        body["hpi"] = self._opening() + body["hpi"]
        service = self.room.clinic.clusters[admission.cluster]["service"]
        parts = [
            f" \nName:  ___                Unit No:   ___\n \nAdmission Date:  ___              Discharge Date:   ___\n"
            f" \nDate of Birth:  ___             Sex:   {admission.patient.sex}\n \nService: {service}\n \n"
            f"Allergies: \n{'No Known Allergies / Adverse Drug Reactions' if self.draw() < 0.6 else '___'}\n \n"
            f"Attending: ___.\n \n"
        ]
        position, evidence = len(parts[0]), []
        for section, heading in self.site.headings.items():
            pieces = body[section] or ["None" if section == "procedure" else "___"]
            parts.append(heading + "\n")
            position += len(heading) + 1
            for piece in pieces:
                if type(piece) is tuple:
                    piece, finding, kind = piece
                    for code in finding.codes:
                        evidence.append(Evidence(code, position, position + len(piece), {"kind": kind}))
                parts.append(piece)
                position += len(piece)
            parts.append("\n \n")
            position += 3
        return "".join(parts), evidence
