"""Tests of messages: validation of replies, packing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from nosology.core.label_space import LabelSpace
from nosology.federated.rounds.messages import (
    CONFIG,
    MAX_REASON,
    REFUSED,
    error_reason,
    get_value,
    make_content,
    pack_message,
    read_counts,
    read_statistics,
    unpack_message,
)
from nosology.federated.rounds.site_results import SiteCounts
from nosology.models.heads.feature_statistics import FeatureStatistics
from nosology.training.calibration import PlattScaling
from tests.federated.small_hospitals import CODES, DIM, notes

LABELS = LabelSpace(CODES)


def test_reason_of_a_site_cannot_change_the_terminal_of_the_server():
    reason = error_reason(Error(REFUSED, "no\x1b[2J \x9b31m\nnotes" + "!" * 10**6))
    assert reason.startswith("no\ufffd[2J \ufffd31m notes!!") and len(reason) == MAX_REASON


def reply(arrays: dict[str, np.ndarray], **values) -> Message:
    return Message(make_content(arrays, **values), metadata=Metadata(1, "m", 0, 1, "q", "", 0.0, 60.0, "query"))


def send_statistics(statistics: FeatureStatistics) -> FeatureStatistics | str:
    return read_statistics(
        reply({"total": statistics.total, "squares": statistics.squares}, count=statistics.count),
        DIM,
    )


def test_valid_statistics_are_accepted():
    for vectors in (notes(40, 1).vectors, np.zeros((3, DIM), np.float32), np.full((5000, DIM), 0.1, np.float32)):
        result, sent = send_statistics(FeatureStatistics.of(vectors)), FeatureStatistics.of(vectors)
        assert result.count == sent.count
        np.testing.assert_array_equal(result.total, sent.total)


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": np.full(DIM, 1e300)},
        {"total": np.full(DIM, -1e4)},
        {"squares": np.full(DIM, 1e-3)},
        {"squares": np.full(DIM, 1e300)},
        {"squares": np.full(DIM, -1.0)},
        {"total": np.full(DIM, np.nan)},
        {"count": 0},
        {"count": 10**400},
    ],
)
def test_impossible_statistics_are_refused(wrong):
    assert send_statistics(replace(FeatureStatistics.of(notes(40, 1).vectors), **wrong)).startswith(
        "its statistics are not"
    )


def counts() -> SiteCounts:
    logits = np.random.default_rng(3).normal(size=(20, len(CODES))).astype(np.float32)
    return SiteCounts.of(LABELS, logits, PlattScaling()(logits), notes(20, 1).codes, np.ones(len(CODES), bool), 0.5)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "[" * 40 + "]" * 40, '{"a":' * 40 + "1" + "}" * 40, "NaN", "[-Infinity]", "1e400", "[1"]
)
def test_value_that_is_nested_or_no_number_is_refused(text):
    content = make_content(nested=[[[1.5]], {"a": {"b": -2}}])
    assert get_value(content, "nested") == [[[1.5]], {"a": {"b": -2}}]
    content[CONFIG]["nested"] = text
    with pytest.raises(ValueError):
        get_value(content, "nested")


def test_valid_counts_are_accepted():
    result = read_counts(reply(counts().arrays()), LABELS)
    for name, sent in counts().arrays().items():
        np.testing.assert_array_equal(getattr(result, name), sent)
    nothing = np.zeros((0, len(CODES)), np.float32)
    empty = SiteCounts.of(LABELS, nothing, nothing, [], np.ones(len(CODES), bool), 0.5)
    assert isinstance(read_counts(reply(empty.arrays()), LABELS), SiteCounts)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("notes", lambda array: array * 0),
        ("notes", lambda array: array + 10**10),
        ("outside", lambda array: array + 10**18),
        ("true", lambda array: array + 1000),
        ("cells", lambda array: array + 1),
        ("cells", lambda array: array + 2**62),
        ("hits", lambda array: array + np.int64(20)),
        ("hits", lambda array: array + np.int64(2**62)),
        ("precision", lambda array: array * [3.0, 1.0]),
        ("precision", lambda array: array + 1e6),
        ("exact", lambda array: array + 21),
    ],
)
def test_impossible_counts_are_refused(name, change):
    sent = counts().arrays()
    sent[name] = change(sent[name])
    assert read_counts(reply(sent), LABELS) == "its counts are inconsistent"


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
ARRAYS = st.dictionaries(
    NAMES,
    st.sampled_from(["f4", "f8", "i8", "u1"]).flatmap(lambda kind: arrays(kind, array_shapes(max_dims=3))),
    max_size=5,
)
VALUES = st.dictionaries(NAMES, st.binary() | st.text(st.characters(codec="utf-8")) | st.booleans(), max_size=5)
METRICS = st.dictionaries(NAMES, st.integers(-(2**31), 2**31) | st.floats(allow_nan=False), max_size=5)


@given(ARRAYS, VALUES, METRICS)
def test_packed_message_round_trips(given_arrays, values, metrics):
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in given_arrays.items()}),
            "config": ConfigRecord(values),
            "metrics": MetricRecord(metrics),
        }
    )
    result = unpack_message(pack_message(content))
    assert dict(result["config"]) == values and dict(result["metrics"]) == metrics
    assert list(result["arrays"]) == list(given_arrays)
    for name, array in given_arrays.items():
        back = result["arrays"][name].numpy()
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_packed_message_has_four_objects():
    content = RecordDict({"arrays": ArrayRecord({str(i): Array(np.full(3, i)) for i in range(20)})})
    parcel = pack_message(content)
    assert len(get_all_nested_objects(content)) > 40
    assert len(get_all_nested_objects(parcel)) == 4  # the content, its record, its array, the bytes of that
    assert pack_message(parcel) is parcel and unpack_message(content) is content


@pytest.mark.parametrize("damage", [lambda d: d[:5], lambda d: d[:-3], lambda d: b"\xff" * len(d), lambda d: d[:8] + d])
def test_damaged_packed_message_is_empty_or_not_readable(damage):
    """A site cannot end the run of a server by a damaged reply."""
    packed = pack_message(make_content({"a": np.arange(9.0)}, site="x"))
    data = damage(packed.array_records["packed"]["packed"].numpy().tobytes())
    changed = RecordDict({"packed": ArrayRecord({"packed": Array(np.frombuffer(data, np.uint8))})})
    content = unpack_message(changed)
    message = Message(content, metadata=Metadata(1, "m", 0, 1, "q", "", 0.0, 60.0, "query"))
    assert read_counts(message, LABELS) == "its counts cannot be read"
