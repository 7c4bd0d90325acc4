"""Which codes of a note are explained."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from nosology.codes.label_space import LabelSpace
from nosology.core import Code
from nosology.explanation.report import accepted
from nosology.models.bundle import Bundle
from nosology.models.decision import Decision

CODES = [Code("icd10cm", "I50.9"), Code("icd10pcs", "0DTJ4ZZ"), Code("icd9cm", "428.0")]  # in the order of a LabelSpace


@pytest.mark.parametrize(
    ("within_versions", "systems", "expected"),
    [
        (True, (), ["I50.9", "0DTJ4ZZ"]),  # the newest version, as a Coder suggests
        (True, ("icd9cm",), ["428.0"]),
        (True, ("icd9cm", "icd10cm"), ["428.0", "I50.9"]),
        (False, (), ["428.0", "I50.9", "0DTJ4ZZ"]),
    ],
)
def test_of_several_versions_the_one_that_is_suggested_is_explained(within_versions, systems, expected):
    model = SimpleNamespace(
        labels=LabelSpace(CODES),
        within_versions=within_versions,
        probabilities=lambda texts: np.tile([0.8, 0.7, 0.9], (len(texts), 1)),
    )
    found = accepted(Bundle(model, Decision(0.5), {}, {}), "heart failure", systems)
    assert [model.labels.codes[column].code for column in found] == expected
