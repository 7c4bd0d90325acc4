"""Which ICD version a note is coded in: codes of another version are unknown for it, not absent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from nosology.codes.label_space import LabelSpace
from nosology.core import Code

VERSION = {"icd9cm": 9, "icd9proc": 9, "icd10cm": 10, "icd10pcs": 10}


def versions(codes: Sequence[Collection[Code]]) -> np.ndarray:
    """The version of each note (B,): that of most of its codes; of a note without codes, that of most notes."""
    found = [Counter(VERSION[code.system] for code in note).most_common(1) for note in codes]
    usual = Counter(note[0][0] for note in found if note).most_common(1)
    return np.array([note[0][0] if note else (usual[0][0] if usual else 0) for note in found], dtype=np.int64)


def label_versions(labels: LabelSpace) -> np.ndarray:
    """The version of each label (L,)."""
    return np.array([VERSION[code.system] for code in labels.codes], dtype=np.int64)


def only_own_version(probabilities: np.ndarray, of_notes: np.ndarray, of_labels: np.ndarray) -> np.ndarray:
    """The probabilities (B, L) with 0 where label and note are of different versions, in place."""
    for version in np.unique(of_notes):
        probabilities[np.ix_(of_notes == version, of_labels != version)] = 0
    return probabilities
