"""What a site may say of its vectors and of its notes: only what some vectors and notes could give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message
from flwr.app.metadata import Metadata

from nosology.core.label_space import LabelSpace
from nosology.federated.rounds.records import content
from nosology.federated.rounds.replies import read_counts, read_moments
from nosology.federated.rounds.site_counts import SiteCounts
from nosology.models.heads.feature_statistics import Moments
from nosology.training.calibration import PlattScaling
from tests.federated.worlds import CODES, DIM, notes

LABELS = LabelSpace(CODES)


def reply(arrays: dict[str, np.ndarray], **values) -> Message:
    return Message(content(arrays, **values), metadata=Metadata(1, "m", 0, 1, "q", "", 0.0, 60.0, "query"))


def told(moments: Moments) -> Moments | str:
    return read_moments(reply({"total": moments.total, "squares": moments.squares}, count=moments.count), DIM)


def test_statistics_of_vectors_are_taken():
    for vectors in (notes(40, 1).vectors, np.zeros((3, DIM), np.float32), np.full((5000, DIM), 0.1, np.float32)):
        found, sent = told(Moments.of(vectors)), Moments.of(vectors)
        assert found.count == sent.count
        np.testing.assert_array_equal(found.total, sent.total)


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
    ],
)
def test_statistics_that_no_vectors_have_are_not(wrong):
    assert told(replace(Moments.of(notes(40, 1).vectors), **wrong)).startswith("its statistics are not")


def counts() -> SiteCounts:
    logits = np.random.default_rng(3).normal(size=(20, len(CODES))).astype(np.float32)
    return SiteCounts.of(LABELS, logits, PlattScaling()(logits), notes(20, 1).codes, np.ones(len(CODES), bool), 0.5)


def test_counts_of_notes_are_taken():
    found = read_counts(reply(counts().arrays()), LABELS)
    for name, sent in counts().arrays().items():
        np.testing.assert_array_equal(getattr(found, name), sent)
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
def test_counts_that_no_notes_have_are_not(name, change):
    sent = counts().arrays()
    sent[name] = change(sent[name])
    assert read_counts(reply(sent), LABELS) == "its counts do not fit together"
