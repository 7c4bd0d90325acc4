"""Parcels: what goes in comes out, whatever it is, and a SuperLink sees few objects."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from nosology.federated.deploy.wire import packed, unpacked

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
ARRAYS = st.dictionaries(
    NAMES,
    st.sampled_from(["f4", "f8", "i8", "u1"]).flatmap(lambda kind: arrays(kind, array_shapes(max_dims=3))),
    max_size=5,
)
VALUES = st.dictionaries(NAMES, st.binary() | st.text(st.characters(codec="utf-8")) | st.booleans(), max_size=5)
METRICS = st.dictionaries(NAMES, st.integers(-(2**31), 2**31) | st.floats(allow_nan=False), max_size=5)


@given(ARRAYS, VALUES, METRICS)
def test_what_is_packed_comes_out_again(given_arrays, values, metrics):
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in given_arrays.items()}),
            "config": ConfigRecord(values),
            "metrics": MetricRecord(metrics),
        }
    )
    found = unpacked(packed(content))
    assert dict(found["config"]) == values and dict(found["metrics"]) == metrics
    assert list(found["arrays"]) == list(given_arrays)
    for name, array in given_arrays.items():
        back = found["arrays"][name].numpy()
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_a_parcel_is_few_objects_and_is_packed_once():
    content = RecordDict({"arrays": ArrayRecord({str(i): Array(np.full(3, i)) for i in range(20)})})
    parcel = packed(content)
    assert len(get_all_nested_objects(content)) > 40
    assert len(get_all_nested_objects(parcel)) == 4  # the content, its record, its array, the bytes of that
    assert packed(parcel) is parcel and unpacked(content) is content
