"""Attention with a learned query a label."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nosology.attention import label_attention as learned
from nosology.attention.label_attention import LabelAttention

STATES = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(0))
MASK = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]


def module(projection: int) -> LabelAttention:
    torch.manual_seed(projection)
    made = LabelAttention(6, 11, projection)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn_like(weight))
    return made


def by_hand(made: LabelAttention, note: np.ndarray, label: int) -> tuple[float, np.ndarray]:
    """The equations, one label and one token at a time."""
    keys = note if made.projection is None else np.tanh(note @ made.projection.weight.detach().numpy().T)
    scores = np.exp(keys @ made.queries[label].detach().numpy())
    weights = scores / scores.sum()
    found = sum(weight * state for weight, state in zip(weights, note))
    return float(found @ made.weights[label].detach().numpy() + made.bias[label].item()), weights


@pytest.mark.parametrize("projection", [0, 5, 6])
def test_logits_and_attention_are_those_of_the_equations(projection):
    made = module(projection)
    logits, attention = made.logits(STATES, MASK), made.attention(STATES, MASK)
    assert logits.shape == (3, 11) and attention.shape == (3, 11, 9)
    for row, length in enumerate((9, 4, 1)):
        for label in (0, 4, 10):
            logit, weights = by_hand(made, STATES[row, :length].numpy(), label)
            assert logits[row, label].item() == pytest.approx(logit, abs=1e-5)
            assert attention[row, label, :length].detach().numpy() == pytest.approx(weights, abs=1e-6)
            assert not attention[row, label, length:].any()


@pytest.mark.parametrize("projection", [0, 5])
@pytest.mark.parametrize("cells", [1, 60, 100])
def test_labels_scored_a_part_at_a_time_are_scored_alike(monkeypatch, projection, cells):
    made = module(projection)
    with torch.no_grad():
        whole = made.logits(STATES, MASK)
        monkeypatch.setattr(learned, "_MAX_CELLS", cells)
        calls = []
        part = made._chunk_logits
        monkeypatch.setattr(made, "_chunk_logits", lambda *given: calls.append(1) or part(*given))
        found = made.logits(STATES, MASK)
        some = made.logits(STATES, MASK, torch.tensor([3, 3, 9]))
    assert len(calls) > 1
    assert found.numpy() == pytest.approx(whole.numpy(), abs=1e-6)
    assert some.numpy() == pytest.approx(whole[:, [3, 3, 9]].numpy(), abs=1e-6)


def test_states_after_the_end_may_be_anything():
    made = module(0)
    dirty = STATES.clone()
    dirty[1, 4:] = 1e4
    assert torch.equal(made.logits(dirty, MASK)[1], made.logits(STATES, MASK)[1])


def test_a_note_without_a_token_has_numbers_and_no_attention():
    made = module(5)
    nothing = torch.zeros(1, 9, dtype=torch.bool)
    logits = made.logits(torch.zeros(1, 9, 6), nothing)
    assert logits[0].detach().numpy() == pytest.approx(made.bias.detach().numpy(), abs=1e-6)
    assert not made.attention(torch.zeros(1, 9, 6), nothing).any()
    logits.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in made.parameters())


def test_a_label_begins_with_the_share_of_notes_that_have_it():
    rates = torch.tensor([0.5, 0.01, 0.0, 1.0])
    made = LabelAttention(6, 4, rates=rates)
    found = made.logits(torch.zeros(1, 2, 6), torch.ones(1, 2, dtype=torch.bool)).sigmoid()
    assert found[0].detach().numpy() == pytest.approx(rates.numpy(), abs=1e-4)
    assert torch.isfinite(made.bias).all()
