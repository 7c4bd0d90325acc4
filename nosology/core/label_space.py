"""Label spaces: the codes of a model in a fixed order, and their ICD versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

import numpy as np
from scipy import sparse

from nosology.core import Code, Note
from nosology.core.files import text_sha256
from nosology.core.progress import ProgressCounter


class LabelSpace:
    """An ordered set of codes; column j of each score matrix belongs to `codes[j]`."""

    def __init__(self, codes: Iterable[Code]):
        self.codes: tuple[Code, ...] = tuple(code if isinstance(code, Code) else Code(*code) for code in codes)
        self._column = {code: column for column, code in enumerate(self.codes)}
        if len(self._column) != len(self.codes):
            raise ValueError("codes must be distinct; got duplicates")

    def __len__(self) -> int:
        return len(self.codes)

    def __contains__(self, code: object) -> bool:
        return code in self._column

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSpace) and self.codes == other.codes

    def __hash__(self) -> int:
        return hash(self.codes)

    def column(self, code: Code) -> int:
        """The column of a code; KeyError if the space does not have it."""
        return self._column[code]

    @cached_property
    def hash(self) -> str:
        """A hash of the codes and their order, equal on all machines."""
        return text_sha256("\n".join(map(str, self.codes)))[:16]

    @property
    def systems(self) -> tuple[str, ...]:
        """The code systems in the space, in order of first appearance."""
        return tuple(dict.fromkeys(code.system for code in self.codes))

    def extended(self, codes: Iterable[Code]) -> LabelSpace:
        """This space with missing codes appended in sorted order; the columns of its own codes stay."""
        return LabelSpace((*self.codes, *sorted({Code(*code) for code in codes} - self._column.keys())))

    def encode(self, code_lists: Sequence[Iterable[Code]]) -> sparse.csr_matrix:
        """A 0/1 matrix (B notes, L labels); codes outside the space are dropped (see `extended`)."""
        indptr, indices = [0], []
        for codes in code_lists:
            indices.extend(sorted({self._column[code] for code in codes if code in self._column}))
            indptr.append(len(indices))
        data = np.ones(len(indices), dtype=np.int8)
        return sparse.csr_matrix((data, indices, indptr), shape=(len(code_lists), len(self.codes)))

    def to_json(self) -> list[list[str]]:
        """The codes as [system, code] pairs."""
        return [list(code) for code in self.codes]


def column_sums(matrix: sparse.csr_matrix) -> np.ndarray:
    """The sum (L,) of each column of a matrix (B, L): of 0 and 1, the number of notes with each label."""
    return np.asarray(matrix.sum(0)).ravel()


ICD9, ICD10 = 1, 2  # bits: a note may have codes of both versions
SYSTEM_VERSION = {"icd9cm": ICD9, "icd9proc": ICD9, "icd10cm": ICD10, "icd10pcs": ICD10}


def note_versions(codes: Sequence[Collection[Code]]) -> np.ndarray:
    """The ICD versions of each note's codes (B,), as bits; a note without codes gets the most frequent versions."""
    versions = np.zeros(len(codes), dtype=np.int64)
    for row, note_codes in enumerate(codes):
        for code in note_codes:
            versions[row] |= SYSTEM_VERSION[code.system]
    if versions.any():
        versions[versions == 0] = np.bincount(versions[versions > 0]).argmax()
    return versions


_ICD10_START = "2015-10-01"  # in the United States
_SHIFTED_DATES = "2100"  # MIMIC moves all dates beyond this year
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def date_versions(notes: Sequence[Note], labels: LabelSpace) -> np.ndarray:
    """The ICD versions (B,) that were in use at the date of each note, as bits; both without a date.

    The date is `date` or `charttime` in `extra`, as YYYY-MM-DD; what is written otherwise is no date. Dates since 2100
    are those of MIMIC: shifted, and no evidence. Both if all labels are of one version: countries changed at other
    times, and there is no choice between versions.
    """
    if len(np.unique(label_versions(labels))) < 2:
        return np.full(len(notes), ICD9 | ICD10)
    days = [str(note.extra.get("date") or note.extra.get("charttime")) for note in notes]
    return np.array([_version_at(day) for day in days], np.int64)


def _version_at(day: str) -> int:
    """The ICD versions in use at a day; both if it is no date or a shifted one."""
    if not _ISO_DATE.match(day) or day >= _SHIFTED_DATES:
        return ICD9 | ICD10
    return ICD10 if day >= _ICD10_START else ICD9


def label_versions(labels: LabelSpace) -> np.ndarray:
    """The ICD version of each label (L,)."""
    return np.array([SYSTEM_VERSION[code.system] for code in labels.codes], dtype=np.int64)


def score_by_version(
    scores: np.ndarray,
    versions_of_notes: np.ndarray,
    versions_of_labels: np.ndarray,
    score: Callable[[np.ndarray, np.ndarray], Iterable[np.ndarray]],
    counter: ProgressCounter,
) -> np.ndarray:
    """The scores (B, L), filled in where a label has an ICD version of its note; the others stay as they are.

    versions_of_notes: `note_versions` (B,). versions_of_labels: `label_versions` (L,). score: yields the scores of one
    block of rows after the other, for these rows and columns. counter: counts the rows.
    """
    for version in np.unique(versions_of_notes):
        rows = np.flatnonzero(versions_of_notes == version)
        columns = np.flatnonzero(versions_of_labels & version)
        without_gap = len(columns) and columns[-1] - columns[0] + 1 == len(columns)
        start = 0
        for block in score(rows, columns) if len(columns) else ():
            some = rows[start : start + len(block)]
            # numpy copies to a slice of columns several times as fast as to a list of them.
            place = (some, slice(columns[0], columns[-1] + 1)) if without_gap else np.ix_(some, columns)
            scores[place] = block
            start += len(block)
            counter.advance(len(block))
        if len(columns) and start != len(rows):
            raise ValueError(f"score must yield {len(rows)} rows; got {start}")
        counter.advance(len(rows) - start)
    return scores


def mask_other_versions(
    values: np.ndarray, versions_of_notes: np.ndarray, versions_of_labels: np.ndarray, fill: float = 0
) -> np.ndarray:
    """The values (B, L) with `fill` where a label has another ICD version than its note, in place.

    versions_of_notes: `note_versions` or `date_versions` (B,). versions_of_labels: `label_versions` (L,). A code of
    another version is unknown, not absent.
    """
    for version in np.unique(versions_of_notes):
        values[np.ix_(versions_of_notes == version, (versions_of_labels & version) == 0)] = fill
    return values
