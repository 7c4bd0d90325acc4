"""Calibrated probabilities of the codes of a claim, and the codes whose evidence is too weak to be billed.

A logistic regression over what is known of a code: the coder's probability, length and place of the evidence, wording
of the description, chapter, and whether a mention or a rule put it into the set. Its weights are in
data/calibration.json; benchmarks/quality/claim_calibration.py fits and measures them.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from nosology.claims.assessment import TITLE
from nosology.claims.draft import WEAK_EVIDENCE, Draft, Entry, matches
from nosology.claims.rules import rules

_SECTIONS = {
    "discharge_diagnosis": "diagnosis",
    "assessment": "diagnosis",
    "impression": "diagnosis",
    "admission_diagnosis": "diagnosis",
    "past_medical_history": "history",
    "surgical_history": "history",
    "problem_list": "history",
    "family_history": "background",
    "social_history": "background",
    "allergies": "background",
    "medications": "medications",
    "discharge_medications": "medications",
    "physical_exam": "findings",
    "vital_signs": "findings",
    "results": "findings",
    "findings": "findings",
    "review_of_systems": "findings",
    "indication": "indication",
    "chief_complaint": "indication",
    "instructions": "background",
    "technique": "background",
}
_GROUPS = {
    letter: group
    for letters, group in (("AB", "infection"), ("ST", "injury"), ("VWXY", "cause"), ("OP", "birth"))
    for letter in letters
}
_NO_DIAGNOSIS = "VWXYZ"  # first letters of causes and status
_MAX_ABBREVIATION = 4  # characters
_SHORT_REPORT = 80  # words
_STATED_DISEASE = "A00-Q99|S00-T98|U00-U99"  # what physicians name as a problem; not symptoms, causes and status
_LEAST_OF_INPATIENTS = 0.25  # of a disease; the weights were fitted on notes of all settings
_LEAST_OF_CODER = 0.5  # of the coder's own probability for a disease that opens a line
# Diseases of which hospital notes hardly ever state more than the unspecified code says.
_USUAL = "F03|F32.A|F41.9|M10.9|N17.9|E03.9|E78.5|I48.91|I27.20|D69.6|G40.909|J18.9"
_MEASURED = "Y90"  # codes of a number in the note
_LINE_START = re.compile(r"(?:^|\n)[ \t]*(?:[-*•#]+|#?\d{1,2}[.):]*)?[ \t]*(?:(?:new|mild|moderate|severe) )?$", re.I)
_BEFORE = 20  # characters before a mention with the mark of its line


class Calibration(NamedTuple):
    """Weights by feature, and the least probability of a code that stays in the set."""

    weights: dict[str, float]
    threshold: float


def calibrate(draft: Draft, calibration: Calibration | None = None) -> None:
    """Gives each code its calibrated probability, and leaves out the codes below the threshold.

    The few words of a short report all count: nothing is left out of its claim, nor where no diagnosis would remain.
    """
    calibration = calibration or default_calibration()
    stated = dict(draft.entries)
    for code, entry in draft.entries.items():
        draft.entries[code] = replace(entry, probability=probability(features(draft, entry), calibration.weights))
    weak = [entry.code for entry in draft.entries.values() if entry.probability < _least(draft, entry, calibration)]
    weak = [code for code in weak if not (draft.encounter.is_inpatient and _is_problem(draft, stated[code]))]
    is_short = draft.encounter.role != "attending" and len(draft.tokens) <= _SHORT_REPORT
    has_diagnosis = any(code not in weak and code[0] not in _NO_DIAGNOSIS for code in draft.entries)
    for code in weak if has_diagnosis and not is_short else ():
        draft.drop(code, "the words of the note are too weak evidence for this code", WEAK_EVIDENCE)


def _least(draft: Draft, entry: Entry, calibration: Calibration) -> float:
    """The least probability of a code that stays in the set."""
    if matches(_MEASURED, entry.code):
        return 0.0
    is_disease = draft.encounter.is_inpatient and matches(_STATED_DISEASE, entry.code)
    return min(_LEAST_OF_INPATIENTS, calibration.threshold) if is_disease else calibration.threshold


def _is_problem(draft: Draft, entry: Entry) -> bool:
    """Whether a mention of a disease opens a line, as in a list of problems: "Gout, allopurinol continued"."""
    if not matches(_STATED_DISEASE, entry.code) or entry.probability < _LEAST_OF_CODER:
        return False
    return any(
        _LINE_START.search(draft.text[max(0, span.start - _BEFORE) : span.start]) is not None
        and _SECTIONS.get(draft.section_kind(span.start), "") not in ("findings", "background", "indication")
        for span in entry.evidence
    )


@cache
def default_calibration() -> Calibration:
    """The weights that ship with the package."""
    stored = json.loads(files("nosology.claims").joinpath("data/calibration.json").read_text(encoding="utf-8"))
    return Calibration(stored["weights"], stored["threshold"])


def probability(values: dict[str, float], weights: dict[str, float]) -> float:
    """The probability of a code with these features."""
    score = sum(value * weights.get(name, 0.0) for name, value in values.items())
    return 1 / (1 + math.exp(-score))


@cache
def _families() -> dict[str, str]:
    return {rule.id: rule.family for rule in rules()}


def features(draft: Draft, entry: Entry) -> dict[str, float]:
    """The features of a code by name; a feature that is absent is 0."""
    title = draft.table.description(entry.code).lower()
    coder = min(0.99, max(0.01, entry.probability))
    words = [len(draft.text[span.start : span.end].split()) for span in entry.evidence]
    longest = max(words, default=0)
    texts = [draft.text[span.start : span.end] for span in entry.evidence]
    letter = entry.code[0]
    family = _families().get(entry.rule, entry.rule)
    inpatient = draft.encounter.is_inpatient
    values = {
        "constant": 1.0,
        "coder": math.log(coder / (1 - coder)),
        "mentions": math.log1p(len(entry.evidence)),
        f"words_{min(longest, 4)}": 1.0,
        f"chapter_{_GROUPS.get(letter, letter)}": 1.0,
        f"basis_{family or 'mention'}": 1.0,
        f"{'inpatient' if inpatient else 'outpatient'}": 1.0,
        "unspecified": float("unspecified" in title and not (inpatient and matches(_USUAL, entry.code))),
        "other": float(title.startswith("other ")),
        "abbreviation": float(bool(texts) and all(len(text) <= _MAX_ABBREVIATION for text in texts)),
        "title": float(not inpatient and any(draft.assessment.place(span) == TITLE for span in entry.evidence)),
        "uncertain": float(any(draft.context(span).uncertain for span in entry.evidence)),
        "length": math.log1p(len(draft.tokens)) / 5,
    }
    for span in entry.evidence:
        values[f"section_{_SECTIONS.get(draft.section_kind(span.start), 'other')}"] = 1.0
    return values
