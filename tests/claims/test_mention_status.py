"""Which mentions count for a claim: sentences with codes that must and must not be in the set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nosology.claims.claim import build_claim
from nosology.serving.coder import Coder


@pytest.fixture(scope="module")
def coder():
    return Coder.for_claims("day-one")


def codes(coder, text: str, setting: str, role: str = "attending") -> set[str]:
    claim = build_claim(
        "note", text, coder.code(text), {"setting": setting, "role": role}, off=["calibration", "relevance"]
    )
    return {item.code for item in claim.codes}


CASES = [
    # uncertain diagnoses: II.H and IV.H
    ("inpatient", "Discharge diagnosis: probable aspiration pneumonia.", {"J69.0"}, set()),
    ("outpatient", "Fatigue. Assessment: probable aspiration pneumonia.", {"R53.83"}, {"J69.0"}),
    ("outpatient", "Impression: opacity compatible with pneumonia.", set(), {"J18.9"}),
    ("outpatient", "Shoulder pain, working diagnosis polymyalgia rheumatica.", set(), {"M35.3"}),
    ("inpatient", "HPI: gout, ?CHF, r/o PE.\nDischarge diagnosis: Gout.", {"M10.9"}, {"I50.9", "I26.99"}),
    ("inpatient", "Discharge diagnosis: suspected COVID-19.", set(), {"U07.1"}),
    # ruled out, under any name
    ("inpatient", "Sepsis on arrival. Gout flare treated. Sepsis was ruled out.", {"M10.9"}, {"A41.9"}),
    ("inpatient", "Pulmonary embolism on call. Gout. CTA done, PE ruled out.", {"M10.9"}, {"I26.99"}),
    ("emergency", "? DVT L leg - doppler neg, ruled out. Gout.", {"M10.9"}, {"I82.402", "I82.409"}),
    ("inpatient", "Gout. CKD? - creatinine 0.9, no CKD.", {"M10.9"}, {"N18.9"}),
    ("inpatient", "COPD and gout, PE ruled out.", {"J44.9", "M10.9"}, {"I26.99"}),
    ("inpatient", "PE ruled out on the left.\nDischarge diagnosis: pulmonary embolism.", {"I26.99"}, set()),
    ("inpatient", "Diabetes not diagnosed previously, now new type 2 diabetes.", {"E11.9"}, set()),
    ("inpatient", "Cellulitis: treated with cefazolin. DVT ruled out. Excluded.", {"L03.90"}, {"I82.409"}),
    ("inpatient", "Sepsis considered present on admission.", {"A41.9"}, set()),
    # devices of the past, next to what is planned
    ("inpatient", "Evaluated for syncope; needs interrogation of his pacemaker.", {"R55", "Z95.0"}, set()),
    # words of a term apart from their sense
    ("inpatient", "Grouped microcalcifications of the kidney. Gout.", {"M10.9"}, {"R92.0"}),
    ("inpatient", "Lost insurance card. Pneumonia.", {"J18.9"}, {"Z59.71"}),
    ("outpatient", "Assessment: Rape seed oil allergy. Gout.", {"M10.9"}, {"T74.21XA"}),
    ("inpatient", "Dural tear, traumatic, after a motor vehicle collision. Gout.", {"M10.9"}, {"G97.41"}),
    # other people
    ("inpatient", "Baby boy, newborn, born to a diabetic mother. Maternal gout.", set(), {"E11.9", "M10.9"}),
    ("outpatient", "Sib has a cold. Sister with gout. Asthma.", {"J45.909"}, {"J00", "M10.9"}),
    # allergies, teaching, prescriptions, names
    ("outpatient", "Gout. Allergies: sulfa (rash).", {"M10.9"}, {"R21"}),
    ("outpatient", "Codeine makes her break out in hives. Gout.", {"M10.9"}, {"L50.9"}),
    ("outpatient", "Handouts given: heart attack and asthma.", set(), {"I21.9", "J45.909"}),
    ("outpatient", "Use the cream twice daily for itch or rash.", set(), {"L29.9", "R21"}),
    ("outpatient", "HEADACHE CLINIC\nGout.", {"M10.9"}, {"R51.9"}),
    # lists that were copied
    (
        "inpatient",
        "Problem list (imported):\n1. Gout\n2. Pneumonia, 3/2024 - resolved\n3. TIA 2016",
        {"M10.9", "Z86.73"},
        {"J18.9", "G45.9"},
    ),
    ("inpatient", "PMH/problem list (copied)\n- Gout\n- Asthma (removed - spirometry normal)", {"M10.9"}, {"J45.909"}),
    ("inpatient", "Final diagnoses:\n1. Acute kidney injury, resolved", {"N17.9"}, set()),
    # what was over before the encounter: III.A
    ("inpatient", "Gout. History of cellulitis of the leg, resolved years ago.", {"M10.9"}, {"L03.116", "L03.119"}),
    ("inpatient", "Gout. Asthma as a child which resolved in childhood.", {"M10.9"}, {"J45.909"}),
    ("inpatient", "Gout. History of hyponatremia, resolved.", {"M10.9"}, {"E87.1"}),
    ("inpatient", "Hyponatremia and gout. Cellulitis resolved years ago.", {"E87.1", "M10.9"}, {"L03.90"}),
    ("inpatient", "Gout, asthma. Ulcer that has not healed as a child would.", {"M10.9", "J45.909"}, set()),
    ("inpatient", "Hyponatremia, gout, cellulitis resolved years ago.", {"E87.1", "M10.9"}, {"L03.90"}),
    ("inpatient", "Chest pain, NSTEMI ruled out by serial troponins.", {"R07.9"}, {"I21.4"}),
    ("outpatient", "CAD, no angina, on aspirin. Gout.", {"M10.9", "I25.10", "Z79.82"}, {"I20.9"}),
    ("outpatient", "Colitis? mother had ulcerative colitis? Gout.", {"M10.9"}, {"Z83.79"}),
    # remission is current, list numbers are no stages
    ("outpatient", "Multiple myeloma in remission.", {"C90.01"}, {"Z85.79"}),
    ("outpatient", "1. Gout\n2. CKD stage 3a", {"M10.9", "N18.31"}, {"N18.2"}),
    # particles apart from their verbs, units of doses, names of persons, empty boxes, tests
    ("outpatient", "Gout. After a time-out, the scope was passed to the cecum.", {"M10.9"}, {"R55"}),
    ("outpatient", "Migraine. Sumatriptan 100 mg for severe attacks.", {"G43.909"}, {"G70.01"}),
    ("outpatient", "Gout. Dr. Crohn reviewed the chart.", {"M10.9"}, {"K50.90"}),
    ("outpatient", "Gout.\n( ) asthma ( ) COPD ( ) cancer", {"M10.9"}, {"J45.909", "J44.9"}),
    ("outpatient", "Gout. Fever: No Cough: No Rash: No", {"M10.9"}, {"R50.9", "R05.9", "R21"}),
    ("outpatient", "Gout. Labs ordered: hepatitis C antibody, RPR.", {"M10.9"}, {"B19.20"}),
    ("outpatient", "Gout. PE not pursued further with a low D-dimer.", {"M10.9"}, {"I26.99"}),
    ("outpatient", "Gout. EKG: sinus rhythm. Limit caffeine.", {"M10.9"}, {"R94.31", "F15.988", "F15.99"}),
    # the words of a screening are its name; relatives; pain beside an open diagnosis
    ("outpatient", "Encounter for screening for malignant neoplasm of colon.", {"Z12.11"}, set()),
    ("outpatient", "Elevated PSA, with a family history in his brother.", {"R97.20"}, set()),
    ("outpatient", "Family hx of breast cancer in mother; screening mammogram ordered.", {"Z80.3"}, set()),
    ("outpatient", "Left shoulder pain, impingement vs rotator cuff tear.", {"M25.512"}, {"M75.102"}),
    ("outpatient", "IMPRESSION:\n1. Gout.\n2. Impacted cerumen, right ear, removed.", {"H61.21", "M10.9"}, set()),
    ("outpatient", "Tear of medial meniscus of right knee reaching both articular surfaces.", set(), {"S83.242A"}),
    ("outpatient", "Type 2 diabetes with mild NPDR without macular edema, both eyes.", {"E11.3293"}, {"E11.3299"}),
]


@pytest.mark.parametrize(("setting", "text", "wanted", "unwanted"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_mentions_that_count(coder, setting, text, wanted, unwanted):
    found = codes(coder, text, setting)
    assert wanted <= found and not unwanted & found, found


SENTENCES = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases" / "context.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("case", SENTENCES, ids=[str(number) for number in range(len(SENTENCES))])
def test_context_of_whole_sentences(coder, case):
    off = ["calibration", "relevance", "integral"]
    claim = build_claim("note", case["text"], coder.code(case["text"]), {"setting": case["setting"]}, off=off)
    assert not set(case["without"]) & {item.code for item in claim.codes}


def test_reports_code_the_finding_and_not_the_reason(coder):
    text = "INDICATION: Cough.\nFINDINGS: Clear.\nIMPRESSION: Right lower lobe pneumonia."
    assert "R05.9" not in codes(coder, text, "outpatient", "radiology")
    assert "R05.9" in codes(coder, "INDICATION: Cough.\nIMPRESSION: No pneumonia.", "outpatient", "radiology")


def test_what_does_not_count_has_a_reason(coder):
    text = "Gout. Probable asthma."
    claim = build_claim("note", text, coder.code(text), {"setting": "outpatient"})
    assert [item.rule for item in claim.left_out if item.code == "J45.909"] == ["uncertain"]
