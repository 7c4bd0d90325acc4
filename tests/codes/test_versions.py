"""Notes and labels by ICD version."""

from __future__ import annotations

import numpy as np

from nosology.core import Code
from nosology.core.label_space import ICD9, ICD10, LabelSpace, label_versions, mask_other_versions, note_versions

OLD, NEW, PCS = Code("icd9cm", "428.0"), Code("icd10cm", "I50.9"), Code("icd10pcs", "0DTJ4ZZ")


def test_a_note_is_of_the_versions_of_its_codes():
    assert note_versions([[OLD], [NEW, PCS], [OLD, NEW]]).tolist() == [ICD9, ICD10, ICD9 | ICD10]


def test_a_note_without_codes_is_of_the_usual_version():
    assert note_versions([[], [NEW], [PCS], [OLD]]).tolist() == [ICD10, ICD10, ICD10, ICD9]
    assert note_versions([[], []]).tolist() == [0, 0]


def test_codes_of_another_version_get_no_probability():
    labels = LabelSpace([OLD, NEW, PCS])
    found = mask_other_versions(np.ones((3, 3)), np.array([ICD9, ICD10, ICD9 | ICD10]), label_versions(labels))
    assert found.tolist() == [[1, 0, 0], [0, 1, 1], [1, 1, 1]]
