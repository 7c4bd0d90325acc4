"""Claims in ICD-9-CM."""

from __future__ import annotations

import csv
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

import nosology
from nosology.claims.claim import build_claim
from nosology.claims.icd9 import icd9_codes, icd9_on, icd9_title
from nosology.codes import table
from nosology.core import ConfigError
from nosology.serving.coder import Coder

CASES = Path(__file__).parent / "cases" / "radiology_icd9.jsonl"
LAST = "2015-09-30"  # the last day of ICD-9-CM


@pytest.fixture(scope="module")
def coder():
    return Coder.for_claims("day-one")


def codes(coder, text: str, **stated: str) -> set[str]:
    return {item.code for item in build_claim("", text, coder.code(text), stated, system="icd9cm").codes}


def read_data(name: str) -> list[dict[str, str]]:
    lines = files("nosology.claims").joinpath("data", name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t"))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("J18.9", ("486",)),
        ("R05.9", ("786.2",)),  # newer than the GEMs: by its predecessor R05
        ("T81.41XA", ("998.59",)),  # its predecessor has placeholders: T81.4XXA
        ("Z79.84", ("V58.69",)),  # no predecessor: "other" of the category
        ("I13.0", ("404.91",)),  # of three the unspecified one
        ("E05.20", ("242.20",)),  # the words of the title before "unspecified"
        ("I25.10", ("414.01",)),  # targets of the code, not codes that map to it
        ("A41.9", ("038.9", "995.91")),  # both parts of a combination
        ("R11.10", ("787.03",)),
        ("J44.9", ("496",)),
        ("E11.22", ("250.40",)),
        ("Z87.440", ("V13.02",)),
        ("N13.722", ("593.72",)),
        ("R29.705", ()),  # ICD-9-CM has no scores of a stroke
    ],
)
def test_codes_are_mapped_back(code, expected):
    assert icd9_codes(code, day=LAST) == expected


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        ("N13.30", "hydronephrosis", "591"),
        ("N13.30", "pelviectasis", "593.89"),
        ("N13.30", "hydronephrosis pelviectasis", "591"),
        ("I50.9", "CHF", "428.0"),
        ("I50.9", "heart failure", "428.9"),
        ("Q61.4", "dysplastic kidney", "753.15"),
        ("Q61.4", "MCDK", "753.19"),
        ("R10.9", "flank pain", "789.09"),
    ],
)
def test_words_of_the_note_choose_where_icd9_distinguishes_more(code, words, expected):
    assert icd9_codes(code, words) == (expected,)


@pytest.mark.parametrize(
    ("code", "day", "expected"),
    [
        ("780.60", "2008-09-30", "780.6"),
        ("780.60", "2008-10-01", "780.60"),
        ("780.60", "", "780.6"),  # a note without a date
        ("599.71", "2007-01-01", "599.7"),
        ("780.64", "2007-01-01", "780.99"),  # chills were no fever before
        ("585.9", "2005-01-01", "585"),
        ("486", "2005-01-01", "486"),
    ],
)
def test_codes_are_those_of_the_day(code, day, expected):
    assert icd9_on(code, day) == expected


def test_divided_codes_have_titles_and_parts():
    titles = table("icd9cm")
    for row in read_data("icd9_releases.tsv"):
        if row["title"]:
            assert row["code"] == row["before"] and not titles.billable(row["code"])
            assert any(line.startswith(row["code"]) for line in titles.codes(billable=True))
            assert icd9_title(row["code"]) == row["title"]
        else:
            assert titles.billable(row["code"]), row["code"]


def test_choices_are_billable_codes():
    old, new = table("icd9cm"), table("icd10cm")
    for row in read_data("icd9_choices.tsv"):
        re.compile(row["words"])
        assert row["icd10cm"] in new, row
        assert all(old.billable(code) for code in row["icd9cm"].replace("-", "").split()), row


def test_most_codes_have_billable_counterparts():
    codes, old = table("icd10cm").codes(billable=True)[::400], table("icd9cm")
    mapped = [icd9_codes(code, day=LAST) for code in codes]
    assert sum(map(bool, mapped)) > 0.98 * len(codes)
    assert all(old.billable(code) for found in mapped for code in found)


def test_a_report_is_coded_by_its_findings_else_by_its_symptoms():
    report = "CLINICAL HISTORY: Cough. Rule out pneumonia.\nIMPRESSION: {}"
    claims = [
        nosology.claim(report.format(text), system="icd9cm") for text in ("Left lower lobe pneumonia.", "Normal chest.")
    ]
    assert [[(item.system, item.code) for item in claim.codes] for claim in claims] == [
        [("icd9cm", "486")],
        [("icd9cm", "786.2")],
    ]
    assert "786.2" in {item.code for item in claims[0].left_out}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # a finding that does not explain the reason of the study
        ("History: Cough, fever.\nImpression: Subsegmental atelectasis.", {"786.2", "780.6", "518.0"}),
        ("History: UTI.\nImpression: Moderate hydronephrosis.", {"599.0", "591"}),  # no combination code
        ("History: Flank pain.\nImpression: Ureteral stone with hydronephrosis.", {"592.1", "591"}),
        # reflux of the urinary tract
        ("History: UTI.\nImpression: Grade 2 reflux on the left.", {"599.0", "593.70"}),
        ("History: Reflux.\nImpression: No vesicoureteral reflux today.", {"593.70"}),
        ("History: Spits up, reflux.\nImpression: Normal upper GI.", {"530.81"}),
        # uncertain, resolved, one of two
        ("History: Cough.\nImpression: Atelectasis or pneumonia.", {"786.2"}),
        ("History: Cough, ? small effusion.\nImpression: Normal.", {"786.2"}),
        ("History: Follow-up pneumonia.\nImpression: Interval resolution of the pneumonia.", {"V12.61"}),
        ("History: Cough.\nImpression: Pneumonia has resolved.", {"786.2"}),
        # history
        ("Clinical: History of UTI. Impression: Normal.", {"V13.02"}),
        ("History: Sibling with vesicoureteral reflux.\nImpression: No reflux.", {"V18.69"}),
        # words of other meanings
        ("History: UTI.\nImpression: The bladder is well distended.", {"599.0"}),
        ("History: Seizures, cough, fever.\nImpression: Normal.", {"780.39", "786.2", "780.6"}),
        ("History: Renal transplant and urinary tract infection.\nImpression: Normal.", {"V42.0", "599.0"}),
    ],
)
def test_reports(coder, text, expected):
    assert codes(coder, text) == expected


@pytest.mark.parametrize("date", ["", "2006-05-01", "2014-05-01", "2019-05-01"])
def test_notes_of_any_date_are_coded(coder, date):
    fever = "780.6" if date < "2008-10-01" else "780.60"
    assert codes(coder, "History: Fever. Impression: Normal chest.", date=date) == {fever}


def test_a_wrong_date_is_refused(coder):
    with pytest.raises(ConfigError, match="date must be YYYY-MM-DD"):
        codes(coder, "Cough.", date="2007")


def test_cases_need_no_stated_role(coder):
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    right = found = gold = 0
    for case in cases:
        optional = {item["code"] for item in case.get("optional", ())}
        expected = {item["code"] for item in case["codes"]}
        assigned = codes(coder, case["text"], date=case.get("date", "")) - optional
        right, found, gold = right + len(assigned & expected), found + len(assigned), gold + len(expected)
    assert 2 * right / (found + gold) > 0.93


def test_other_systems_are_refused():
    with pytest.raises(ConfigError, match="system must be one of icd10cm, icd9cm"):
        nosology.claim("Cough.", system="icd9proc")
