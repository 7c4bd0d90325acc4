"""The recurrent encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.encoders.word_encoders import CELLS, RecurrentEncoder


@pytest.mark.parametrize("cell", CELLS)
def test_states_are_those_of_the_plain_cells_on_the_note_alone(cell):
    torch.manual_seed(0)
    encoder = RecurrentEncoder(4, 3, cell)
    x = torch.randn(3, 8, 4)
    lengths = torch.tensor([2, 8, 5])
    with torch.no_grad():
        found, last = encoder(x, lengths), encoder.last(x, lengths)
        assert found.shape == (3, 8, encoder.width) and last.shape == (3, encoder.width)
        for row, length in enumerate(lengths.tolist()):
            alone, _ = encoder.cell(x[row : row + 1, :length])
            assert np.allclose(found[row, :length], alone[0], atol=1e-6)
            assert not found[row, length:].any()
            assert np.allclose(last[row], torch.cat([alone[0, -1, :3], alone[0, 0, 3:]]), atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 9))
def test_pads_never_change_a_state(lengths, pads):
    torch.manual_seed(0)
    encoder = RecurrentEncoder(3, 2, "gru")
    x = torch.randn(len(lengths), max(*lengths, 1) + pads, 3)
    dirty = x.clone()
    for row, length in enumerate(lengths):
        dirty[row, max(1, length) :] = 1e3
    with torch.no_grad():
        one, other = (encoder(given, torch.tensor(lengths)) for given in (x, dirty))
    assert torch.equal(one, other)
