"""Encoders over word vectors, compared with torch's own layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nosology.encoders.dropout_rates import NO_DROPOUT
from nosology.encoders.word_encoders import (
    CELLS,
    AwdLstm,
    ConvEncoder,
    RecurrentEncoder,
    detach_state,
    locked_dropout,
)


@pytest.mark.parametrize("kernel", [1, 2, 3, 10])
def test_conv_state_is_the_weighted_sum_of_its_window(kernel):
    torch.manual_seed(kernel)
    conv = ConvEncoder(4, 5, kernel)
    x = torch.randn(1, 7, 4)
    states = conv(x, torch.tensor([7]))
    weight, bias = conv.conv.weight.detach().numpy(), conv.conv.bias.detach().numpy()
    assert states.shape == (1, 7, conv.width)
    for t in range(7):
        expected = bias.copy()
        for k in range(kernel):
            if 0 <= (position := t - (kernel - 1) // 2 + k) < 7:
                expected += weight[:, :, k] @ x[0, position].numpy()
        assert states[0, t].detach().numpy() == pytest.approx(expected, abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(0, 9), st.integers(1, 6))
def test_conv_ignores_padding_and_other_notes(lengths, pads, kernel):
    torch.manual_seed(0)
    conv = ConvEncoder(3, 4, kernel)
    width = max(*lengths, 1)
    x = torch.randn(len(lengths), width + pads, 3)  # also random at padding
    with torch.no_grad():
        states = conv(x, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            if length:
                alone = conv(x[row : row + 1, :length], torch.tensor([length]))
                assert np.allclose(states[row, :length], alone[0], atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_states_equal_torch_on_each_note_alone(cell):
    torch.manual_seed(0)
    encoder = RecurrentEncoder(4, 3, cell)
    x = torch.randn(3, 8, 4)
    lengths = torch.tensor([2, 8, 5])
    with torch.no_grad():
        states, last = encoder(x, lengths), encoder.last(x, lengths)
        assert states.shape == (3, 8, encoder.width) and last.shape == (3, encoder.width)
        for row, length in enumerate(lengths.tolist()):
            alone, _ = encoder.cell(x[row : row + 1, :length])
            assert np.allclose(states[row, :length], alone[0], atol=1e-6)
            assert not states[row, length:].any()
            assert np.allclose(last[row], torch.cat([alone[0, -1, :3], alone[0, 0, 3:]]), atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 9))
def test_recurrent_encoder_ignores_padding(lengths, pads):
    torch.manual_seed(0)
    encoder = RecurrentEncoder(3, 2, "gru")
    x = torch.randn(len(lengths), max(*lengths, 1) + pads, 3)
    dirty = x.clone()
    for row, length in enumerate(lengths):
        dirty[row, max(1, length) :] = 1e3
    with torch.no_grad():
        clean, noisy = (encoder(given, torch.tensor(lengths)) for given in (x, dirty))
    assert torch.equal(clean, noisy)


def awd_lstm(**changed) -> AwdLstm:
    torch.manual_seed(0)
    return AwdLstm(30, size=6, hidden=9, layers=3, **changed)


def random_tokens(seed: int = 1, notes: int = 3, words: int = 11) -> torch.Tensor:
    return torch.randint(2, 30, (notes, words), generator=torch.Generator().manual_seed(seed))


def test_awd_lstm_without_dropout_equals_three_lstms():
    model, x = awd_lstm().eval(), random_tokens()
    expected = model.encoder(x)
    for layer in model.rnns:
        plain = nn.LSTM(expected.shape[2], layer.width, batch_first=True)
        plain.load_state_dict({"weight_hh_l0": layer.weight_hh_l0_raw} | dict(layer.module.named_parameters()))
        expected = plain(expected)[0]
    torch.testing.assert_close(model(x)[0], expected)
    assert expected.shape == (3, 11, 6)


def test_awd_lstm_in_windows_equals_the_whole_text():
    model, x = awd_lstm().eval(), random_tokens(words=23)
    expected, parts, state = model(x)[0], [], None
    for part in x.split(5, dim=1):
        outputs, state = model(part, state)
        parts.append(outputs)
        state = detach_state(state)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-6, rtol=1e-5)


def test_padding_and_batch_size_change_nothing():
    model, x = awd_lstm().eval(), random_tokens()
    padded = torch.cat([x, torch.zeros(3, 4, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model(padded)[0][:, :11], model(x)[0])
    torch.testing.assert_close(model(x[1:2])[0], model(x)[0][1:2], atol=1e-6, rtol=1e-5)


def test_awd_lstm_has_the_names_of_published_weights():
    names = set(awd_lstm().state_dict())
    assert names == {"encoder.weight"} | {
        f"rnns.{i}.{name}"
        for i in range(3)
        for name in ("weight_hh_l0_raw", "module.weight_ih_l0", "module.bias_ih_l0", "module.bias_hh_l0")
    }


def test_locked_dropout_and_all_dropout_rates_have_an_effect():
    mask = locked_dropout(torch.ones(4, 7, 50), 0.4, True)
    assert (mask == mask[:, :1]).all()
    assert not (mask[0] == mask[1]).all()
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    x, still = random_tokens(), awd_lstm().eval()(random_tokens())[0]
    for kind in ("embedding", "input", "weight", "hidden"):
        model = awd_lstm(dropout=NO_DROPOUT.model_copy(update={kind: 0.5})).train()
        torch.manual_seed(3)
        first = model(x)[0]
        assert not torch.allclose(first, still), kind
        torch.manual_seed(3)
        torch.testing.assert_close(model(x)[0], first)  # the seed decides
        torch.testing.assert_close(model.eval()(x)[0], still)


def test_embedding_dropout_drops_all_occurrences_of_a_word():
    model = awd_lstm(dropout=NO_DROPOUT.model_copy(update={"embedding": 0.5})).train()
    with torch.no_grad():
        model.encoder.weight.fill_(1)
    x = random_tokens(words=200)
    outputs = model._embed(x)
    assert set(outputs.unique().tolist()) == {0.0, 2.0}
    for word in x.unique():
        assert len(outputs[x == word].unique()) == 1  # all its places, all its numbers


def test_gradients_reach_the_raw_recurrent_weights():
    model = awd_lstm(dropout=NO_DROPOUT.model_copy(update={"weight": 0.5})).train()
    model(random_tokens())[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert (model.rnns[0].weight_hh_l0_raw.grad == 0).float().mean() > 0.3  # those that were dropped learn nothing
