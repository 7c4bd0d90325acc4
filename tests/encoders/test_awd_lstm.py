"""AWD-LSTM: torch's own LSTM as the oracle, windows, dropout, names of published weights."""

from __future__ import annotations

import torch
from torch import nn

from nosology.encoders.word_encoders import AwdLstm, DropoutRates, detach_state, locked_dropout


def net(**changed) -> AwdLstm:
    torch.manual_seed(0)
    return AwdLstm(30, size=6, hidden=9, layers=3, **changed)


def tokens(seed: int = 1, notes: int = 3, words: int = 11) -> torch.Tensor:
    return torch.randint(2, 30, (notes, words), generator=torch.Generator().manual_seed(seed))


def test_without_dropout_it_is_three_lstms():
    model, x = net().eval(), tokens()
    wanted = model.encoder(x)
    for layer in model.rnns:
        plain = nn.LSTM(wanted.shape[2], layer.width, batch_first=True)
        plain.load_state_dict({"weight_hh_l0": layer.weight_hh_l0_raw} | dict(layer.module.named_parameters()))
        wanted = plain(wanted)[0]
    torch.testing.assert_close(model(x)[0], wanted)
    assert wanted.shape == (3, 11, 6)


def test_windows_equal_the_whole():
    model, x = net().eval(), tokens(words=23)
    whole, parts, state = model(x)[0], [], None
    for part in x.split(5, dim=1):
        made, state = model(part, state)
        parts.append(made)
        state = detach_state(state)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-6, rtol=1e-5)


def test_pads_and_batch_mates_change_nothing():
    model, x = net().eval(), tokens()
    padded = torch.cat([x, torch.zeros(3, 4, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model(padded)[0][:, :11], model(x)[0])
    torch.testing.assert_close(model(x[1:2])[0], model(x)[0][1:2], atol=1e-6, rtol=1e-5)


def test_names_are_those_of_the_published_weights():
    names = set(net().state_dict())
    assert names == {"encoder.weight"} | {
        f"rnns.{i}.{name}"
        for i in range(3)
        for name in ("weight_hh_l0_raw", "module.weight_ih_l0", "module.bias_ih_l0", "module.bias_hh_l0")
    }


def test_dropout_is_locked_and_its_kinds_all_act():
    mask = locked_dropout(torch.ones(4, 7, 50), 0.4, True)
    assert (mask == mask[:, :1]).all()
    assert not (mask[0] == mask[1]).all()
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    x, still = tokens(), net().eval()(tokens())[0]
    for kind in ("embedding", "input", "weight", "hidden"):
        model = net(drop=DropoutRates(**{kind: 0.5})).train()
        torch.manual_seed(3)
        first = model(x)[0]
        assert not torch.allclose(first, still), kind
        torch.manual_seed(3)
        torch.testing.assert_close(model(x)[0], first)  # the seed decides
        torch.testing.assert_close(model.eval()(x)[0], still)


def test_a_word_is_dropped_wherever_it_stands():
    model = net(drop=DropoutRates(embedding=0.5)).train()
    with torch.no_grad():
        model.encoder.weight.fill_(1)
    x = tokens(words=200)
    made = model._embed(x)
    assert set(made.unique().tolist()) == {0.0, 2.0}
    for word in x.unique():
        assert len(made[x == word].unique()) == 1  # all its places, all its numbers


def test_gradients_reach_the_raw_weights():
    model = net(drop=DropoutRates(weight=0.5)).train()
    model(tokens())[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert (model.rnns[0].weight_hh_l0_raw.grad == 0).float().mean() > 0.3  # those that were dropped learn nothing
