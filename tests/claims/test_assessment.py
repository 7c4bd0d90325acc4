"""Titles of problems in assessments, and the places of other mentions."""

from __future__ import annotations

import pytest

from nosology.claims.assessment import DETAIL, OUTSIDE, STATEMENT, TITLE, Assessment
from nosology.core import Span
from nosology.text.sections import sections


def assessment(text: str, *mentions: str) -> Assessment:
    return Assessment(text, sections(text), [span(text, words) for words in mentions])


def span(text: str, words: str) -> Span:
    return Span(text.index(words), text.index(words) + len(words))


@pytest.mark.parametrize(
    ("lines", "titles"),
    [
        ("Hypertension.\n- Medical Reasoning: above goal.\n\nGout.\n- Stable gout.", ["Hypertension", "Gout"]),
        ("1. Hypertension. Not at goal.\n   - Continue.\n2) Gout - no flare", ["Hypertension", "Gout"]),
        ("Problem #1: Hypertension\n• Stable.\nProblem #2 Gout\n• Stable.", ["Hypertension", "Gout"]),
        ("#1 Hypertension\nAt goal.\n#2 Gout\nNo flare.", ["Hypertension", "Gout"]),
        ("Mr. Berg is a man with:\n\n• Hypertension. Stable.\n• Gout. Stable.", ["Hypertension", "Gout"]),
        ("Stable Hypertension.\n- At goal.", ["Stable Hypertension"]),
        ("Diagnosis: Hypertension\nPlan: lisinopril.", ["Hypertension"]),
        ("She has hypertension. Continue lisinopril for gout.", []),
        ("Increase lisinopril for Hypertension.\nCall us about Gout.", []),
    ],
)
def test_titles(lines, titles):
    text = f"ASSESSMENT AND PLAN\n\n{lines}\n"
    found = assessment(text, *(word for word in ("Hypertension", "hypertension", "Gout", "gout") if word in text))
    assert [text[it.start : it.end] for it in found.titles] == titles


def test_places():
    text = "HPI: Asthma.\n\nASSESSMENT\n\nHypertension.\n- Check for anemia.\n\nPLAN\n\nGout diet.\n"
    found = assessment(text, "Asthma", "Hypertension", "anemia", "Gout")
    places = [found.place(span(text, word)) for word in ("Asthma", "Hypertension", "anemia", "Gout")]
    assert places == [OUTSIDE, TITLE, DETAIL, DETAIL]


def test_prose_states_its_diagnoses():
    text = "ASSESSMENT: The patient has hypertension.\nPLAN: Watch for gout."
    found = assessment(text, "hypertension", "gout")
    assert [found.place(span(text, word)) for word in ("hypertension", "gout")] == [STATEMENT, DETAIL]


def test_the_block_of_a_title_ends_at_the_next_one():
    text = "ASSESSMENT AND PLAN\n\nHypertension.\n- Stable.\n\nGout.\n- No flare.\n"
    found = assessment(text, "Hypertension", "Gout")
    block = found.block(found.titles[0])
    assert text[block.start : block.end].split() == ["Hypertension.", "-", "Stable."]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("The patient is doing well on the drug that we gave her, and we will go on with it. " * 3, True),
        ("HTN, cont lisinopril 20 qd. DM2, A1c 7, cont metformin. Gout, no flare. BMP 3 mo. " * 4, False),
        ("She is doing well.", False),
    ],
)
def test_a_discussion_is_long_and_in_sentences(lines, expected):
    assert assessment(f"ASSESSMENT AND PLAN\n\n{lines}\n").is_discussion is expected
