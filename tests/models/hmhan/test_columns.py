import json

import numpy as np
import pytest

from nosology.models.hmhan.report_features import MetadataColumns

EXTRAS = [{"age": 40, "gender": "F"}, {"age": "60", "gender": "M", "ward": "x"}, {"gender": "F"}, {"age": None}]


def test_numbers_are_z_scores_and_choices_one_hot_with_unknown_flags():
    columns = MetadataColumns.fit(EXTRAS, ["age", "weight"], ["gender", "modality"])
    assert len(columns) == 2 + 3, "columns without a value are dropped"
    assert columns.vector(EXTRAS[0]).tolist() == [-1, 0, 1, 0, 0]
    assert columns.vector({"age": 70, "gender": "X"}).tolist() == [2, 0, 0, 0, 1]
    assert columns.vector({}).tolist() == [0, 1, 0, 0, 1]


def test_no_columns_and_json_round_trip():
    assert len(MetadataColumns.fit([{}, {}], ["age"], ["gender"])) == 0 == len(MetadataColumns().vector({"age": 3}))
    columns = MetadataColumns.fit(EXTRAS, ["age"], ["gender"])
    loaded = MetadataColumns.from_json(json.loads(json.dumps(columns.to_json())))
    assert np.array_equal(loaded.vector(EXTRAS[1]), columns.vector(EXTRAS[1]))


@pytest.mark.parametrize("value", ["unclear", float("nan"), float("inf"), [], None])
def test_invalid_number_is_unknown(value):
    assert MetadataColumns.fit(EXTRAS, ["age"], []).vector({"age": value}).tolist() == [0, 1]


def test_outliers_are_clipped_and_ignored_by_fit():
    columns = MetadataColumns.fit([*EXTRAS, {"age": 1e300}], ["age"], [])
    assert columns == MetadataColumns.fit(EXTRAS, ["age"], [])
    assert columns.vector({"age": 4_000_000}).tolist() == [10, 0]
    assert columns.vector({"age": -4_000_000}).tolist() == [-10, 0]
    assert columns.vector({"age": 1e300}).tolist() == [0, 1]
