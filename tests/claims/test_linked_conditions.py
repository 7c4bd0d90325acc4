"""Pairs of codes from the Alphabetic Index, and how they combine the codes of a draft."""

from __future__ import annotations

from nosology.claims.draft import Draft
from nosology.claims.encounter import Encounter
from nosology.claims.linked_conditions import combine_linked, linked_conditions
from nosology.codes import table
from nosology.core import Span


def draft_of(text: str, **codes: str) -> Draft:
    """A draft with codes, each by its words in the text."""
    draft = Draft(text, Encounter())
    for name, words in codes.items():
        code = name.replace("_", ".")
        start = text.index(words)
        draft.add(code, 0.8, [Span(start, start + len(words))], "")
    return draft


def test_pairs_are_billable_codes_of_the_index():
    codes = table("icd10cm")
    rows = [(term, other, both) for term, found in linked_conditions().items() for other, (both, _) in found.items()]
    assert len(rows) > 800
    assert all(codes.billable(code) for row in rows for code in row)
    assert all(both[:3] in (term[:3], other[:3]) for term, other, both in rows)


def test_condition_in_the_same_sentence_is_combined():
    draft = draft_of("Whooping cough with pneumonia.", A37_90="Whooping cough", J18_9="pneumonia")
    combine_linked(draft)
    assert list(draft.entries) == ["A37.91"]
    assert {item.rule for item in draft.left_out} == {"index-with"}


def test_condition_that_a_note_asks_for_stays():
    draft = draft_of("Esophageal varices in portal hypertension.", I85_00="Esophageal varices", K76_6="portal")
    combine_linked(draft)
    assert list(draft.entries) == ["I85.10", "K76.6"]


def test_condition_in_another_sentence_stays():
    draft = draft_of("Whooping cough in March. Pneumonia now.", A37_90="Whooping cough", J18_9="Pneumonia")
    combine_linked(draft)
    assert list(draft.entries) == ["A37.90", "J18.9"]
