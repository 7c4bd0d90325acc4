"""IV.J: an outpatient claim has what the visit treated, evaluated or monitored."""

from __future__ import annotations

import pytest

from nosology.claims.claim import build_claim
from nosology.serving.coder import Coder

NOTE = """CHIEF COMPLAINT: knee pain

HISTORY OF PRESENT ILLNESS: 60-year-old man with right knee pain for a month. He had some fatigue last week. {more}

ASSESSMENT AND PLAN:
1. Primary osteoarthritis of the right knee. Physical therapy.
"""


@pytest.mark.parametrize(
    ("more", "setting", "code", "expected"),
    [
        ("He has cirrhosis.", "outpatient", "K74.60", False),
        ("He has cirrhosis, on lactulose 20 g daily.", "outpatient", "K74.60", True),
        ("He has cirrhosis.", "inpatient", "K74.60", True),
        ("", "outpatient", "R53.83", False),
        ("", "outpatient", "M17.11", True),
    ],
)
def test_conditions_outside_of_the_assessment_must_be_managed(more, setting, code, expected):
    text = NOTE.format(more=more)
    claim = build_claim("", text, Coder.for_claims("day-one").code(text), {"setting": setting}, off=["calibration"])
    assert (code in {item.code for item in claim.codes}) is expected
