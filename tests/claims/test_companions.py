"""Companion codes: drug names and their codes, phrases of rules, completed codes, and telegraphic sentences."""

from __future__ import annotations

import pytest

import nosology
from nosology.claims.claim import build_claim
from nosology.claims.code_completion import completed, side_at
from nosology.claims.draft import Draft, matches
from nosology.claims.encounter import Encounter
from nosology.claims.rule_phrases import find_phrases, phrase_index
from nosology.claims.substances import drug_lists, substances_in
from nosology.codes import table
from nosology.core import Span
from nosology.text.tokens import tokenize

# setting, text, codes that must be there, codes that must not be there
SENTENCES = [
    ("inpatient", "Home meds: eliquis 5 bid, asa 81, metformin 1g bid. T2DM.", "Z79.01 Z79.82 Z79.84", ""),
    ("outpatient", "RA on MTX 15 mg weekly and Humira q2wk.", "Z79.631 Z79.620", ""),
    ("outpatient", "DVT 2019, completed 6 months of warfarin, now off anticoagulation.", "", "Z79.01"),
    ("inpatient", "Pneumonia. Insulin sliding scale, IV methylprednisolone x 3 days.", "", "Z79.4 Z79.52"),
    ("outpatient", "PCN allergy (rash). Sulfa -> hives. Latex allergy.", "Z88.0 Z88.2 Z91.040", ""),
    ("outpatient", "NKDA. No known food allergies. Takes bactrim for UTI.", "", "Z88.2 Z91.018"),
    ("inpatient", "Hyponatremia due to HCTZ, which was stopped.", "T50.2X5A", ""),
    ("inpatient", "Hypertensive emergency, ran out of amlodipine, lost insurance.", "T46.1X6A Z91.120", ""),
    ("inpatient", "Intentional overdose on amitriptyline, suicide attempt, intubated.", "T43.012A", "T43.011A"),
    ("emergency", "Heroin overdose, given narcan, accidental.", "T40.1X1A", "T40.1X2A"),
    ("outpatient", "BMI 27.1. HTN.", "", "Z68.27"),
    ("inpatient", "NICU: 28 5/7 wk male, BW 1,120 g, delivered by c-section, RDS.", "Z38.01 P07.14 P07.31", ""),
    ("outpatient", "Ex-smoker, 30 pk-yrs, quit 2005. COPD.", "Z87.891", "F17.210"),
    ("inpatient", "ESRD on PD, s/p R AKA 2021, wheelchair bound.", "Z99.2 Z89.611 Z99.3", ""),
    ("outpatient", "Bilateral TKR, R THA 2012.", "Z96.653 Z96.641", ""),
    ("emergency", "Fell out of bed at nursing home, left femoral neck fracture.", "W06.XXXA Y92.129", ""),
    ("inpatient", "Osteomyelitis left foot, wound cx MSSA and Pseudomonas.", "B95.61 B96.5", ""),
    ("outpatient", "Insulin pump, T1DM, CGM.", "Z96.41", "Z79.4"),
]


@pytest.fixture(scope="module")
def coder():
    return nosology.load("day-one")


@pytest.mark.parametrize(
    ("setting", "text", "wanted", "unwanted"), SENTENCES, ids=[str(n) for n in range(len(SENTENCES))]
)
def test_telegraphic_sentences(coder, setting, text, wanted, unwanted):
    codes = {item.code for item in build_claim("x", text, coder.code(text), {"setting": setting}).codes}
    assert set(wanted.split()) <= codes
    assert not set(unwanted.split()) & codes


def test_every_drug_class_has_codes():
    for code, names in drug_lists().items():
        assert code == "drugs" or table("icd10cm").billable(code)
        for name in names:
            phrase = name.split("|")[0].split()[0] if "|" in name else name
            assert code == "drugs" or "|" in name or list(substances_in(phrase, 0, len(phrase))), name


def test_substances_have_the_codes_of_the_official_table():
    text = "on Coumadin and lisinopril, iron deficiency"
    found = list(substances_in(text, 0, len(text)))
    assert [text[it.span.start : it.span.end] for it in found] == ["Coumadin", "lisinopril"]
    assert [it.codes.adverse_effect for it in found] == ["T45.515", "T46.4X5"]


def test_the_longest_phrase_counts_and_punctuation_separates_words():
    index = phrase_index({"a": ["home oxygen|O2", "home"], "b": ["H pylori"]})
    text = "home O2. At home, oxygen. H. pylori"
    hits = find_phrases(text, tokenize(text), index)
    assert [text[span.start : span.end] for span in hits["a"]] == ["home O2", "home"]
    assert [text[span.start : span.end] for span in hits["b"]] == ["H. pylori"]


@pytest.mark.parametrize(
    ("text", "word", "stem", "code"),
    [
        ("s/p L mastectomy 2009", "mastectomy", "Z90.1", "Z90.12"),
        ("BKA of the right leg", "BKA", "Z89.51", "Z89.511"),
        ("bilateral TKR", "TKR", "Z96.65", "Z96.653"),
        ("mastectomy", "mastectomy", "Z90.1", "Z90.10"),
        ("fell off a ladder", "ladder", "W11", "W11.XXXA"),
    ],
)
def test_codes_are_completed_by_side_and_encounter(text, word, stem, code):
    draft = Draft(text, Encounter())
    start = text.index(word)
    assert completed(draft, stem, Span(start, start + len(word))) == code


def test_a_side_of_another_clause_does_not_count():
    text = "left arm pain; mastectomy"
    assert side_at(Draft(text, Encounter()), Span(15, 25)) == ""


def test_patterns_with_stars():
    assert matches("T3*6A|T4*6A", "T43.226A") and not matches("T3*6A|T4*6A", "T45.515A")
