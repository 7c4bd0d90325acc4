import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nosology.models.hmhan.mlsmote import imbalance, minority_labels, mlsmote

GOLD = sparse.csr_matrix(np.array([[1, 0, 0]] * 12 + [[1, 1, 0]] * 2 + [[0, 1, 1]] + [[0, 0, 1]] * 5, dtype=np.int8))


def test_imbalance_equals_its_definition():
    ratios, mean = imbalance(GOLD)
    assert ratios.tolist() == pytest.approx([1.0, 14 / 3, 14 / 6])
    assert mean == pytest.approx((1 + 14 / 3 + 14 / 6) / 3)
    assert minority_labels(GOLD).tolist() == [1], "IRLbl > MeanIR"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), ratio=st.floats(0.1, 3))
def test_rows_are_between_reports_with_the_same_minority_label(seed, ratio):
    vectors = np.random.default_rng(seed).normal(size=(20, 4))
    rows = mlsmote(GOLD, vectors, ratio=ratio, neighbours=2, seed=seed)
    dense = GOLD.toarray()
    assert (dense[rows.first, 1] == 1).all() and (dense[rows.second, 1] == 1).all()
    assert (rows.targets[:, 1] == 1).all() and (rows.first != rows.second).all()
    assert ((rows.fractions >= 0) & (rows.fractions < 1)).all()
    repeated = mlsmote(GOLD, vectors, ratio=ratio, neighbours=2, seed=seed)
    assert np.array_equal(repeated.first, rows.first) and np.array_equal(repeated.fractions, rows.fractions)


def test_neighbours_are_the_nearest_and_labels_are_the_majority():
    vectors = np.arange(20.0)[:, None]
    rows = mlsmote(GOLD, vectors, ratio=4.0, neighbours=1, seed=0)
    assert set(rows.second[rows.first == 12]) == {13} and set(rows.second[rows.first == 14]) == {13}
    between = rows.targets[(rows.first == 12)][0]
    assert between.tolist() == [1, 1, 0], "both have the first label"
    mixed = rows.targets[rows.first == 14][0]
    assert mixed.tolist() == [1, 1, 1], "half of report and neighbour is enough"


def test_label_of_one_report_gets_no_synthetic_row():
    single = sparse.csr_matrix(np.array([[1, 0]] * 9 + [[1, 1]], dtype=np.int8))
    rows = mlsmote(single, np.zeros((10, 1)), ratio=2.0)
    assert len(rows) == 0 and rows.targets.shape == (0, 2)


def test_synthetic_rows_have_no_note_fields():
    rows = mlsmote(GOLD, np.zeros((20, 1)), ratio=1.0)
    assert not {"text", "codes", "id", "split"} & set(dir(rows))
