"""What an outpatient note mentions only as advice."""

from __future__ import annotations

import pytest

from nosology.claims.advice import is_advice
from nosology.claims.draft import Draft
from nosology.claims.encounter import Encounter
from nosology.core import Span

ADVICE = [
    "She will call for increasing pain, {} or redness.",
    "Return in two weeks, or sooner with {}.",
    "Emergency room for {}.",
    "The drug can cause nausea and {}.",
    "The risks include bleeding and {}.",
    "We discussed {} and when to worry.",
    "She was warned about {}.",
    "Hold the tablets when he has {}.",
    "Blood count to look for {}.",
    "Nausea, {} and rash were reviewed.",
    "Her {} may get worse.",
    "This is seen in patients with {}.",
]
NO_ADVICE = [
    "She has {}.",
    "We discussed treatment options for her {}.",
    "I explained that her scan shows {}.",
    "We discussed the diagnosis of {}.",
    "Continue the present treatment for {}.",
    "Reviewed: {}.",
]


def advice(sentence: str, setting: str = "outpatient", heading: str = "ASSESSMENT AND PLAN") -> bool:
    text = f"{heading}\n\n{sentence.format('anemia')}\n"
    start = text.index("anemia")
    return is_advice(Draft(text, Encounter(setting)), Span(start, start + len("anemia")))


@pytest.mark.parametrize("sentence", ADVICE)
def test_advice(sentence):
    assert advice(sentence)


@pytest.mark.parametrize("sentence", NO_ADVICE)
def test_what_is_said_of_the_patient_is_no_advice(sentence):
    assert not advice(sentence)


def test_only_in_assessments_and_instructions_of_outpatients():
    sentence = ADVICE[4]
    assert advice(sentence, heading="INSTRUCTIONS")
    assert not advice(sentence, heading="HISTORY OF PRESENT ILLNESS")
    assert not advice(sentence, setting="inpatient")
