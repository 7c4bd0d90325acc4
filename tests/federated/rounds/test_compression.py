"""Tests of compressed updates."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from nosology.federated.rounds.compression import compress, decompress, from_bf16, to_bf16

FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=20)


@given(FLOATS)
def test_bf16_is_that_of_torch(values):
    array = np.array(values, np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bf16(to_bf16(array)), expected)


def test_change_of_a_weight_keeps_eight_bits():
    rng = np.random.default_rng(0)
    initial = {"a": rng.normal(size=(40, 50)).astype(np.float32), "b": rng.normal(size=7)}
    after = {name: array + 1e-3 * rng.normal(size=array.shape).astype(array.dtype) for name, array in initial.items()}
    packed = compress(after, initial)
    assert all(array.dtype == np.uint16 for array in packed.values())
    for name, first in initial.items():
        read, change = decompress(packed[name], first), after[name].astype(float) - first
        assert read.dtype == first.dtype and (read != first).all()
        np.testing.assert_allclose(read - first.astype(float), change, rtol=2**-8, atol=1e-6 if name == "a" else 1e-12)


def test_unchanged_weights_stay_exactly():
    first = np.random.default_rng(1).normal(size=30).astype(np.float32)
    np.testing.assert_array_equal(decompress(compress({"a": first}, {"a": first})["a"], first), first)
