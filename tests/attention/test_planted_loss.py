"""The loss of planted attention in chunks: that of the equations, and so are its derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from nosology.attention.planted_attention import LabelDecoder, PlantedScores, planted_loss, top_k_mask
from tests.attention.test_planted import whole, world


@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize("without", [(), ("static",), ("scores",), ("static", "scores"), ("k",), ("zero",)])
def test_equals_the_equations_with_derivatives(chunk, without):
    states, mask, words, decoder, planted = world(7)
    zero = "zero" in without
    told = vars(planted) | {name: 0 if name == "k" else None for name in without if name != "zero"}
    targets = (torch.rand(3, 5) < 0.4).float()
    grads, losses = [], []
    for way in (0, 1):
        given = {name: told[name] for name in ("static", "scores") if told[name] is not None}
        leaves = [x.clone().requires_grad_() for x in (states, *vars(decoder).values(), *given.values())]
        parts, plan = LabelDecoder(*leaves[1:4]), PlantedScores(**(told | dict(zip(given, leaves[4:]))))
        if way:
            loss = binary_cross_entropy_with_logits(whole(leaves[0], mask, words, parts, plan, zero), targets)
        else:
            loss = planted_loss(leaves[0], mask, words, parts, plan, targets, chunk=chunk, literal_zero=zero)
        wanted = [leaf for name, leaf in zip(("h", "u", "w", "b", *given), leaves) if name != "static"]
        losses.append(loss.detach())
        grads.append(torch.autograd.grad(2 * loss, wanted))
    torch.testing.assert_close(losses[0], losses[1], atol=1e-6, rtol=1e-5)
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_exactly_k_the_first_of_equal_ones():
    scores = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 9.0]])
    mask = torch.tensor([True, True, True, True, True, False])
    assert top_k_mask(scores, mask, 2).tolist() == [[False, True, True, False, False, False]]
    assert top_k_mask(scores, mask, 0).tolist() == [mask.tolist()]
    assert top_k_mask(scores, mask, 5).tolist() == [mask.tolist()]
