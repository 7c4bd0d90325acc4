"""Claims in ICD-9-CM."""

from __future__ import annotations

import pytest

import nosology
from nosology.claims.icd9 import icd9_codes
from nosology.codes import table
from nosology.core import ConfigError


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("J18.9", ("486",)),
        ("R05.9", ("786.2",)),  # newer than the GEMs: by its predecessor R05
        ("I13.0", ("404.91",)),  # of three the unspecified one
        ("R11.10", ("787.03",)),
        ("E11.22", ("250.40",)),
        ("Z87.440", ("V13.02",)),
    ],
)
def test_codes_are_mapped_back(code, expected):
    assert icd9_codes(code) == expected


def test_most_codes_have_billable_counterparts():
    codes, old = table("icd10cm").codes(billable=True)[::400], table("icd9cm")
    mapped = [icd9_codes(code) for code in codes]
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


def test_other_systems_are_refused():
    with pytest.raises(ConfigError, match="system must be one of icd10cm, icd9cm"):
        nosology.claim("Cough.", system="icd9proc")
