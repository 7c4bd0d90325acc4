"""Attention with a learned query a label."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nosology.attention import label_attention as learned
from nosology.attention.label_attention import LabelAttention, fused_loss

STATES = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(0))
MASK = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]


def module(projection: int) -> LabelAttention:
    torch.manual_seed(projection)
    layer = LabelAttention(6, 11, projection)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn_like(weight))
    return layer


def by_hand(layer: LabelAttention, note: np.ndarray, label: int) -> tuple[float, np.ndarray]:
    """The equations, one label and one token at a time."""
    keys = note if layer.projection is None else np.tanh(note @ layer.projection.weight.detach().numpy().T)
    scores = np.exp(keys @ layer.queries[label].detach().numpy())
    weights = scores / scores.sum()
    actual = sum(weight * state for weight, state in zip(weights, note))
    return float(actual @ layer.weights[label].detach().numpy() + layer.bias[label].item()), weights


@pytest.mark.parametrize("projection", [0, 5, 6])
def test_logits_and_attention_equal_the_equations(projection):
    layer = module(projection)
    logits, attention = layer.logits(STATES, MASK), layer.attention(STATES, MASK)
    assert logits.shape == (3, 11) and attention.shape == (3, 11, 9)
    for row, length in enumerate((9, 4, 1)):
        for label in (0, 4, 10):
            logit, weights = by_hand(layer, STATES[row, :length].numpy(), label)
            assert logits[row, label].item() == pytest.approx(logit, abs=1e-5)
            assert attention[row, label, :length].detach().numpy() == pytest.approx(weights, abs=1e-6)
            assert not attention[row, label, length:].any()


@pytest.mark.parametrize("projection", [0, 5])
@pytest.mark.parametrize("cells", [1, 60, 100])
def test_logits_in_chunks_of_labels_are_the_same(monkeypatch, projection, cells):
    layer = module(projection)
    with torch.no_grad():
        full = layer.logits(STATES, MASK)
        monkeypatch.setattr(learned, "_MAX_CELLS", {"cpu": cells})
        calls = []
        part = layer._chunk_logits
        monkeypatch.setattr(layer, "_chunk_logits", lambda *given: calls.append(1) or part(*given))
        actual = layer.logits(STATES, MASK)
        chosen = layer.logits(STATES, MASK, torch.tensor([3, 3, 9]))
    assert len(calls) > 1
    assert actual.numpy() == pytest.approx(full.numpy(), abs=1e-6)
    assert chosen.numpy() == pytest.approx(full[:, [3, 3, 9]].numpy(), abs=1e-6)


def test_padding_does_not_change_logits():
    layer = module(0)
    dirty = STATES.clone()
    dirty[1, 4:] = 1e4
    assert torch.equal(layer.logits(dirty, MASK)[1], layer.logits(STATES, MASK)[1])


def test_note_without_tokens_has_finite_logits_and_no_attention():
    layer = module(5)
    nothing = torch.zeros(1, 9, dtype=torch.bool)
    logits = layer.logits(torch.zeros(1, 9, 6), nothing)
    assert logits[0].detach().numpy() == pytest.approx(layer.bias.detach().numpy(), abs=1e-6)
    assert not layer.attention(torch.zeros(1, 9, 6), nothing).any()
    logits.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in layer.parameters())


def test_initial_probability_is_the_rate_of_the_label():
    rates = torch.tensor([0.5, 0.01, 0.0, 1.0])
    layer = LabelAttention(6, 4, rates=rates)
    actual = layer.logits(torch.zeros(1, 2, 6), torch.ones(1, 2, dtype=torch.bool)).sigmoid()
    assert actual[0].detach().numpy() == pytest.approx(rates.numpy(), abs=1e-4)
    assert torch.isfinite(layer.bias).all()


@pytest.mark.parametrize("projection", [0, 5])
@pytest.mark.parametrize("cells", [1, 250, 1 << 20])
def test_fused_loss_and_its_gradients_are_those_of_the_logits(monkeypatch, projection, cells):
    monkeypatch.setattr(learned, "_LOSS_CELLS", cells)
    targets = (torch.rand(3, 11, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    results = []
    for is_fused in (False, True):
        layer, states = module(projection), STATES.clone().requires_grad_()
        if is_fused:
            loss = fused_loss(layer._keys(states), states, MASK, layer.queries, layer.weights, layer.bias, targets)
        else:
            loss = layer.loss(states, MASK, targets)
        (3 * loss).backward()
        results.append([loss, states.grad, *(weight.grad for weight in layer.parameters())])
    for fused, expected in zip(*results):
        torch.testing.assert_close(fused, expected, atol=1e-6, rtol=1e-4)
    assert results[0][1].abs().max() > 1e-3


def test_loss_of_some_labels_is_that_of_their_logits():
    layer, labels = module(5), torch.tensor([7, 2])
    targets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(layer.logits(STATES, MASK)[:, labels], targets)
    assert layer.loss(STATES, MASK, targets, labels).item() == pytest.approx(expected.item(), abs=1e-6)
