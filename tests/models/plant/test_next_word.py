"""The next word's cross entropy in chunks is torch's, derivatives too."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from nosology.encoders.tokenizers import PAD
from nosology.models.plant.language_model import next_word_loss


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_equals_torch(chunk):
    torch.manual_seed(0)
    leaves = [torch.randn(*shape).requires_grad_() for shape in ((12, 6), (30, 6), (30,))]
    targets = torch.randint(PAD + 1, 30, (12,))
    targets[[2, 7]] = PAD
    wanted = cross_entropy(leaves[0] @ leaves[1].T + leaves[2], targets, ignore_index=PAD)
    found = next_word_loss(*leaves, targets, chunk=chunk)
    torch.testing.assert_close(found, wanted)
    for a, b in zip(*(torch.autograd.grad(3 * loss, leaves) for loss in (found, wanted))):
        torch.testing.assert_close(a, b)


def test_a_window_in_which_nothing_is_asked_for():
    states = torch.randn(4, 6, requires_grad=True)
    loss = next_word_loss(states, torch.randn(9, 6), torch.zeros(9), torch.full((4,), PAD))
    loss.backward()
    assert float(loss.detach()) == 0 and (states.grad == 0).all()
