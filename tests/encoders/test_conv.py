"""The convolution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.encoders.word_encoders import ConvEncoder


@pytest.mark.parametrize("kernel", [1, 2, 3, 10])
def test_a_state_is_the_weighted_sum_of_the_words_around_it(kernel):
    torch.manual_seed(kernel)
    conv = ConvEncoder(4, 5, kernel)
    x = torch.randn(1, 7, 4)
    found = conv(x, torch.tensor([7]))
    weight, bias = conv.conv.weight.detach().numpy(), conv.conv.bias.detach().numpy()
    assert found.shape == (1, 7, conv.width)
    for t in range(7):
        expected = bias.copy()
        for k in range(kernel):
            if 0 <= (place := t - (kernel - 1) // 2 + k) < 7:
                expected += weight[:, :, k] @ x[0, place].numpy()
        assert found[0, t].detach().numpy() == pytest.approx(expected, abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(0, 9), st.integers(1, 6))
def test_neither_pads_nor_neighbours_change_a_state(lengths, pads, kernel):
    torch.manual_seed(0)
    conv = ConvEncoder(3, 4, kernel)
    width = max(*lengths, 1)
    x = torch.randn(len(lengths), width + pads, 3)  # also after the ends: a pad's vector may be anything
    with torch.no_grad():
        found = conv(x, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            if length:
                alone = conv(x[row : row + 1, :length], torch.tensor([length]))
                assert np.allclose(found[row, :length], alone[0], atol=1e-5)
