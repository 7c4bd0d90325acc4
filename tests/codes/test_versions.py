"""Notes and labels by ICD version."""

from __future__ import annotations

import numpy as np

from nosology.core import Code
from nosology.core.label_space import NINE, TEN, LabelSpace, label_versions, only_own_version, versions

OLD, NEW, PCS = Code("icd9cm", "428.0"), Code("icd10cm", "I50.9"), Code("icd10pcs", "0DTJ4ZZ")


def test_a_note_is_of_the_versions_of_its_codes():
    assert versions([[OLD], [NEW, PCS], [OLD, NEW]]).tolist() == [NINE, TEN, NINE | TEN]


def test_a_note_without_codes_is_of_the_usual_version():
    assert versions([[], [NEW], [PCS], [OLD]]).tolist() == [TEN, TEN, TEN, NINE]
    assert versions([[], []]).tolist() == [0, 0]


def test_codes_of_another_version_get_no_probability():
    labels = LabelSpace([OLD, NEW, PCS])
    found = only_own_version(np.ones((3, 3)), np.array([NINE, TEN, NINE | TEN]), label_versions(labels))
    assert found.tolist() == [[1, 0, 0], [0, 1, 1], [1, 1, 1]]
