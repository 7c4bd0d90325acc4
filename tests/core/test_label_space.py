import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from nosology.core import Code, Note
from nosology.core.label_space import (
    ICD9,
    ICD10,
    LabelSpace,
    column_sums,
    date_versions,
    label_versions,
    mask_other_versions,
    note_versions,
    score_by_version,
)
from nosology.core.progress import ProgressCounter

A, B, C = Code("icd10cm", "A00"), Code("icd9cm", "428.0"), Code("icd10cm", "I10")


def test_columns_and_encoding():
    space = LabelSpace([B, A])
    assert space.encode([[A, C], [], [B, A, A]]).toarray().tolist() == [[0, 1], [0, 0], [1, 1]]
    assert space.systems == ("icd9cm", "icd10cm")


def test_extension_keeps_columns():
    space = LabelSpace([C, B])
    assert space.extended([A, B]).codes == (C, B, A)


def test_hash_depends_on_order_and_content():
    assert LabelSpace([A, B]).hash == LabelSpace([A, B]).hash != LabelSpace([B, A]).hash


def test_duplicates_raise():
    with pytest.raises(ValueError, match="distinct"):
        LabelSpace([A, A])


def test_column_sums_count_the_notes_of_each_label():
    gold = np.tile(np.array([[1, 0, 1], [0, 0, 1]], np.int8), (100, 1))  # the sum of 200 ones exceeds int8
    for matrix in (sparse.csr_matrix(gold), gold):
        assert column_sums(matrix).tolist() == [100, 0, 200]


OLD, NEW, PCS = Code("icd9cm", "428.0"), Code("icd10cm", "I50.9"), Code("icd10pcs", "0DTJ4ZZ")


def test_note_versions_are_those_of_the_codes():
    assert note_versions([[OLD], [NEW, PCS], [OLD, NEW]]).tolist() == [ICD9, ICD10, ICD9 | ICD10]


def test_a_note_without_codes_has_the_most_frequent_version():
    assert note_versions([[], [NEW], [PCS], [OLD]]).tolist() == [ICD10, ICD10, ICD10, ICD9]
    assert note_versions([[], []]).tolist() == [0, 0]


def test_mask_other_versions():
    labels = LabelSpace([OLD, NEW, PCS])
    masked = mask_other_versions(np.ones((3, 3)), np.array([ICD9, ICD10, ICD9 | ICD10]), label_versions(labels))
    assert masked.tolist() == [[1, 0, 0], [0, 1, 1], [1, 1, 1]]


def test_date_versions_are_those_in_use_at_the_date_whatever_the_codes():
    dates = [
        {"date": "2015-09-30"},
        {"charttime": "2015-10-01 08:00:00"},
        {"charttime": "2150-03-01"},
        {},
        {"date": ""},
        {"date": "03/14/2019"},
        {"date": "20150314"},
    ]
    notes = [Note("", "", codes=(OLD, NEW), extra=extra) for extra in dates]
    assert date_versions(notes, LabelSpace([OLD, NEW])).tolist() == [ICD9, ICD10, *[ICD9 | ICD10] * 5]
    for codes in ([OLD], [NEW, PCS], []):
        assert (date_versions(notes, LabelSpace(codes)) == ICD9 | ICD10).all(), "there is no choice between versions"


@given(
    systems=st.lists(st.sampled_from(["icd10cm", "icd10pcs", "icd9cm"]), min_size=1, max_size=8),
    versions=st.lists(st.sampled_from([ICD9, ICD10, ICD9 | ICD10]), min_size=1, max_size=9),
    size=st.integers(1, 4),
)
def test_score_by_version_scores_each_note_once_for_the_labels_of_its_version(systems, versions, size):
    labels = LabelSpace(Code(system, f"{number}") for number, system in enumerate(systems))
    every = np.arange(1.0, len(versions) * len(labels) + 1).reshape(len(versions), -1)
    scored = []

    def score(rows, columns):
        scored.extend(rows.tolist())
        for start in range(0, len(rows), size):
            yield every[np.ix_(rows[start : start + size], columns)]

    versions, counter = np.array(versions), ProgressCounter()
    actual = score_by_version(np.zeros_like(every), versions, label_versions(labels), score, counter)
    assert np.array_equal(actual, mask_other_versions(every.copy(), versions, label_versions(labels)))
    assert sorted(scored) == np.flatnonzero([(label_versions(labels) & bits).any() for bits in versions]).tolist()
    assert counter.value() == len(versions)


def test_score_by_version_refuses_fewer_rows_than_it_asked_for():
    labels, versions = LabelSpace([NEW]), np.array([ICD10, ICD10])
    with pytest.raises(ValueError, match="score must yield 2 rows; got 1"):
        score_by_version(
            np.zeros((2, 1)), versions, label_versions(labels), lambda *_: [np.ones((1, 1))], ProgressCounter()
        )
