import pytest

from nosology.core import Code
from nosology.core.label_space import LabelSpace

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


def test_a_code_twice_is_refused():
    with pytest.raises(ValueError, match="distinct"):
        LabelSpace([A, A])
