"""Which ICD versions a note is coded in: codes of another version are unknown for it, not absent."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from nosology.core import Code
from nosology.core.label_space import LabelSpace

NINE, TEN = 1, 2  # bits: a note may be coded in both
VERSION = {"icd9cm": NINE, "icd9proc": NINE, "icd10cm": TEN, "icd10pcs": TEN}


def versions(codes: Sequence[Collection[Code]]) -> np.ndarray:
    """The versions of each note (B,), as bits; a note without codes has those of most notes."""
    found = np.zeros(len(codes), dtype=np.int64)
    for row, note in enumerate(codes):
        for code in note:
            found[row] |= VERSION[code.system]
    if found.any():
        found[found == 0] = np.bincount(found[found > 0]).argmax()
    return found


def label_versions(labels: LabelSpace) -> np.ndarray:
    """The version of each label (L,)."""
    return np.array([VERSION[code.system] for code in labels.codes], dtype=np.int64)


def only_own_version(
    values: np.ndarray, of_notes: np.ndarray, of_labels: np.ndarray, otherwise: float = 0
) -> np.ndarray:
    """The values (B, L) with another one where a label is of no version of the note, in place."""
    for version in np.unique(of_notes):
        values[np.ix_(of_notes == version, (of_labels & version) == 0)] = otherwise
    return values
