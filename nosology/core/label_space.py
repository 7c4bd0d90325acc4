"""The codes a model can name, in a fixed order: code <-> column."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

import numpy as np
from scipy import sparse

from nosology.core import Code


class LabelSpace:
    """An ordered set of codes; column j of every score matrix belongs to `codes[j]`."""

    def __init__(self, codes: Iterable[Code]):
        self.codes: tuple[Code, ...] = tuple(Code(*code) for code in codes)
        self._column = {code: column for column, code in enumerate(self.codes)}
        if len(self._column) != len(self.codes):
            raise ValueError("codes must be distinct; got a code twice")

    def __len__(self) -> int:
        return len(self.codes)

    def __contains__(self, code: object) -> bool:
        return code in self._column

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSpace) and self.codes == other.codes

    def __hash__(self) -> int:
        return hash(self.codes)

    def column(self, code: Code) -> int:
        """The column of a code; KeyError if the space does not hold it."""
        return self._column[code]

    @cached_property
    def hash(self) -> str:
        """A content hash: equal for equal codes in equal order, on every machine."""
        return hashlib.sha256("\n".join(map(str, self.codes)).encode()).hexdigest()[:16]

    @property
    def systems(self) -> tuple[str, ...]:
        """The code systems in the space, in order of first appearance."""
        return tuple(dict.fromkeys(code.system for code in self.codes))

    def extended(self, codes: Iterable[Code]) -> LabelSpace:
        """This space with the codes it lacks appended in sorted order; columns of old codes stay."""
        return LabelSpace((*self.codes, *sorted({Code(*c) for c in codes} - self._column.keys())))

    def encode(self, code_lists: Sequence[Iterable[Code]]) -> sparse.csr_matrix:
        """A 0/1 matrix (B notes, L labels); codes outside the space are left out (see `extended`)."""
        indptr, indices = [0], []
        for codes in code_lists:
            indices.extend(sorted({self._column[code] for code in codes if code in self._column}))
            indptr.append(len(indices))
        data = np.ones(len(indices), dtype=np.int8)
        return sparse.csr_matrix((data, indices, indptr), shape=(len(code_lists), len(self.codes)))

    def to_json(self) -> list[list[str]]:
        """The codes as [system, code] pairs."""
        return [list(code) for code in self.codes]


ICD9, ICD10 = 1, 2  # bits: a note may be coded in both
SYSTEM_VERSION = {"icd9cm": ICD9, "icd9proc": ICD9, "icd10cm": ICD10, "icd10pcs": ICD10}


def note_versions(codes: Sequence[Collection[Code]]) -> np.ndarray:
    """The versions of each note (B,), as bits; a note without codes has those of most notes."""
    found = np.zeros(len(codes), dtype=np.int64)
    for row, note in enumerate(codes):
        for code in note:
            found[row] |= SYSTEM_VERSION[code.system]
    if found.any():
        found[found == 0] = np.bincount(found[found > 0]).argmax()
    return found


def label_versions(labels: LabelSpace) -> np.ndarray:
    """The version of each label (L,)."""
    return np.array([SYSTEM_VERSION[code.system] for code in labels.codes], dtype=np.int64)


def mask_other_versions(
    values: np.ndarray, of_notes: np.ndarray, of_labels: np.ndarray, otherwise: float = 0
) -> np.ndarray:
    """The values (B, L) with another one where a label is of no version of the note, in place."""
    for version in np.unique(of_notes):
        values[np.ix_(of_notes == version, (of_labels & version) == 0)] = otherwise
    return values
