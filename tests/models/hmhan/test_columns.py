import json

import numpy as np
import pytest

from nosology.models.hmhan.columns import Columns

EXTRAS = [{"age": 40, "gender": "F"}, {"age": "60", "gender": "M", "ward": "x"}, {"gender": "F"}, {"age": None}]


def test_numbers_are_z_scores_and_choices_one_hot_each_with_an_unknown():
    columns = Columns.fit(EXTRAS, ["age", "weight"], ["gender", "modality"])
    assert len(columns) == 2 + 3, "a column that no note has is left out"
    assert columns.vector(EXTRAS[0]).tolist() == [-1, 0, 1, 0, 0]
    assert columns.vector({"age": 70, "gender": "X"}).tolist() == [2, 0, 0, 0, 1]
    assert columns.vector({}).tolist() == [0, 1, 0, 0, 1]


def test_no_columns_at_all_and_back_from_json():
    assert len(Columns.fit([{}, {}], ["age"], ["gender"])) == 0 == len(Columns().vector({"age": 3}))
    columns = Columns.fit(EXTRAS, ["age"], ["gender"])
    again = Columns.from_json(json.loads(json.dumps(columns.to_json())))
    assert np.array_equal(again.vector(EXTRAS[1]), columns.vector(EXTRAS[1]))


@pytest.mark.parametrize("value", ["unclear", float("nan"), float("inf"), [], None])
def test_a_number_that_is_none_is_unknown(value):
    assert Columns.fit(EXTRAS, ["age"], []).vector({"age": value}).tolist() == [0, 1]


def test_a_slip_of_the_pen_stays_a_finite_number_and_is_not_learned_from():
    columns = Columns.fit([*EXTRAS, {"age": 1e300}], ["age"], [])
    assert columns == Columns.fit(EXTRAS, ["age"], [])
    assert columns.vector({"age": 4_000_000}).tolist() == [10, 0]
    assert columns.vector({"age": -4_000_000}).tolist() == [-10, 0]
    assert columns.vector({"age": 1e300}).tolist() == [0, 1]
