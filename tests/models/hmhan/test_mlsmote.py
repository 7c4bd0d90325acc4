import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nosology.models.hmhan.mlsmote import imbalance, minority, mlsmote

GOLD = sparse.csr_matrix(np.array([[1, 0, 0]] * 12 + [[1, 1, 0]] * 2 + [[0, 1, 1]] + [[0, 0, 1]] * 5, dtype=np.int8))


def test_imbalance_by_the_definition():
    ratios, mean = imbalance(GOLD)
    assert ratios.tolist() == pytest.approx([1.0, 14 / 3, 14 / 6])
    assert mean == pytest.approx((1 + 14 / 3 + 14 / 6) / 3)
    assert minority(GOLD).tolist() == [1], "IRLbl > MeanIR"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), share=st.floats(0.1, 3))
def test_rows_lie_between_reports_that_share_the_minority_label(seed, share):
    vectors = np.random.default_rng(seed).normal(size=(20, 4))
    made = mlsmote(GOLD, vectors, share=share, neighbours=2, seed=seed)
    dense = GOLD.toarray()
    assert (dense[made.first, 1] == 1).all() and (dense[made.second, 1] == 1).all()
    assert (made.targets[:, 1] == 1).all() and (made.first != made.second).all()
    assert ((made.shares >= 0) & (made.shares < 1)).all()
    again = mlsmote(GOLD, vectors, share=share, neighbours=2, seed=seed)
    assert np.array_equal(again.first, made.first) and np.array_equal(again.shares, made.shares)


def test_the_nearest_are_taken_and_labels_are_voted_for():
    vectors = np.arange(20.0)[:, None]
    made = mlsmote(GOLD, vectors, share=4.0, neighbours=1, seed=0)
    assert set(made.second[made.first == 12]) == {13} and set(made.second[made.first == 14]) == {13}
    between = made.targets[(made.first == 12)][0]
    assert between.tolist() == [1, 1, 0], "both have the first label"
    mixed = made.targets[made.first == 14][0]
    assert mixed.tolist() == [1, 1, 1], "half of report and neighbour is enough"


def test_a_label_of_one_report_has_no_neighbour():
    alone = sparse.csr_matrix(np.array([[1, 0]] * 9 + [[1, 1]], dtype=np.int8))
    made = mlsmote(alone, np.zeros((10, 1)), share=2.0)
    assert len(made) == 0 and made.targets.shape == (0, 2)


def test_a_synthetic_row_is_no_note():
    made = mlsmote(GOLD, np.zeros((20, 1)), share=1.0)
    assert not {"text", "codes", "id", "split"} & set(dir(made))
